//! The `static inline` function of `mlx5dv.h` for dynamically connected queue pairs.

use crate::mlx5dv_qp_ex;
use ibverbs_sys::ibv_ah;

/// `mlx5dv_wr_set_dc_addr(mqp, ah, remote_dctn, remote_dc_key)`—Sets the destination of the current request: an address, the
/// number of a DCT and its key.
///
/// # Safety
/// - `mqp` is of a DCI, between `ibv_wr_start` and `ibv_wr_complete`, with a request without a destination. The handle exists.
#[inline]
pub unsafe fn mlx5dv_wr_set_dc_addr(
    mqp: *mut mlx5dv_qp_ex,
    ah: *mut ibv_ah,
    remote_dctn: u32,
    remote_dc_key: u64,
) {
    // SAFETY: the queue pair exists.
    if let Some(set) = unsafe { (*mqp).wr_set_dc_addr } {
        // SAFETY: the caller keeps to the function's contract.
        unsafe { set(mqp, ah, remote_dctn, remote_dc_key) };
    }
}
