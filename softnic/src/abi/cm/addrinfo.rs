//! Name resolution: `rdma_getaddrinfo`.

use std::{
    ffi::{c_char, c_int},
    ptr,
};

use ibverbs_sys::ibv_qp_type;
use libc::sockaddr_storage;
use rdmacm_sys as ffi;

use super::{
    address::{self, Address},
    failed,
};
use crate::{
    abi::object::{Plain, zeroed},
    cm::PortSpace,
};

// SAFETY: integers and raw pointers.
unsafe impl Plain for ffi::rdma_addrinfo {}

// SAFETY: integers and raw pointers.
unsafe impl Plain for libc::addrinfo {}

/// Copies an address to the heap, and returns the pointer and the length.
fn boxed(addr: Address, space: PortSpace) -> (*mut libc::sockaddr, libc::socklen_t) {
    let len = match addr {
        Address::Ip(addr) if addr.is_ipv4() => size_of::<libc::sockaddr_in>(),
        Address::Ip(_) => size_of::<libc::sockaddr_in6>(),
        Address::Ib(_) => size_of::<ffi::sockaddr_ib>(),
    };
    let storage = Box::into_raw(Box::new(address::storage(addr, space)));
    (storage.cast(), libc::socklen_t::try_from(len).unwrap_or(0))
}

/// The first address of a name. `RAI_FAMILY` restricts the family to the one of the hints. `Err` is a code of
/// `getaddrinfo(3)`.
///
/// # Safety
/// - The names are null, or terminated strings.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    (flags, family): (c_int, c_int),
) -> Result<Address, c_int> {
    let has_family = flags & ffi::RAI_FAMILY != 0;
    let is_ib = has_family && family == ffi::AF_IB;
    let mut hints: libc::addrinfo = zeroed();
    hints.ai_socktype = libc::SOCK_STREAM;
    hints.ai_family = match (has_family, is_ib) {
        (_, true) => libc::AF_INET6,
        (true, false) => family,
        (false, false) => libc::AF_UNSPEC,
    };
    if flags & ffi::RAI_PASSIVE != 0 {
        hints.ai_flags |= libc::AI_PASSIVE;
    }
    if flags & ffi::RAI_NUMERICHOST != 0 {
        hints.ai_flags |= libc::AI_NUMERICHOST;
    }
    let mut list = ptr::null_mut();
    // SAFETY: names as promised by the caller; hints and result are local variables.
    let ret = unsafe { libc::getaddrinfo(node, service, &raw const hints, &raw mut list) };
    if ret != 0 {
        return Err(ret);
    }
    // SAFETY: the list has at least one entry when the call has succeeded.
    let first = unsafe { (*list).ai_addr };
    // SAFETY: an address of the list.
    let addr = unsafe { address::read(first) };
    // SAFETY: from `getaddrinfo`, and freed once, here.
    unsafe { libc::freeaddrinfo(list) };
    match addr {
        Some(addr) if is_ib => Ok(Address::Ib(addr.ip())),
        addr => addr.ok_or(libc::EAI_FAMILY),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const ffi::rdma_addrinfo,
    found: *mut *mut ffi::rdma_addrinfo,
) -> c_int {
    // SAFETY: null, or the caller's hints.
    let hints = unsafe { hints.as_ref() };
    if node.is_null() && service.is_null() && hints.is_none() {
        return failed(libc::EINVAL);
    }
    let none = zeroed();
    let hints = hints.unwrap_or(&none);
    // SAFETY: null, or the caller's address.
    let source = unsafe { address::read(hints.ai_src_addr) };
    let mut addr = None;
    if !node.is_null() || !service.is_null() {
        // SAFETY: the caller's names are null or terminated.
        match unsafe { look_up(node, service, (hints.ai_flags, hints.ai_family)) } {
            Ok(found) => addr = Some(found),
            Err(code) => return code,
        }
    } else if !hints.ai_dst_addr.is_null() {
        // SAFETY: the caller's address.
        addr = unsafe { address::read(hints.ai_dst_addr) };
    }
    // SAFETY: the caller's place.
    unsafe { *found = Box::into_raw(Box::new(information(hints, addr, source))) };
    0
}

/// The answer for an address, which is the source of a passive side, and for the source of an active one.
fn information(
    hints: &ffi::rdma_addrinfo,
    addr: Option<Address>,
    source: Option<Address>,
) -> ffi::rdma_addrinfo {
    let space = u32::try_from(hints.ai_port_space).ok();
    let space = space
        .and_then(PortSpace::from_number)
        .unwrap_or(PortSpace::Tcp);
    let mut info: ffi::rdma_addrinfo = zeroed();
    info.ai_flags = hints.ai_flags;
    info.ai_port_space = space.number().cast_signed();
    info.ai_qp_type = match (hints.ai_qp_type, space) {
        (0, PortSpace::Udp | PortSpace::IpoIb) => ibv_qp_type::IBV_QPT_UD.0.cast_signed(),
        (0, PortSpace::Tcp | PortSpace::Ib) => ibv_qp_type::IBV_QPT_RC.0.cast_signed(),
        (kind, _) => kind,
    };
    info.ai_family = match addr {
        None => hints.ai_family,
        Some(Address::Ib(_)) => ffi::AF_IB,
        Some(Address::Ip(addr)) if addr.is_ipv4() => libc::AF_INET,
        Some(Address::Ip(_)) => libc::AF_INET6,
    };
    let is_passive = info.ai_flags & ffi::RAI_PASSIVE != 0;
    let (source, peer) = match is_passive {
        true => (addr.or(source), None),
        false => (source, addr),
    };
    if let Some(source) = source {
        (info.ai_src_addr, info.ai_src_len) = boxed(source, space);
    }
    if let Some(peer) = peer {
        (info.ai_dst_addr, info.ai_dst_len) = boxed(peer, space);
    }
    info
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_freeaddrinfo(info: *mut ffi::rdma_addrinfo) {
    // As librdmacm: `rstream` of rdma-core 65 frees a list that it has not requested.
    if info.is_null() {
        return;
    }
    // SAFETY: from `rdma_getaddrinfo`, which makes lists of one entry; freed once, here.
    let info = unsafe { Box::from_raw(info) };
    for addr in [info.ai_src_addr, info.ai_dst_addr] {
        if !addr.is_null() {
            // SAFETY: a box of this size, from `rdma_getaddrinfo`, and freed once.
            drop(unsafe { Box::from_raw(addr.cast::<sockaddr_storage>()) });
        }
    }
}
