//! Binding, resolving and listening.

use std::{ffi::c_int, time::Duration};

use libc::sockaddr;
use rdmacm_sys as ffi;

use super::{
    address::{self, Address},
    endpoint, failed,
    id::Id,
    outcome,
};
use crate::{abi::object::Object, failure::Call};

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_bind_addr(raw: *mut ffi::rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: a live identifier.
    let id = unsafe { Id::borrow(raw) };
    // SAFETY: the caller's address.
    let addr = unsafe { address::read(addr) };
    if let Some(Address::Ip(addr)) = addr {
        id.move_to(addr.ip());
    }
    if let Err(errno) = id.port().attempt(Call::BindAddr) {
        return failed(errno);
    }
    let addr = match addr {
        Some(Address::Ip(addr)) => addr,
        // As on Linux, no `RoCE` device can be bound by GID.
        Some(Address::Ib(_)) => return failed(libc::ENODEV),
        None => return failed(libc::EINVAL),
    };
    let ret = outcome(id.call(|manager| manager.bind(id.num(), addr)));
    id.refresh();
    ret
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_resolve_addr(
    raw: *mut ffi::rdma_cm_id,
    source: *mut sockaddr,
    peer: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: a live identifier.
    let id = unsafe { Id::borrow(raw) };
    // SAFETY: null, or the caller's address.
    let source = unsafe { address::read(source) };
    if let Some(source) = source {
        id.move_to(source.ip().ip());
    }
    if let Err(errno) = id.port().attempt(Call::ResolveAddr) {
        return failed(errno);
    }
    // SAFETY: the caller's address.
    let Some(peer) = (unsafe { address::read(peer) }) else {
        return failed(libc::EINVAL);
    };
    let reach = id.port().reach(peer.ip().ip());
    let timeout = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
    let addrs = (source.map(Address::ip), peer.ip());
    id.extra().is_ib = matches!(peer, Address::Ib(_));
    let ret = outcome(id.port().call(|nic, now| {
        nic.manager
            .resolve_addr(id.num(), addrs, reach, timeout, now)
    }));
    // SAFETY: a live identifier.
    unsafe { endpoint::finish(raw, ret) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_resolve_route(
    raw: *mut ffi::rdma_cm_id,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: a live identifier.
    let id = unsafe { Id::borrow(raw) };
    if let Err(errno) = id.port().attempt(Call::ResolveRoute) {
        return failed(errno);
    }
    if id.extra().is_ib {
        // As on Linux, `RoCE` has no routes between GIDs.
        return failed(libc::EINVAL);
    }
    let ret = outcome(id.call(|manager| manager.resolve_route(id.num())));
    // SAFETY: a live identifier.
    unsafe { endpoint::finish(raw, ret) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_listen(raw: *mut ffi::rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: a live identifier.
    let id = unsafe { Id::borrow(raw) };
    if let Err(errno) = id.port().attempt(Call::Listen) {
        return failed(errno);
    }
    let backlog = usize::try_from(backlog).unwrap_or(0);
    let ret = outcome(id.call(|manager| manager.listen(id.num(), backlog)));
    id.refresh();
    ret
}
