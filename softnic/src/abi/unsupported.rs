//! Functions of libibverbs without a counterpart in the engine, and with an answer of their own.

use std::ffi::{c_int, c_void};

use ibverbs_sys as ffi;

use super::set_errno;

pub(super) unsafe extern "C" fn ibv_rereg_mr(
    _mr: *mut ffi::ibv_mr,
    _flags: c_int,
    _pd: *mut ffi::ibv_pd,
    _addr: *mut c_void,
    _len: usize,
    _access: c_int,
) -> c_int {
    set_errno(libc::EOPNOTSUPP);
    // `ibv_rereg_mr_err_code`: the registration is unchanged.
    -1
}

/// Fails: a fallback of `verbs.h` for contexts without the extended call, present in all contexts of this crate.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    _ctx: *mut ffi::ibv_context,
    _port: u8,
    _attr: *mut ffi::_compat_ibv_port_attr,
) -> c_int {
    libc::EOPNOTSUPP
}

/// Always succeeds: the engine copies with the processor, so a forked child may use its copy of registered memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_is_fork_initialized() -> ffi::ibv_fork_status {
    ffi::ibv_fork_status::IBV_FORK_UNNEEDED
}
