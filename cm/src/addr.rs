//! Addresses, and conversion between C and Rust.

use std::{
    fmt, mem,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
};

use rdmacm_sys as ffi;

use crate::ib_addr::{self, IbAddr};

/// Address of an identifier, local or remote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Addr {
    /// An IP address and a port.
    Ip(SocketAddr),
    /// An InfiniBand address (`AF_IB`).
    Ib(IbAddr),
}

impl Addr {
    /// The IP address and port, unless this is an InfiniBand address.
    pub fn ip(self) -> Option<SocketAddr> {
        match self {
            Self::Ip(addr) => Some(addr),
            Self::Ib(_) => None,
        }
    }

    /// The InfiniBand address, unless this is an IP address.
    pub fn ib(self) -> Option<IbAddr> {
        match self {
            Self::Ip(_) => None,
            Self::Ib(addr) => Some(addr),
        }
    }
}

impl From<SocketAddr> for Addr {
    fn from(addr: SocketAddr) -> Self {
        Self::Ip(addr)
    }
}

impl From<IbAddr> for Addr {
    fn from(addr: IbAddr) -> Self {
        Self::Ib(addr)
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(addr) => addr.fmt(f),
            Self::Ib(addr) => write!(f, "[{}] service {:#x}", addr.gid, addr.service_id),
        }
    }
}

/// An address in C's representation, with room for every family.
pub(crate) struct RawAddr(libc::sockaddr_storage);

impl RawAddr {
    /// An unspecified address.
    pub(crate) fn zeroed() -> Self {
        // SAFETY: every field of a `sockaddr_storage` is an integer, so all zeros are a valid value.
        Self(unsafe { mem::zeroed() })
    }

    /// Length of the address in bytes, by family.
    pub(crate) fn len(&self) -> libc::socklen_t {
        let len = if self.0.ss_family == family(libc::AF_INET) {
            size_of::<libc::sockaddr_in>()
        } else if self.0.ss_family == ib_addr::FAMILY {
            size_of::<ffi::sockaddr_ib>()
        } else {
            size_of::<libc::sockaddr_in6>()
        };
        libc::socklen_t::try_from(len).unwrap_or(0)
    }

    pub(crate) fn new(addr: impl Into<Addr>) -> Self {
        let mut raw = Self::zeroed();
        match addr.into() {
            Addr::Ib(addr) => {
                // SAFETY: a `sockaddr_storage` is large and aligned enough for every address.
                unsafe {
                    (&raw mut raw.0)
                        .cast::<ffi::sockaddr_ib>()
                        .write(addr.to_raw())
                };
            }
            Addr::Ip(SocketAddr::V4(addr)) => {
                let v4 = libc::sockaddr_in {
                    sin_family: family(libc::AF_INET),
                    sin_port: addr.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(addr.ip().octets()),
                    },
                    sin_zero: [0; 8],
                };
                // SAFETY: a `sockaddr_storage` is large and aligned enough for every address.
                unsafe { (&raw mut raw.0).cast::<libc::sockaddr_in>().write(v4) };
            }
            Addr::Ip(SocketAddr::V6(addr)) => {
                let v6 = libc::sockaddr_in6 {
                    sin6_family: family(libc::AF_INET6),
                    sin6_port: addr.port().to_be(),
                    sin6_flowinfo: addr.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: addr.ip().octets(),
                    },
                    sin6_scope_id: addr.scope_id(),
                };
                // SAFETY: a `sockaddr_storage` is large and aligned enough for every address.
                unsafe { (&raw mut raw.0).cast::<libc::sockaddr_in6>().write(v6) };
            }
        }
        raw
    }

    /// Pointer to the address, for a call. `mut` by C's signature only; librdmacm just reads the address.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.0).cast()
    }
}

/// Reads an address written by C. Returns `None` for an unknown family, including the unspecified one.
///
/// # Safety
/// - `addr` points to a `sockaddr_storage` valid for reads.
pub(crate) unsafe fn read(addr: *const libc::sockaddr_storage) -> Option<Addr> {
    // SAFETY: as the caller promised.
    let found = unsafe { (*addr).ss_family };
    if found == family(libc::AF_INET) {
        // SAFETY: as the caller promised; the family determines this type.
        let v4 = unsafe { addr.cast::<libc::sockaddr_in>().read() };
        let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
        Some(Addr::Ip(
            SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into(),
        ))
    } else if found == family(libc::AF_INET6) {
        // SAFETY: as the caller promised; the family determines this type.
        let v6 = unsafe { addr.cast::<libc::sockaddr_in6>().read() };
        let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
        let port = u16::from_be(v6.sin6_port);
        let addr = SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id);
        Some(Addr::Ip(addr.into()))
    } else if found == ib_addr::FAMILY {
        // SAFETY: as the caller promised; the family determines this type.
        let ib = unsafe { addr.cast::<ffi::sockaddr_ib>().read() };
        Some(Addr::Ib(IbAddr::from_raw(&ib)))
    } else {
        None
    }
}

fn family(family: i32) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use verbs::Gid;

    use super::*;
    use crate::port_space::PortSpace;

    #[test]
    fn addr_round_trips_through_c() {
        let v6 = SocketAddrV6::new("fe80::1".parse().unwrap(), 7471, 5, 3);
        for (addr, len) in [
            (Addr::Ip("10.9.0.1:12345".parse().unwrap()), 16),
            (Addr::Ip("[::]:0".parse().unwrap()), 28),
            (Addr::Ip(v6.into()), 28),
            (
                Addr::Ib(IbAddr::new(Gid([7; 16]), PortSpace::Tcp, 7471)),
                48,
            ),
        ] {
            let raw = RawAddr::new(addr);
            assert_eq!(raw.len(), len);
            // SAFETY: `raw.0` is a local address.
            assert_eq!(unsafe { read(&raw const raw.0) }, Some(addr));
        }
    }

    #[test]
    fn read_of_another_family_is_none() {
        let mut raw = RawAddr::new(SocketAddr::from(([10, 9, 0, 1], 1)));
        raw.0.ss_family = family(libc::AF_UNIX);
        // SAFETY: `raw.0` is a local address.
        assert_eq!(unsafe { read(&raw const raw.0) }, None);
    }

    #[test]
    fn addr_debug_shows_the_address() {
        let ip: SocketAddr = "10.9.0.1:7471".parse().unwrap();
        let ib = IbAddr::new(Gid::from(ip.ip()), PortSpace::Tcp, 7471);
        let (of_ip, of_ib) = (Addr::from(ip), Addr::from(ib));
        assert_eq!((of_ip.ip(), of_ip.ib()), (Some(ip), None));
        assert_eq!((of_ib.ip(), of_ib.ib()), (None, Some(ib)));
        assert_eq!(of_ip.to_string(), "10.9.0.1:7471");
        assert_eq!(of_ib.to_string(), "[::ffff:10.9.0.1] service 0x1061d2f");
    }
}
