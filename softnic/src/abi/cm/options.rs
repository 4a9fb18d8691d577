//! Options of identifiers.

use std::ffi::{c_int, c_void};

use ibverbs_sys::{ibv_ece, ibv_path_data};
use rdmacm_sys as ffi;

use super::{failed, id::Id, outcome};
use crate::{abi::object::Object, cm::Ece, failure::Call};

/// The value of an option; `None` for a wrong length.
///
/// # Safety
/// - `value` points to `len` bytes.
unsafe fn read<T: Copy>(value: *const c_void, len: usize) -> Option<T> {
    if len != size_of::<T>() {
        return None;
    }
    // SAFETY: as the caller promised; each `T` here is an integer, so any bytes are a value.
    Some(unsafe { value.cast::<T>().read_unaligned() })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_option(
    raw: *mut ffi::rdma_cm_id,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    // SAFETY: a live identifier.
    let id = unsafe { Id::borrow(raw) };
    if let Err(errno) = id.port().attempt(Call::SetOption) {
        return failed(errno);
    }
    let num = id.num();
    // SAFETY: the caller's value.
    let byte = || unsafe { read::<u8>(value, len) };
    // SAFETY: the caller's value.
    let flag = || unsafe { read::<c_int>(value, len) }.map(|flag| flag != 0);
    let done = match (level, option) {
        (ffi::RDMA_OPTION_ID, ffi::RDMA_OPTION_ID_TOS) => {
            byte().map(|tos| id.call(|manager| manager.set_tos(num, tos)))
        }
        (ffi::RDMA_OPTION_ID, ffi::RDMA_OPTION_ID_REUSEADDR) => {
            flag().map(|flag| id.call(|manager| manager.set_reuse_addr(num, flag)))
        }
        (ffi::RDMA_OPTION_ID, ffi::RDMA_OPTION_ID_AFONLY) => {
            flag().map(|flag| id.call(|manager| manager.set_af_only(num, flag)))
        }
        (ffi::RDMA_OPTION_ID, ffi::RDMA_OPTION_ID_ACK_TIMEOUT) => {
            byte().map(|timeout| id.call(|manager| manager.set_ack_timeout(num, timeout)))
        }
        (ffi::RDMA_OPTION_IB, ffi::RDMA_OPTION_IB_PATH) => {
            // A given path replaces route resolution; the contents are ignored, since a peer has exactly one path.
            let is_array = len > 0 && len.is_multiple_of(size_of::<ibv_path_data>());
            is_array.then(|| id.call(|manager| manager.resolve_route(num)))
        }
        _ => return failed(libc::ENOSYS),
    };
    done.map_or_else(|| failed(libc::EINVAL), outcome)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_local_ece(raw: *mut ffi::rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: a live identifier.
    let id = unsafe { Id::borrow(raw) };
    if let Err(errno) = id.port().attempt(Call::SetLocalEce) {
        return failed(errno);
    }
    // SAFETY: the caller's options.
    let ece = unsafe { &*ece };
    if ece.vendor_id == 0 || ece.comp_mask != 0 {
        return failed(libc::EINVAL);
    }
    let ece = Ece {
        vendor_id: ece.vendor_id,
        options: ece.options,
    };
    outcome(id.call(|manager| manager.set_ece(id.num(), ece)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_remote_ece(raw: *mut ffi::rdma_cm_id, out: *mut ibv_ece) -> c_int {
    // SAFETY: a live identifier.
    let id = unsafe { Id::borrow(raw) };
    if let Err(errno) = id.port().attempt(Call::GetRemoteEce) {
        return failed(errno);
    }
    let Ece { vendor_id, options } = id.extra().remote_ece;
    let ece = ibv_ece {
        vendor_id,
        options,
        comp_mask: 0,
    };
    // SAFETY: the caller's place.
    unsafe { *out = ece };
    0
}
