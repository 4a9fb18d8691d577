//! Memory windows.

use super::dispatch;
use crate::{ibv_mw, ibv_mw_bind, ibv_mw_type, ibv_pd, ibv_qp};
use core::ffi::c_int;

dispatch! {
    /// `ibv_alloc_mw(pd, type)`—Allocates a window.
    pub fn ibv_alloc_mw(pd: *mut ibv_pd, mw_type: ibv_mw_type) -> *mut ibv_mw
        => (*(*pd).context).ops.alloc_mw;

    /// `ibv_dealloc_mw(mw)`—Frees a window.
    pub fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int => (*(*mw).context).ops.dealloc_mw;
}

/// `ibv_inc_rkey(rkey)`—The key with its lowest 8 bits incremented.
#[inline]
#[must_use]
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

/// `ibv_bind_mw(qp, mw, mw_bind)`—Posts the binding of a type 1 window.
///
/// Errors in addition to the provider's: EINVAL for a window of another type, or a range without a region; EPERM for a
/// window and region of different protection domains.
///
/// # Safety
///
/// `qp`, `mw` and the region in `mw_bind` are live.
#[inline]
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the caller's window, request and region are live.
    unsafe {
        let info = &(*mw_bind).bind_info;
        if (*mw).type_ != ibv_mw_type::IBV_MW_TYPE_1 {
            return libc::EINVAL;
        }
        if info.mr.is_null() {
            if info.addr != 0 || info.length != 0 {
                return libc::EINVAL;
            }
        } else if (*mw).pd != (*info.mr).pd {
            return libc::EPERM;
        }
    }
    // SAFETY: as the caller promised.
    unsafe { bind_mw(qp, mw, mw_bind) }
}

dispatch! {
    /// The provider's part of [`ibv_bind_mw`].
    fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int
        => (*(*mw).context).ops.bind_mw;
}
