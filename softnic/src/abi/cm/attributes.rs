//! Attributes for the transitions of a program's queue pair.

use std::ffi::c_int;

use ibverbs_sys::ibv_qp_attr;
use rdmacm_sys as ffi;

use super::{errno, failed, id::Id};
use crate::abi::{
    attributes::{raw_attributes, state},
    object::Object,
};

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_init_qp_attr(
    raw: *mut ffi::rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: a live identifier.
    let id = unsafe { Id::borrow(raw) };
    // SAFETY: the caller's attributes.
    let Some(to) = state(unsafe { (*attr).qp_state }) else {
        return failed(libc::EINVAL);
    };
    match id.port.look(|nic| nic.manager.qp_attributes(id.num, to)) {
        Ok((attributes, given)) => {
            // SAFETY: the caller's attributes.
            unsafe { *attr = raw_attributes(&id.port, to, &attributes) };
            // SAFETY: the caller's place.
            unsafe { *mask = given.0.cast_signed() };
            0
        }
        Err(error) => failed(errno(error)),
    }
}
