//! Functions of libibverbs that the engine has no counterpart for. They exist so that programs link without the library.

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
    // Of `ibv_rereg_mr_err_code`: nothing has changed.
    -1
}

/// The call for libraries older than the extended one, which contexts of this crate have.
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
    // Packets that are sent again overwrite earlier ones.
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

/// Children of this process may use their copies of registered memory: the engine copies with the processor.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_is_fork_initialized() -> ffi::ibv_fork_status {
    ffi::ibv_fork_status::IBV_FORK_UNNEEDED
}
