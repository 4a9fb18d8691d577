//! Addresses, between C and the connection manager.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use rdmacm_sys::{self as ffi, sockaddr_ib};

use crate::cm::PortSpace;

/// An address of C: an IP address, or a GID with a service id, the form of `AF_IB` for the same address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::abi) enum Address {
    Ip(SocketAddr),
    Ib(SocketAddr),
}

impl Address {
    /// The IP address and the port.
    pub(in crate::abi) fn ip(self) -> SocketAddr {
        match self {
            Self::Ip(addr) | Self::Ib(addr) => addr,
        }
    }
}

/// Reads a socket address; `None` for null or an unknown family.
///
/// # Safety
/// - `addr` is null, or points to a complete address of its family.
pub(in crate::abi) unsafe fn read(addr: *const sockaddr) -> Option<Address> {
    if addr.is_null() {
        return None;
    }
    // SAFETY: an address begins with its family.
    let family = unsafe { addr.cast::<libc::sa_family_t>().read_unaligned() };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: an address of that family.
            let raw = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
            let ip = u32::from_be(raw.sin_addr.s_addr).into();
            Some(Address::Ip(
                SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into(),
            ))
        }
        libc::AF_INET6 => {
            // SAFETY: an address of that family.
            let raw = unsafe { addr.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let port = u16::from_be(raw.sin6_port);
            Some(Address::Ip(
                SocketAddrV6::new(ip, port, 0, raw.sin6_scope_id).into(),
            ))
        }
        ffi::AF_IB => {
            // SAFETY: an address of that family.
            let raw = unsafe { addr.cast::<sockaddr_ib>().read_unaligned() };
            // SAFETY: each variant of the union is 16 bytes of integers, so any bytes are a value.
            let gid = unsafe { raw.sib_addr.ib_u.uib_addr8 };
            let [.., high, low] = (raw.sib_sid.to_ne() & raw.sib_sid_mask.to_ne()).to_be_bytes();
            let ip = Ipv6Addr::from(gid).to_canonical();
            Some(Address::Ib(SocketAddr::new(
                ip,
                u16::from_be_bytes([high, low]),
            )))
        }
        _ => None,
    }
}

/// Converts an address to C.
pub(in crate::abi) fn storage(addr: Address, space: PortSpace) -> sockaddr_storage {
    // SAFETY: all fields are integers, so zero is a value.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let out = &raw mut storage;
    match addr {
        Address::Ip(SocketAddr::V4(addr)) => {
            let raw = sockaddr_in {
                sin_family: family(libc::AF_INET),
                sin_port: addr.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from(*addr.ip()).to_be(),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is large and aligned enough for each address.
            unsafe { out.cast::<sockaddr_in>().write(raw) };
        }
        Address::Ip(SocketAddr::V6(addr)) => {
            let raw = sockaddr_in6 {
                sin6_family: family(libc::AF_INET6),
                sin6_port: addr.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr {
                    s6_addr: addr.ip().octets(),
                },
                sin6_scope_id: addr.scope_id(),
            };
            // SAFETY: as above.
            unsafe { out.cast::<sockaddr_in6>().write(raw) };
        }
        Address::Ib(addr) => {
            // SAFETY: as above.
            unsafe { out.cast::<sockaddr_ib>().write(ib(addr, space)) };
        }
    }
    storage
}

/// The GID and the service id of a `sockaddr_ib`.
pub(super) fn ib(addr: SocketAddr, space: PortSpace) -> sockaddr_ib {
    let mut raw = sockaddr_ib::zeroed();
    raw.sib_family = family(ffi::AF_IB);
    raw.sib_pkey = 0xffff.into();
    let gid = crate::abi::query::gid(addr.ip());
    raw.sib_addr.ib_u.uib_addr8 = match addr {
        SocketAddr::V6(_) | SocketAddr::V4(_) if addr.ip().is_unspecified() => [0; 16],
        _ => gid.to_raw(),
    };
    raw.sib_sid = (u64::from(space.number()) << 16 | u64::from(addr.port())).into();
    raw.sib_sid_mask = match addr.port() {
        0 => ffi::RDMA_IB_IP_PS_MASK,
        _ => u64::MAX,
    }
    .into();
    raw
}

fn family(family: i32) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_round_trips_through_c() {
        for text in ["10.9.0.1:7", "[fd00::1]:65535", "0.0.0.0:0"] {
            let addr = Address::Ip(text.parse().unwrap());
            let raw = storage(addr, PortSpace::Tcp);
            // SAFETY: a whole address.
            assert_eq!(unsafe { read((&raw const raw).cast()) }, Some(addr));
        }
        let addr = Address::Ib("[fd00::1]:7".parse().unwrap());
        let raw = storage(addr, PortSpace::Tcp);
        // SAFETY: a whole address.
        assert_eq!(unsafe { read((&raw const raw).cast()) }, Some(addr));
        // SAFETY: null is allowed.
        assert_eq!(unsafe { read(std::ptr::null()) }, None);
    }
}
