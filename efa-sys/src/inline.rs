//! The `static inline` functions of `efadv.h`.

use crate::efadv_cq;
use core::ffi::c_int;
use ibverbs_sys::ibv_gid;

/// `efadv_wc_read_sgid(cq, sgid)`—Reads the address of the current completion's sender; `-ENOENT` if the device knows the sender
/// by an address handle, or does not know it.
///
/// # Safety
/// - The queue is polled, positioned on a completion, and was made with `EFADV_WC_EX_WITH_SGID`. `sgid` is writable.
#[inline]
pub unsafe fn efadv_wc_read_sgid(cq: *mut efadv_cq, sgid: *mut ibv_gid) -> c_int {
    // SAFETY: the queue exists.
    match unsafe { (*cq).wc_read_sgid } {
        // SAFETY: the caller keeps to the function's contract.
        Some(read) => unsafe { read(cq, sgid) },
        None => -95,
    }
}
