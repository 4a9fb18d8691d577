//! Results in the form of C.

use std::{io, sync::OnceLock};

pub(crate) use interpose::os;
use interpose::{Returned, cross};

/// Runs a call and returns its value, or -1 with `errno` set. A panic must not unwind into C and becomes
/// `EIO`. The call is a cancellation point: handlers of signals and the cancellation of the thread wait until it has ended.
#[inline]
pub(crate) fn run<T: From<i8> + Returned>(mut call: impl FnMut() -> io::Result<T>) -> T {
    let returned = cross(true, false, || {
        Some(interpose::run(rsocket::errno, &mut call))
    });
    returned.unwrap_or_else(|| T::from(-1))
}

/// Whether the program requests librdmacm's quirks.
pub(crate) fn compat() -> bool {
    static COMPAT: OnceLock<bool> = OnceLock::new();
    *COMPAT.get_or_init(|| std::env::var_os("RSOCKET_C_COMPAT").is_some_and(|value| value == "1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_or_panic_sets_errno() {
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
