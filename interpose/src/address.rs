//! Addresses as C has them.

#![forbid(unsafe_code)]

use std::{net::SocketAddr, ops::Deref};

const V4_SIZE: usize = size_of::<libc::sockaddr_in>();
const V6_SIZE: usize = size_of::<libc::sockaddr_in6>();

/// The bytes of a `sockaddr_in` or a `sockaddr_in6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    bytes: [u8; V6_SIZE],
    len: usize,
}

impl Deref for Encoded {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// An address as C has it.
#[must_use]
pub fn encode(addr: SocketAddr) -> Encoded {
    let mut bytes = [0; V6_SIZE];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let family = |family| libc::sa_family_t::try_from(family).unwrap_or_default();
    put(2, &addr.port().to_be_bytes());
    let (family, len) = match addr {
        SocketAddr::V4(addr) => {
            put(4, &addr.ip().octets());
            (family(libc::AF_INET), V4_SIZE)
        }
        SocketAddr::V6(addr) => {
            put(4, &addr.flowinfo().to_be_bytes());
            put(8, &addr.ip().octets());
            put(24, &addr.scope_id().to_ne_bytes());
            (family(libc::AF_INET6), V6_SIZE)
        }
    };
    put(0, &family.to_ne_bytes());
    Encoded { bytes, len }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_what_c_has() {
        let mut v4 = libc::AF_INET.to_ne_bytes()[..2].to_vec();
        v4.extend([1, 2, 10, 9, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encode("10.9.0.1:258".parse().unwrap())[..], v4);
        let mut v6 = libc::AF_INET6.to_ne_bytes()[..2].to_vec();
        v6.extend([1, 2, 0, 0, 0, 0, 0xfe, 0x80]);
        v6.extend([0; 13]);
        v6.push(1);
        v6.extend(3_u32.to_ne_bytes());
        assert_eq!(encode("[fe80::1%3]:258".parse().unwrap())[..], v6);
    }
}
