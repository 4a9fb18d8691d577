//! Memory registration in the identifier's protection domain.

use super::rdma_seterrno;
use crate::rdma_cm_id;
use core::ffi::{c_int, c_void};
use ibverbs_sys::{ibv_access_flags, ibv_dereg_mr, ibv_mr, ibv_reg_mr};

/// Declares a registration function with the given access rights.
const LOCAL: ibv_access_flags = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;

macro_rules! reg {
    ($($(#[$doc:meta])* $name:ident: $access:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// `id` has a protection domain. Until deregistration, the `length` bytes at `addr` stay valid, and the program
        /// permits the registered accesses by the device.
        #[inline]
        pub unsafe fn $name(id: *mut rdma_cm_id, addr: *mut c_void, length: usize) -> *mut ibv_mr {
            // SAFETY: as the caller promised.
            unsafe { ibv_reg_mr((*id).pd, addr, length, $access.0) }
        }
    )*};
}

reg! {
    /// `rdma_reg_msgs(id, addr, length)`—Registers memory for sends and receives.
    rdma_reg_msgs: LOCAL;

    /// `rdma_reg_read(id, addr, length)`—Registers memory for RDMA reads by the peer.
    rdma_reg_read: (LOCAL | ibv_access_flags::IBV_ACCESS_REMOTE_READ);

    /// `rdma_reg_write(id, addr, length)`—Registers memory for RDMA writes by the peer.
    rdma_reg_write: (LOCAL | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE);
}

/// `rdma_dereg_mr(mr)`—Deregisters memory.
///
/// # Safety
///
/// `mr` is live, and no operation uses it.
#[inline]
pub unsafe fn rdma_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: as the caller promised.
    rdma_seterrno(unsafe { ibv_dereg_mr(mr) })
}
