//! Interposed functions to wait for many descriptors.

use std::{
    io,
    os::fd::AsRawFd,
    ptr, slice,
    time::{Duration, Instant},
};

use libc::{c_int, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use verbs::signals;

use crate::{border, cross, load, os, real};

/// A `poll` with descriptors of a library.
pub trait Polled: Sized {
    /// Whether a descriptor may belong to the library.
    fn may_have(fd: c_int) -> bool;

    /// Returns `None` if no descriptor belongs to the library.
    fn of(fds: &[pollfd]) -> Option<Self>;

    /// Waits as `poll` does, with the signals of `mask` unblocked in the meantime.
    fn wait(self, fds: &mut [pollfd], timeout: c_int, mask: Mask) -> c_int;
}

/// A `select` with descriptors of a library, to be read, written, or with exceptions.
pub trait Selected: Sized {
    /// Whether a descriptor may belong to the library.
    fn may_have(fd: c_int) -> bool;

    /// Returns `None` if no descriptor belongs to the library.
    ///
    /// # Safety
    /// The sets are null or valid.
    unsafe fn of(count: c_int, sets: [*mut fd_set; 3]) -> Option<Self>;

    /// Waits as `select` does, with the signals of `mask` unblocked in the meantime.
    ///
    /// # Safety
    /// The sets and the timeout are null or valid.
    unsafe fn wait(
        self,
        count: c_int,
        sets: [*mut fd_set; 3],
        timeout: *mut timeval,
        mask: Mask,
    ) -> c_int;
}

/// # Safety
/// If `fds` is not null, `count` entries are readable and writable for `'a`.
unsafe fn entries<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    match usize::try_from(count) {
        // SAFETY: not null, and valid as guaranteed by the caller.
        Ok(count @ 1..) if !fds.is_null() => unsafe { slice::from_raw_parts_mut(fds, count) },
        _ => &mut [],
    }
}

/// The time until the end of a wait, which may be repeated.
#[derive(Clone, Copy)]
struct Clock {
    limit: Option<Duration>,
    deadline: Option<Instant>,
}

impl Clock {
    fn new(limit: Option<Duration>) -> Self {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        Self { limit, deadline }
    }

    /// Milliseconds left, rounded up; -1 without a limit.
    fn millis(&self) -> c_int {
        let remaining = match (self.limit, self.deadline) {
            (Some(_), Some(deadline)) => deadline.saturating_duration_since(Instant::now()),
            (Some(limit), None) => limit,
            (None, _) => return -1,
        };
        c_int::try_from(remaining.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
    }
}

/// Duration of a valid time.
fn duration(time: timespec) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}

/// Whether a descriptor in the sets may belong to a library.
///
/// # Safety
/// As for `select`.
unsafe fn any_in<S: Selected>(count: c_int, sets: [*mut fd_set; 3]) -> bool {
    let is_in = |fd: c_int, set: &*mut fd_set| {
        let fd = usize::try_from(fd).unwrap_or(0);
        let word = set.cast::<u64>().wrapping_add(fd / 64);
        // SAFETY: null only without a set, and a set has a bit for each descriptor below `count`.
        !set.is_null() && unsafe { *word } & 1 << (fd % 64) != 0
    };
    (0..count).any(|fd| S::may_have(fd) && sets.iter().any(|set| is_in(fd, set)))
}

/// # Safety
/// As for the libc function.
pub unsafe fn poll<P: Polled>(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    let entries_in = unsafe { entries(fds, count) };
    if entries_in.iter().any(|entry| P::may_have(entry.fd)) {
        let clock = Clock::new(u64::try_from(timeout).ok().map(Duration::from_millis));
        let ready = cross(true, false, || {
            let waiter = P::of(entries_in)?;
            Some(waiter.wait(entries_in, clock.millis(), Mask::SAME))
        });
        if let Some(ready) = ready {
            return ready;
        }
    }
    let real = real!(poll: unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, c_int) -> c_int);
    // SAFETY: guaranteed by the caller.
    unsafe { real(fds, count, timeout) }
}

/// # Safety
/// As for the libc function.
pub unsafe fn __poll_chk<P: Polled>(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    capacity: size_t,
) -> c_int {
    crate::fits(
        usize::try_from(count).unwrap_or(usize::MAX),
        capacity / size_of::<pollfd>(),
    );
    // SAFETY: guaranteed by the caller.
    unsafe { poll::<P>(fds, count, timeout) }
}

/// Whether the kernel accepts a timeout, null for none.
///
/// # Safety
/// `timeout` is null or valid.
unsafe fn is_valid(timeout: *const timespec) -> bool {
    // SAFETY: null or valid, guaranteed by the caller.
    let time = unsafe { load(timeout) };
    time.is_none_or(|time| time.tv_sec >= 0 && (0..1_000_000_000).contains(&time.tv_nsec))
}

/// Milliseconds of a timeout, rounded up; -1 without a timeout.
#[must_use]
pub fn milliseconds(time: Option<timespec>) -> c_int {
    let Some(time) = time else {
        return -1;
    };
    let millis = time.tv_sec.saturating_mul(1000);
    let millis = millis.saturating_add((time.tv_nsec + 999_999) / 1_000_000);
    c_int::try_from(millis).unwrap_or(c_int::MAX)
}

/// Signal mask of a thread while it sleeps: unchanged, or a given one.
#[derive(Clone, Copy, Debug)]
pub struct Mask(Option<sigset_t>);

impl Mask {
    /// The unchanged mask.
    pub const SAME: Self = Self(None);

    /// The mask at `mask`, or the unchanged mask if null.
    ///
    /// # Safety
    /// `mask` is null or valid.
    #[must_use]
    pub unsafe fn new(mask: *const sigset_t) -> Self {
        // SAFETY: null or valid, guaranteed by the caller.
        Self(unsafe { load(mask) })
    }

    /// Whether the mask changes.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// `poll(2)` with this signal mask, set atomically while the thread sleeps: an unblocked
    /// signal, pending or new, interrupts the call. Without a timeout, the thread sleeps
    /// indefinitely.
    ///
    /// # Errors
    /// As for `poll(2)`.
    pub fn poll(&self, fds: &mut [pollfd], time: Option<Duration>) -> io::Result<c_int> {
        let time = time.map(|time| timespec {
            tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        let (mask, interrupt) = match self.0 {
            Some(mask) => {
                let (mask, cancelled) = border::cancellable(mask);
                (Some(mask), cancelled)
            }
            None => (None, signals::interrupting()),
        };
        let mask = mask.as_ref().map_or(ptr::null(), ptr::from_ref);
        // Without a sleep, a pending signal does not end the call.
        let sleeps = time.is_none_or(|time| time.tv_sec > 0 || time.tv_nsec > 0);
        let mut all = fds.to_vec();
        all.extend(interrupt.filter(|_| sleeps).map(|fd| pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }));
        let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
        let ready = if mask.is_null() {
            poll_kernel(&mut all, time, mask)?
        } else {
            border::outside(|| poll_kernel(&mut all, time, mask))?
        };
        let is_interrupted = all[fds.len()..].iter().any(|entry| entry.revents != 0);
        fds.copy_from_slice(&all[..fds.len()]);
        match ready - c_int::from(is_interrupted) {
            // A signal for cancellation, or another one that is due.
            0 if is_interrupted && (!mask.is_null() || signals::is_interrupted()) => {
                Err(os(libc::EINTR))
            }
            ready => Ok(ready),
        }
    }
}

/// `ppoll(2)`, with null pointers or valid ones.
fn poll_kernel(
    fds: &mut [pollfd],
    time: *const timespec,
    mask: *const sigset_t,
) -> io::Result<c_int> {
    let count = nfds_t::try_from(fds.len()).map_err(io::Error::other)?;
    let real = real!(ppoll: Ppoll);
    // SAFETY: `count` is the number of entries, and the other pointers are null or valid.
    match unsafe { real(fds.as_mut_ptr(), count, time, mask) } {
        ready @ 0.. => Ok(ready),
        _ => Err(io::Error::last_os_error()),
    }
}

type Ppoll =
    unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;

/// # Safety
/// As for the libc function.
pub unsafe fn ppoll<P: Polled>(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let entries_in = unsafe { entries(fds, count) };
    // SAFETY: guaranteed by the caller. The real call refuses an invalid timeout.
    let is_valid = unsafe { is_valid(timeout) };
    if is_valid && entries_in.iter().any(|entry| P::may_have(entry.fd)) {
        // SAFETY: null or valid, guaranteed by the caller.
        let clock = Clock::new(unsafe { load(timeout) }.map(duration));
        // SAFETY: guaranteed by the caller.
        let mask = unsafe { Mask::new(mask) };
        let ready = cross(true, false, || {
            let waiter = P::of(entries_in)?;
            Some(waiter.wait(entries_in, clock.millis(), mask))
        });
        if let Some(ready) = ready {
            return ready;
        }
    }
    let real = real!(ppoll: Ppoll);
    // SAFETY: guaranteed by the caller.
    unsafe { real(fds, count, timeout, mask) }
}

/// # Safety
/// As for the libc function.
pub unsafe fn __ppoll_chk<P: Polled>(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    capacity: size_t,
) -> c_int {
    crate::fits(
        usize::try_from(count).unwrap_or(usize::MAX),
        capacity / size_of::<pollfd>(),
    );
    // SAFETY: guaranteed by the caller.
    unsafe { ppoll::<P>(fds, count, timeout, mask) }
}

/// # Safety
/// As for the libc function.
pub unsafe fn select<S: Selected>(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = [read, write, except];
    // SAFETY: guaranteed by the caller.
    if unsafe { any_in::<S>(count, sets) } {
        let ready = cross(true, false, || {
            // SAFETY: guaranteed by the caller.
            let waiter = unsafe { S::of(count, sets) }?;
            // SAFETY: guaranteed by the caller. The call stores the time left, with which it is repeated.
            Some(unsafe { waiter.wait(count, sets, timeout, Mask::SAME) })
        });
        if let Some(ready) = ready {
            return ready;
        }
    }
    let real = real!(
        select: unsafe extern "C-unwind" fn(
            c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int
    );
    // SAFETY: guaranteed by the caller.
    unsafe { real(count, read, write, except, timeout) }
}

/// # Safety
/// As for the libc function.
pub unsafe fn pselect<S: Selected>(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = [read, write, except];
    // SAFETY: guaranteed by the caller. The real call refuses an invalid timeout.
    let is_valid = unsafe { is_valid(timeout) };
    // SAFETY: guaranteed by the caller.
    if is_valid && unsafe { any_in::<S>(count, sets) } {
        // SAFETY: null or valid, guaranteed by the caller.
        let mut time = unsafe { load(timeout) }.map(|time| timeval {
            tv_sec: time.tv_sec,
            tv_usec: (time.tv_nsec + 999) / 1000,
        });
        // SAFETY: guaranteed by the caller.
        let mask = unsafe { Mask::new(mask) };
        let ready = cross(true, false, || {
            // SAFETY: guaranteed by the caller.
            let waiter = unsafe { S::of(count, sets) }?;
            let time = time.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
            // SAFETY: guaranteed by the caller; the timeout is a local variable.
            Some(unsafe { waiter.wait(count, sets, time, mask) })
        });
        if let Some(ready) = ready {
            return ready;
        }
    }
    let real = real!(
        pselect: unsafe extern "C-unwind" fn(
            c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t)
            -> c_int
    );
    // SAFETY: guaranteed by the caller.
    unsafe { real(count, read, write, except, timeout, mask) }
}

/// Exports the functions to wait for many descriptors, for a [`Polled`] and a [`Selected`] of the
/// library.
#[macro_export]
macro_rules! waiting {
    ($($name:ident::<$waiter:ty>($($arg:ident: $type:ty),*);)*) => {
        const _: () = {
            use $crate::libc::{c_int, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
            $(
                /// # Safety
                /// As for the libc function.
                #[unsafe(no_mangle)]
                unsafe extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
                    // SAFETY: guaranteed by the caller.
                    unsafe { $crate::wait::$name::<$waiter>($($arg),*) }
                }
            )*
        };
    };
    ($polled:ty, $selected:ty) => {
        $crate::waiting! {
            poll::<$polled>(fds: *mut pollfd, count: nfds_t, timeout: c_int);
            __poll_chk::<$polled>(
                fds: *mut pollfd, count: nfds_t, timeout: c_int, capacity: size_t);
            ppoll::<$polled>(
                fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t);
            __ppoll_chk::<$polled>(
                fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t,
                capacity: size_t);
            select::<$selected>(
                count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
                timeout: *mut timeval);
            pselect::<$selected>(
                count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
                timeout: *const timespec, mask: *const sigset_t);
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_round_up() {
        let time = |tv_sec, tv_nsec| milliseconds(Some(timespec { tv_sec, tv_nsec }));
        assert_eq!(milliseconds(None), -1);
        assert_eq!((time(0, 0), time(0, 1), time(2, 1_000_001)), (0, 1, 2002));
        assert_eq!(time(i64::MAX, 0), c_int::MAX);
    }
}
