//! Results as C has them.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
};

use libc::{c_int, size_t};

/// An error with this number.
#[must_use]
pub fn os(errno: c_int) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// The number of the last error.
#[must_use]
pub fn last_errno() -> c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Leaves a number where C looks for it.
pub fn set_errno(errno: c_int) {
    // SAFETY: the call has no preconditions.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it is this thread's, and valid as long as the thread runs.
    unsafe { *place = errno };
}

/// Runs a call: its value, or -1 with `errno` set to what `number` says of the error. A panic must
/// not reach C, and is `EIO`.
pub fn run<T: From<i8>>(
    number: impl FnOnce(&io::Error) -> c_int,
    call: impl FnOnce() -> io::Result<T>,
) -> T {
    // Whatever was locked when it panicked is usable: every lock is taken regardless of panics.
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err(os(libc::EIO)));
    result.unwrap_or_else(|err| {
        set_errno(number(&err));
        T::from(-1)
    })
}

/// For functions that glibc has for callers that know how large the buffer is: where more is asked
/// for than it has, the program is to end.
pub fn fits(len: size_t, room: size_t) {
    if len > room {
        // SAFETY: it has no preconditions.
        unsafe { libc::abort() };
    }
}
