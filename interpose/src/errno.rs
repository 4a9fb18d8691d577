//! Conversion of results to C's return values and `errno`.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
};

use libc::{c_int, size_t};

/// Creates an error from an `errno`.
#[must_use]
pub fn os(errno: c_int) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// The `errno` of this thread.
#[must_use]
pub fn last_errno() -> c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Sets the `errno` of this thread.
pub fn set_errno(errno: c_int) {
    // SAFETY: the call has no preconditions.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: used by this thread only. Assumption: the location of `errno` is valid for the life of its thread.
    unsafe { *location = errno };
}

/// Runs a call and returns its value, or -1 with `errno` set to `number(error)`. A panic must not
/// reach C, and becomes `EIO`.
pub fn run<T: From<i8>>(
    number: impl FnOnce(&io::Error) -> c_int,
    call: impl FnOnce() -> io::Result<T>,
) -> T {
    // Locks ignore poisoning, so the state is usable after a panic.
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err(os(libc::EIO)));
    result.unwrap_or_else(|err| {
        set_errno(number(&err));
        T::from(-1)
    })
}

/// Aborts the program if `len` exceeds the size of the buffer, for the checked variants of glibc
/// (`_FORTIFY_SOURCE`).
pub fn fits(len: size_t, capacity: size_t) {
    if len > capacity {
        // SAFETY: no preconditions.
        unsafe { libc::abort() };
    }
}
