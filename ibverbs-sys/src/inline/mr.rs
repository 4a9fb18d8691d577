//! Memory regions.

use super::dispatch;
use crate::{ibv_advise_mr_advice, ibv_mr, ibv_pd, ibv_reg_mr_iova2, ibv_sge};
use core::ffi::{c_int, c_uint, c_void};

/// `ibv_reg_mr(pd, addr, length, access)`—Registers memory.
///
/// In C, a macro selects one of two functions by the flags. This calls the newer function, which accepts all flags and
/// drops optional flags unknown to the kernel.
///
/// # Safety
///
/// `pd` is live. Until deregistration, the `length` bytes at `addr` stay valid, and the program permits the accesses in
/// `access` by the device.
#[inline]
pub unsafe fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: as the caller promised.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr.expose_provenance() as u64, access) }
}

/// `ibv_reg_mr_iova(pd, addr, length, iova, access)`—Registers memory under the device address `iova`.
///
/// A macro in C, like [`ibv_reg_mr`].
///
/// # Safety
///
/// As for [`ibv_reg_mr`].
#[inline]
pub unsafe fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: as the caller promised.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access) }
}

/// `__ibv_reg_mr(…)`—Target of the C macro [`ibv_reg_mr`]; the last argument is ignored.
///
/// # Safety
///
/// As for [`ibv_reg_mr`].
#[inline]
pub unsafe fn __ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_uint,
    _is_access_const: c_int,
) -> *mut ibv_mr {
    // SAFETY: as the caller promised.
    unsafe { ibv_reg_mr(pd, addr, length, access) }
}

/// `__ibv_reg_mr_iova(…)`—Target of the C macro [`ibv_reg_mr_iova`]; the last argument is ignored.
///
/// # Safety
///
/// As for [`ibv_reg_mr`].
#[inline]
pub unsafe fn __ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
    _is_access_const: c_int,
) -> *mut ibv_mr {
    // SAFETY: as the caller promised.
    unsafe { ibv_reg_mr_iova(pd, addr, length, iova, access) }
}

dispatch! {
    /// `ibv_advise_mr(pd, advice, flags, sg_list, num_sge)`—Advises the kernel about the use of memory regions.
    pub fn ibv_advise_mr(
        pd: *mut ibv_pd,
        advice: ibv_advise_mr_advice,
        flags: u32,
        sg_list: *mut ibv_sge,
        num_sge: u32,
    ) -> c_int
        => verbs_get_ctx_op!((*pd).context, advise_mr);

    /// `ibv_alloc_null_mr(pd)`—Creates a region that discards writes and reads as zeros.
    pub fn ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr
        => verbs_get_ctx_op!((*pd).context, alloc_null_mr);
}
