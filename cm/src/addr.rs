//! Socket addresses, between C and Rust.

use std::{
    mem,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
};

/// A socket address as C has it, with room for every family.
pub(crate) struct RawAddr(libc::sockaddr_storage);

impl RawAddr {
    /// No address.
    pub(crate) fn zeroed() -> Self {
        // SAFETY: every field of a `sockaddr_storage` is an integer, for which zero is a value.
        Self(unsafe { mem::zeroed() })
    }

    /// How many bytes of it the family has.
    pub(crate) fn len(&self) -> libc::socklen_t {
        let len = if self.0.ss_family == family(libc::AF_INET) {
            size_of::<libc::sockaddr_in>()
        } else {
            size_of::<libc::sockaddr_in6>()
        };
        libc::socklen_t::try_from(len).unwrap_or(0)
    }

    pub(crate) fn new(addr: SocketAddr) -> Self {
        let mut raw = Self::zeroed();
        match addr {
            SocketAddr::V4(addr) => {
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
            SocketAddr::V6(addr) => {
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

    /// The address, for a call. It is `mut` because C says so; librdmacm only reads it.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.0).cast()
    }
}

/// Reads an address that C has written. The result is `None` for a family other than IP.
///
/// # Safety
/// - `addr` points to a `sockaddr_storage` that is valid for reads.
pub(crate) unsafe fn read(addr: *const libc::sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: as the caller promised.
    let found = unsafe { (*addr).ss_family };
    if found == family(libc::AF_INET) {
        // SAFETY: as the caller promised, and the family says that it is such an address.
        let v4 = unsafe { addr.cast::<libc::sockaddr_in>().read() };
        let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
        Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
    } else if found == family(libc::AF_INET6) {
        // SAFETY: as the caller promised, and the family says that it is such an address.
        let v6 = unsafe { addr.cast::<libc::sockaddr_in6>().read() };
        let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
        let port = u16::from_be(v6.sin6_port);
        Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
    } else {
        None
    }
}

fn family(family: i32) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_to_c_and_back() {
        let v6 = SocketAddrV6::new("fe80::1".parse().unwrap(), 7471, 5, 3);
        for addr in [
            "10.9.0.1:12345".parse().unwrap(),
            "[::]:0".parse().unwrap(),
            v6.into(),
        ] {
            let raw = RawAddr::new(addr);
            // SAFETY: `raw.0` is a local address.
            assert_eq!(unsafe { read(&raw const raw.0) }, Some(addr));
        }
    }

    #[test]
    fn other_families_are_no_address() {
        let mut raw = RawAddr::new("10.9.0.1:1".parse().unwrap());
        raw.0.ss_family = family(libc::AF_UNIX);
        // SAFETY: `raw.0` is a local address.
        assert_eq!(unsafe { read(&raw const raw.0) }, None);
    }
}
