//! Attributes for the transitions of a program's queue pair.

use std::ffi::c_int;

use ibverbs_sys::ibv_qp_attr;
use rdmacm_sys as ffi;

use super::{errno, failed, id::Id};
use crate::{
    abi::{
        attributes::{absent, raw_attributes, state},
        object::Object,
    },
    failure::Call,
};

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_init_qp_attr(
    raw: *mut ffi::rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: a live identifier.
    let id = unsafe { Id::borrow(raw) };
    if let Err(errno) = id.port().attempt(Call::InitQpAttr) {
        return failed(errno);
    }
    // SAFETY: the caller's attributes.
    let Some(to) = state(unsafe { (*attr).qp_state }) else {
        return failed(libc::EINVAL);
    };
    match id
        .port()
        .look(|nic| nic.manager.qp_attributes(id.num(), to))
    {
        Ok((attributes, set)) => {
            // SAFETY: the caller's attributes.
            unsafe { *attr = raw_attributes(&id.port(), to, &attributes) };
            // SAFETY: live; the field does not change after the creation.
            let absent = absent(unsafe { (*raw).qp_type });
            // SAFETY: the caller's place.
            unsafe { *mask = set.without(absent).0.cast_signed() };
            0
        }
        Err(error) => failed(errno(error)),
    }
}
