//! Interposed functions to wait for many descriptors.

use std::{io, ptr, slice, time::Duration};

use libc::{c_int, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use crate::{load, real};

/// A `poll` with descriptors of a library.
pub trait Polled: Sized {
    /// Returns `None` if no descriptor belongs to the library.
    fn of(fds: &[pollfd]) -> Option<Self>;

    /// Waits as `poll` does, with the signals of `mask` unblocked in the meantime.
    fn wait(self, fds: &mut [pollfd], timeout: c_int, mask: Mask) -> c_int;
}

/// A `select` with descriptors of a library, to be read, written, or with exceptions.
pub trait Selected: Sized {
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

/// # Safety
/// As for the libc function.
pub unsafe fn poll<P: Polled>(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    let entries_in = unsafe { entries(fds, count) };
    if let Some(own) = P::of(entries_in) {
        return own.wait(entries_in, timeout, Mask::SAME);
    }
    let real = real!(poll: unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int);
    // SAFETY: guaranteed by the caller.
    unsafe { real(fds, count, timeout) }
}

/// # Safety
/// As for the libc function.
pub unsafe fn __poll_chk<P: Polled>(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: size_t,
) -> c_int {
    crate::fits(
        usize::try_from(count).unwrap_or(usize::MAX),
        room / size_of::<pollfd>(),
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
        let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
        let mask = self.0.as_ref().map_or(ptr::null(), ptr::from_ref);
        let count = nfds_t::try_from(fds.len()).map_err(io::Error::other)?;
        let real = real!(ppoll: Ppoll);
        // SAFETY: `count` is the number of entries, and the other pointers are null or valid.
        let ready = unsafe { real(fds.as_mut_ptr(), count, time, mask) };
        if ready < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(ready)
    }
}

type Ppoll = unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;

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
    if unsafe { is_valid(timeout) }
        && let Some(own) = P::of(entries_in)
    {
        // SAFETY: null or valid, guaranteed by the caller.
        let timeout = milliseconds(unsafe { load(timeout) });
        // SAFETY: guaranteed by the caller.
        let mask = unsafe { Mask::new(mask) };
        return own.wait(entries_in, timeout, mask);
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
    room: size_t,
) -> c_int {
    crate::fits(
        usize::try_from(count).unwrap_or(usize::MAX),
        room / size_of::<pollfd>(),
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
    if let Some(own) = unsafe { S::of(count, sets) } {
        // SAFETY: guaranteed by the caller.
        return unsafe { own.wait(count, sets, timeout, Mask::SAME) };
    }
    let real = real!(
        select: unsafe extern "C" fn(
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
    if unsafe { is_valid(timeout) }
        // SAFETY: guaranteed by the caller.
        && let Some(own) = unsafe { S::of(count, sets) }
    {
        // SAFETY: null or valid, guaranteed by the caller.
        let mut time = unsafe { load(timeout) }.map(|time| timeval {
            tv_sec: time.tv_sec,
            tv_usec: (time.tv_nsec + 999) / 1000,
        });
        let time = time.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: guaranteed by the caller.
        let mask = unsafe { Mask::new(mask) };
        // SAFETY: guaranteed by the caller; the timeout is a local variable.
        return unsafe { own.wait(count, sets, time, mask) };
    }
    let real = real!(
        pselect: unsafe extern "C" fn(
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
    ($($name:ident::<$own:ty>($($arg:ident: $type:ty),*);)*) => {
        const _: () = {
            use $crate::libc::{c_int, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
            $(
                /// # Safety
                /// As for the libc function.
                #[unsafe(no_mangle)]
                unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
                    // SAFETY: guaranteed by the caller.
                    unsafe { $crate::wait::$name::<$own>($($arg),*) }
                }
            )*
        };
    };
    ($polled:ty, $selected:ty) => {
        $crate::waiting! {
            poll::<$polled>(fds: *mut pollfd, count: nfds_t, timeout: c_int);
            __poll_chk::<$polled>(
                fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t);
            ppoll::<$polled>(
                fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t);
            __ppoll_chk::<$polled>(
                fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t,
                room: size_t);
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
