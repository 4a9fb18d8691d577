//! Waiting for many descriptors.

use std::{io, ptr, slice, time::Duration};

use libc::{c_int, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use crate::real;

/// What a library waits for in `poll`.
pub trait Polled: Sized {
    /// Nothing if no descriptor is the library's.
    fn of(fds: &[pollfd]) -> Option<Self>;

    /// Waits for the same descriptors, some of which are the library's, as `poll` does.
    /// Meanwhile, `mask` says which signals are let through.
    fn wait(self, fds: &mut [pollfd], timeout: c_int, mask: Mask) -> c_int;
}

/// What a library waits for in `select`: descriptors to be read, written, and with exceptions.
pub trait Selected: Sized {
    /// Nothing if no descriptor is the library's.
    ///
    /// # Safety
    /// The sets are null or valid.
    unsafe fn of(count: c_int, sets: [*mut fd_set; 3]) -> Option<Self>;

    /// Waits for the same descriptors, some of which are the library's, as `select` does. Meanwhile,
    /// `mask` says which signals are let through.
    ///
    /// # Safety
    /// The sets and the time are null or valid.
    unsafe fn wait(
        self,
        count: c_int,
        sets: [*mut fd_set; 3],
        timeout: *mut timeval,
        mask: Mask,
    ) -> c_int;
}

/// # Safety
/// `count` entries of `fds`, if it is not null, are readable and writable for `'a`.
unsafe fn entries<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    match usize::try_from(count) {
        // SAFETY: not null, and as many as the caller promises.
        Ok(count @ 1..) if !fds.is_null() => unsafe { slice::from_raw_parts_mut(fds, count) },
        _ => &mut [],
    }
}

/// # Safety
/// As for the function of the same name.
pub unsafe fn poll<P: Polled>(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: as the caller promises.
    let asked = unsafe { entries(fds, count) };
    if let Some(own) = P::of(asked) {
        return own.wait(asked, timeout, Mask::SAME);
    }
    let real = real!(poll: unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int);
    // SAFETY: as the caller promises.
    unsafe { real(fds, count, timeout) }
}

/// # Safety
/// As for the function of the same name.
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
    // SAFETY: as the caller promises.
    unsafe { poll::<P>(fds, count, timeout) }
}

/// Milliseconds, rounded up; -1 for ever.
#[must_use]
pub fn milliseconds(time: Option<timespec>) -> c_int {
    let Some(time) = time else {
        return -1;
    };
    let millis = time.tv_sec.saturating_mul(1000);
    let millis = millis.saturating_add((time.tv_nsec + 999_999) / 1_000_000);
    c_int::try_from(millis).unwrap_or(c_int::MAX)
}

/// The signals that a thread lets through while it sleeps: those that it lets through anyway, or others.
#[derive(Clone, Copy, Debug)]
pub struct Mask(Option<sigset_t>);

impl Mask {
    /// Nothing changes.
    pub const SAME: Self = Self(None);

    /// What `mask` says, if it is not null.
    ///
    /// # Safety
    /// `mask` is null or valid.
    #[must_use]
    pub unsafe fn new(mask: *const sigset_t) -> Self {
        // SAFETY: null or valid, as the caller promises.
        Self(unsafe { mask.as_ref() }.copied())
    }

    /// Whether anything changes.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// `poll(2)`, with these signals let through, and no others, exactly while it sleeps: one that has come
    /// before, or comes at any time, ends it. Without a time, it sleeps for ever.
    ///
    /// # Errors
    /// As for the call.
    pub fn poll(&self, fds: &mut [pollfd], time: Option<Duration>) -> io::Result<c_int> {
        let time = time.map(|time| timespec {
            tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
        let mask = self.0.as_ref().map_or(ptr::null(), ptr::from_ref);
        let count = nfds_t::try_from(fds.len()).map_err(io::Error::other)?;
        let real = real!(ppoll: Ppoll);
        // SAFETY: the entries are as many as is said, and the others are null or valid.
        let ready = unsafe { real(fds.as_mut_ptr(), count, time, mask) };
        if ready < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(ready)
    }
}

type Ppoll = unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;

/// # Safety
/// As for the function of the same name.
pub unsafe fn ppoll<P: Polled>(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as the caller promises.
    let asked = unsafe { entries(fds, count) };
    if let Some(own) = P::of(asked) {
        // SAFETY: null or valid, as the caller promises.
        let timeout = milliseconds(unsafe { timeout.as_ref() }.copied());
        // SAFETY: as the caller promises.
        let mask = unsafe { Mask::new(mask) };
        return own.wait(asked, timeout, mask);
    }
    let real = real!(ppoll: Ppoll);
    // SAFETY: as the caller promises.
    unsafe { real(fds, count, timeout, mask) }
}

/// # Safety
/// As for the function of the same name.
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
    // SAFETY: as the caller promises.
    unsafe { ppoll::<P>(fds, count, timeout, mask) }
}

/// # Safety
/// As for the function of the same name.
pub unsafe fn select<S: Selected>(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = [read, write, except];
    // SAFETY: as the caller promises.
    if let Some(own) = unsafe { S::of(count, sets) } {
        // SAFETY: as the caller promises.
        return unsafe { own.wait(count, sets, timeout, Mask::SAME) };
    }
    let real = real!(
        select: unsafe extern "C" fn(
            c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int
    );
    // SAFETY: as the caller promises.
    unsafe { real(count, read, write, except, timeout) }
}

/// # Safety
/// As for the function of the same name.
pub unsafe fn pselect<S: Selected>(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = [read, write, except];
    // SAFETY: as the caller promises.
    if let Some(own) = unsafe { S::of(count, sets) } {
        // SAFETY: null or valid, as the caller promises.
        let mut time = unsafe { timeout.as_ref() }.map(|time| timeval {
            tv_sec: time.tv_sec,
            tv_usec: (time.tv_nsec + 999) / 1000,
        });
        let time = time.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: as the caller promises.
        let mask = unsafe { Mask::new(mask) };
        // SAFETY: as the caller promises, and the time is ours.
        return unsafe { own.wait(count, sets, time, mask) };
    }
    let real = real!(
        pselect: unsafe extern "C" fn(
            c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t)
            -> c_int
    );
    // SAFETY: as the caller promises.
    unsafe { real(count, read, write, except, timeout, mask) }
}

/// Puts functions in the place of those that wait for many descriptors: a [`Polled`] and a
/// [`Selected`] are what the library waits for.
#[macro_export]
macro_rules! waiting {
    ($($name:ident::<$own:ty>($($arg:ident: $type:ty),*);)*) => {
        const _: () = {
            use $crate::libc::{c_int, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
            $(
                /// # Safety
                /// As for the function of the same name.
                #[unsafe(no_mangle)]
                unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
                    // SAFETY: as the caller promises.
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
    fn times_are_rounded_up() {
        let time = |tv_sec, tv_nsec| milliseconds(Some(timespec { tv_sec, tv_nsec }));
        assert_eq!(milliseconds(None), -1);
        assert_eq!((time(0, 0), time(0, 1), time(2, 1_000_001)), (0, 1, 2002));
        assert_eq!(time(i64::MAX, 0), c_int::MAX);
    }
}
