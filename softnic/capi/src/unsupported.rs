//! Functions that fail: conversions of the kernel's structs, missing parts of librdmacm, and functions later than rdma-core
//! 44 for features of other devices.
//!
//! Functions are declared without the arguments of C: the caller removes them.

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use crate::set_errno;

/// Declares functions that return -1 with the `errno` `EOPNOTSUPP`.
macro_rules! failing {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            set_errno(libc::EOPNOTSUPP);
            -1
        }
    )*};
}

// Address resolution by a service of InfiniBand, and events written by programs, since rdma-core 60.
failing! {
    rdma_query_addrinfo
    rdma_resolve_addrinfo
    rdma_write_cm_event
}

// Descriptors of device memory, since rdma-core 61.
failing! {
    ibv_dm_export_dmabuf_fd
}

/// Hints for accesses, since rdma-core 59.
#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_dmah() -> *mut c_void {
    set_errno(libc::EOPNOTSUPP);
    ptr::null_mut()
}

/// Declares functions that return `EOPNOTSUPP`.
macro_rules! refusing {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            libc::EOPNOTSUPP
        }
    )*};
}

refusing! {
    ibv_dealloc_dmah
    ibv_query_port_speed
}

/// Declares conversions between structs of the kernel and of libibverbs. softnic has none of the kernel's.
macro_rules! conversions {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(_to: *mut c_void, _from: *const c_void) {}
    )*};
}

conversions! {
    ibv_copy_ah_attr_from_kern
    ibv_copy_path_rec_from_kern
    ibv_copy_path_rec_to_kern
    ibv_copy_qp_attr_from_kern
}
