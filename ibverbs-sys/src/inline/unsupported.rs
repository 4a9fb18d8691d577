//! Result of a function whose slot in the provider's table is empty.

use crate::{__be32, ibv_wc_opcode};
use core::ffi::c_int;
use core::ptr;

/// Result of an operation missing from the provider.
///
/// EOPNOTSUPP, as for slots filled by libibverbs. Functions without an error result, such as `ibv_wr_*` and
/// `ibv_wc_read_*`, panic: continuing would lose a request, and C crashes in this case.
pub(crate) trait Unsupported {
    fn unsupported(function: &'static str) -> Self;
}

impl Unsupported for c_int {
    #[inline]
    fn unsupported(_: &'static str) -> Self {
        libc::EOPNOTSUPP
    }
}

impl<T> Unsupported for *mut T {
    #[cold]
    fn unsupported(_: &'static str) -> Self {
        set_errno(libc::EOPNOTSUPP);
        ptr::null_mut()
    }
}

macro_rules! unsupported_is_a_bug {
    ($($type:ty),*) => {$(
        impl Unsupported for $type {
            #[inline]
            fn unsupported(function: &'static str) -> Self {
                never_asked_for(function)
            }
        }
    )*};
}

unsupported_is_a_bug!((), u8, u16, u32, u64, __be32, ibv_wc_opcode);

#[cold]
#[inline(never)]
#[expect(clippy::panic, reason = "no way to return an error, and C crashes")]
fn never_asked_for(function: &'static str) -> ! {
    panic!("{function}: the queue was created without this operation")
}

/// Sets this thread's `errno`.
pub(crate) fn set_errno(error: c_int) {
    // SAFETY: the C library's errno is always there, and only this thread's.
    unsafe { *libc::__errno_location() = error };
}
