//! Attributes for the transitions of a program's queue pair.

use std::ffi::c_int;

use ibverbs_sys::{ibv_qp_attr, ibv_qp_type};
use rdmacm_sys as ffi;

use super::{errno, failed, id::Id};
use crate::{
    abi::{
        attributes::{raw_attributes, state},
        object::Object,
    },
    engine::AttributeMask,
    failure::Call,
};

/// Attributes that one end of an extended connection lacks: the sending end answers no requests, and the receiving end
/// sends none.
fn absent(kind: ibv_qp_type) -> AttributeMask {
    match kind {
        ibv_qp_type::IBV_QPT_XRC_SEND => {
            AttributeMask::MAX_DEST_RD_ATOMIC | AttributeMask::MIN_RNR_TIMER
        }
        ibv_qp_type::IBV_QPT_XRC_RECV => {
            AttributeMask::RETRY_COUNT | AttributeMask::RNR_RETRY | AttributeMask::MAX_RD_ATOMIC
        }
        _ => AttributeMask(0),
    }
}

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
            unsafe { *mask = (set.0 & !absent.0).cast_signed() };
            0
        }
        Err(error) => failed(errno(error)),
    }
}
