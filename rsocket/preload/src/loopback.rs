//! Sockets at loopback addresses: TCP and UDP, as no RDMA device has such an address.
//!
//! A `bind` or `connect` to a loopback address, and a datagram sent to one, replace an rsocket with a socket of the
//! kernel, before any call of the rsocket. Both ends decide by the address alone, so that they always agree.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use interpose::{load, os};
use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use rsocket_capi as capi;

use crate::{datagrams::turn_to_udp, replacement::turn_to_tcp, sockets::Name, table::Rsocket};

/// Reason of the fallback for the log.
const WHY: &str = "a loopback address";

/// Returns the IP address of a socket address, with a mapped one as IPv4.
///
/// # Safety
/// `addr` is null, or `len` bytes of `addr` are readable.
unsafe fn ip(addr: *const sockaddr, len: socklen_t) -> Option<IpAddr> {
    let has = |size: usize| usize::try_from(len).is_ok_and(|len| len >= size);
    if !has(size_of::<sockaddr_in>()) {
        return None;
    }
    // SAFETY: null, or readable for the size of an IPv4 address, which begins with the family.
    let v4 = unsafe { load(addr.cast::<sockaddr_in>()) }?;
    match c_int::from(v4.sin_family) {
        libc::AF_INET => Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into()),
        libc::AF_INET6 if has(size_of::<sockaddr_in6>()) => {
            // SAFETY: not null, and readable for the size of an IPv6 address.
            let v6 = unsafe { load(addr.cast::<sockaddr_in6>()) }?;
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).to_canonical())
        }
        _ => None,
    }
}

/// Whether an address is a loopback address, such as 127.0.0.1, `::1` and `::ffff:127.0.0.1`.
///
/// # Safety
/// As for [`ip`].
pub(crate) unsafe fn is_loopback(addr: *const sockaddr, len: socklen_t) -> bool {
    // SAFETY: as the caller promises.
    unsafe { ip(addr, len) }.is_some_and(|ip| ip.is_loopback())
}

/// Whether a peer at an address is at loopback. To the kernel, the unspecified address of a peer is the loopback
/// address.
///
/// # Safety
/// As for [`ip`].
pub(crate) unsafe fn is_peer(addr: *const sockaddr, len: socklen_t) -> bool {
    // SAFETY: as the caller promises.
    unsafe { ip(addr, len) }.is_some_and(|ip| ip.is_loopback() || ip.is_unspecified())
}

/// Whether `bind` may succeed. In other states, the rsocket has the error.
pub(crate) fn may_bind(rsocket: &Rsocket) -> bool {
    Name::of(rsocket).is_some_and(|name| !name.has_port()) && may_connect(rsocket)
}

/// Whether `connect` may succeed. In other states, the rsocket has the error.
pub(crate) fn may_connect(rsocket: &Rsocket) -> bool {
    capi::socket_of(rsocket.fd()).is_some_and(|socket| {
        socket.is_datagram()
            || !socket.is_listening() && !socket.is_connecting() && !socket.is_connected()
    })
}

/// Replaces an rsocket with a TCP or UDP socket, bound as before.
///
/// # Errors
/// Of the new socket, such as `EMFILE`; the descriptor stays an rsocket.
pub(crate) fn leave_rdma(fd: c_int, rsocket: Arc<Rsocket>) -> io::Result<()> {
    if capi::socket_of(rsocket.fd()).is_some_and(|socket| socket.is_datagram()) {
        return match turn_to_udp(fd, rsocket, WHY) {
            true => Ok(()),
            false => Err(os(libc::EBADF)),
        };
    }
    let bound = Name::of(&rsocket).filter(Name::has_port);
    turn_to_tcp(fd, rsocket, bound.as_ref(), WHY)
}

/// Returns the rsocket to send a message with, or `None` if it was a datagram socket and is now a UDP socket, as the
/// message's peer is at loopback.
///
/// # Safety
/// As for [`ip`].
pub(crate) unsafe fn sender(
    fd: c_int,
    rsocket: Arc<Rsocket>,
    to: *const sockaddr,
    len: socklen_t,
) -> Option<Arc<Rsocket>> {
    let is_datagram = capi::socket_of(rsocket.fd()).is_some_and(|socket| socket.is_datagram());
    // SAFETY: as the caller promises.
    if is_datagram && unsafe { is_peer(to, len) } && turn_to_udp(fd, Arc::clone(&rsocket), WHY) {
        return None;
    }
    Some(rsocket)
}
