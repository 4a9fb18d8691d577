//! Memberships in multicast groups.

use std::ffi::{c_int, c_void};

use libc::sockaddr;
use rdmacm_sys as ffi;

use super::{
    address, endpoint, errno, failed,
    id::{Id, Membership},
    outcome, qp,
};
use crate::{
    abi::{object::Object, query::gid},
    failure::Call,
};

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_join_multicast_ex(
    raw: *mut ffi::rdma_cm_id,
    attr: *mut ffi::rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    // SAFETY: a live identifier.
    let id = unsafe { Id::borrow(raw) };
    if let Err(errno) = id.port().attempt(Call::JoinMulticastEx) {
        return failed(errno);
    }
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    // SAFETY: the caller's address.
    unsafe { join(raw, attr.addr, context) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_join_multicast(
    raw: *mut ffi::rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's identifier and address.
    unsafe { join(raw, addr, context) }
}

/// Joins a group.
///
/// # Safety
/// - `raw` is a live identifier, and `addr` null or an address.
unsafe fn join(raw: *mut ffi::rdma_cm_id, addr: *const sockaddr, context: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let id = unsafe { Id::borrow(raw) };
    // SAFETY: the caller's promise.
    let Some(group) = (unsafe { address::read(addr) }) else {
        return failed(libc::EINVAL);
    };
    // The event may be taken as soon as the event is raised, and refers to the membership.
    let mut extra = id.extra();
    match id.call(|manager| manager.join_multicast(id.num(), group.ip().ip())) {
        Ok(membership) => {
            extra.groups.push(Membership {
                group,
                id: membership,
                context,
            });
            drop(extra);
            // SAFETY: the caller's promise.
            unsafe { endpoint::finish(raw, 0) }
        }
        Err(error) => failed(errno(error)),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_leave_multicast(raw: *mut ffi::rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: a live identifier.
    let id = unsafe { Id::borrow(raw) };
    if let Err(errno) = id.port().attempt(Call::LeaveMulticast) {
        return failed(errno);
    }
    // SAFETY: the caller's address.
    let Some(group) = (unsafe { address::read(addr) }) else {
        return failed(libc::EINVAL);
    };
    let mut extra = id.extra();
    let found = extra.groups.iter().position(|joined| joined.group == group);
    let Some(found) = found else {
        return failed(libc::EADDRNOTAVAIL);
    };
    let Membership {
        group,
        id: membership,
        ..
    } = extra.groups.remove(found);
    // SAFETY: a live identifier.
    unsafe { qp::detach(raw, &gid(group.ip().ip())) };
    let _obsolete = extra.queue.remove(|event| event.is_of_group(membership));
    outcome(id.call(|manager| manager.leave_multicast(id.num(), membership)))
}
