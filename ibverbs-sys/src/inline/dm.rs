//! Device memory.

use super::dispatch;
use crate::{ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use core::ffi::{c_int, c_uint, c_void};

dispatch! {
    /// `ibv_alloc_dm(context, attr)`—Allocates device memory.
    pub fn ibv_alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm
        => verbs_get_ctx_op!(context, alloc_dm);

    /// `ibv_free_dm(dm)`—Frees device memory.
    pub fn ibv_free_dm(dm: *mut ibv_dm) -> c_int => verbs_get_ctx_op!((*dm).context, free_dm);

    /// `ibv_memcpy_to_dm(dm, dm_offset, host_addr, length)`—Copies from host to device memory.
    pub fn ibv_memcpy_to_dm(
        dm: *mut ibv_dm,
        dm_offset: u64,
        host_addr: *const c_void,
        length: usize,
    ) -> c_int
        => (*dm).memcpy_to_dm;

    /// `ibv_memcpy_from_dm(host_addr, dm, dm_offset, length)`—Copies from device to host memory.
    pub fn ibv_memcpy_from_dm(
        host_addr: *mut c_void,
        dm: *mut ibv_dm,
        dm_offset: u64,
        length: usize,
    ) -> c_int
        => (*dm).memcpy_from_dm;

    /// `ibv_reg_dm_mr(pd, dm, dm_offset, length, access)`—Registers device memory.
    pub fn ibv_reg_dm_mr(
        pd: *mut ibv_pd,
        dm: *mut ibv_dm,
        dm_offset: u64,
        length: usize,
        access: c_uint,
    ) -> *mut ibv_mr
        => verbs_get_ctx_op!((*pd).context, reg_dm_mr);
}
