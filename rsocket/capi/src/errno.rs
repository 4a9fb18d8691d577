//! Results as C has them.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::OnceLock,
};

use libc::c_int;

/// An error with this number.
pub(crate) fn os(errno: c_int) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// Leaves a number where C looks for it.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the call has no preconditions.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it is this thread's, and valid as long as the thread runs.
    unsafe { *place = errno };
}

/// Runs a call: its value, or -1 with `errno` set. A panic must not reach C, and is `EIO`.
pub(crate) fn run<T: From<i8>>(call: impl FnOnce() -> io::Result<T>) -> T {
    // Whatever was locked when it panicked is usable: every lock is taken regardless of panics.
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err(os(libc::EIO)));
    result.unwrap_or_else(|err| {
        set_errno(rsocket::errno(&err));
        T::from(-1)
    })
}

/// Whether the program wants the original's quirks.
pub(crate) fn compat() -> bool {
    static COMPAT: OnceLock<bool> = OnceLock::new();
    *COMPAT.get_or_init(|| std::env::var_os("RSOCKET_C_COMPAT").is_some_and(|value| value == "1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_panics_become_numbers() {
        assert_eq!(run(|| Ok(7_i32)), 7);
        assert_eq!(run::<isize>(|| Err(os(libc::ENOTCONN))), -1);
        assert_eq!(
            io::Error::last_os_error().raw_os_error(),
            Some(libc::ENOTCONN)
        );
        assert_eq!(run::<i32>(|| panic!("caught")), -1);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EIO));
    }
}
