//! Addresses of an identifier, and librdmacm's error convention.

use crate::rdma_cm_id;
use core::ffi::c_int;
use libc::sockaddr;

/// `rdma_get_local_addr(id)`—The local address: a pointer into the identifier.
///
/// # Safety
///
/// `id` is live.
#[inline]
#[must_use]
pub unsafe fn rdma_get_local_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: the caller's identifier is live.
    unsafe { (&raw mut (*id).route.addr.__bindgen_anon_1).cast() }
}

/// `rdma_get_peer_addr(id)`—The peer's address: a pointer into the identifier.
///
/// # Safety
///
/// `id` is live.
#[inline]
#[must_use]
pub unsafe fn rdma_get_peer_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: the caller's identifier is live.
    unsafe { (&raw mut (*id).route.addr.__bindgen_anon_2).cast() }
}

/// `rdma_seterrno(ret)`—Turns an errno value into -1 with errno set.
#[inline]
pub fn rdma_seterrno(ret: c_int) -> c_int {
    if ret == 0 {
        return 0;
    }
    // SAFETY: the location of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = ret };
    -1
}
