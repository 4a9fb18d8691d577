//! Functions of libibverbs without a counterpart in the engine, defined so that programs link without the library.

use std::ffi::{c_int, c_void};

use ibverbs_sys as ffi;

use super::{null, set_errno};

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_device(_cmd_fd: c_int) -> *mut ffi::ibv_context {
    null(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_pd(_ctx: *mut ffi::ibv_context, _handle: u32) -> *mut ffi::ibv_pd {
    null(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_pd(_pd: *mut ffi::ibv_pd) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_mr(_pd: *mut ffi::ibv_pd, _handle: u32) -> *mut ffi::ibv_mr {
    null(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_mr(_mr: *mut ffi::ibv_mr) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_dm(_ctx: *mut ffi::ibv_context, _handle: u32) -> *mut ffi::ibv_dm {
    null(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_dm(_dm: *mut ffi::ibv_dm) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ffi::ibv_pd,
    _offset: u64,
    _len: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ffi::ibv_mr {
    null(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
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

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ffi::ibv_qp,
    _op: ffi::ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    // Retransmitted packets overwrite earlier ones, so data are not written in order.
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_set_ece(_qp: *mut ffi::ibv_qp, _ece: *mut ffi::ibv_ece) -> c_int {
    libc::EOPNOTSUPP
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_ece(_qp: *mut ffi::ibv_qp, _ece: *mut ffi::ibv_ece) -> c_int {
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
