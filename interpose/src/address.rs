//! Encoding of addresses as `sockaddr`.

#![forbid(unsafe_code)]

use std::net::SocketAddr;

use smallvec::SmallVec;

const V4_SIZE: usize = size_of::<libc::sockaddr_in>();
const V6_SIZE: usize = size_of::<libc::sockaddr_in6>();

/// The bytes of a `sockaddr_in` or `sockaddr_in6`.
pub type Encoded = SmallVec<[u8; V6_SIZE]>;

/// An address as C has it.
#[must_use]
pub fn encode(addr: SocketAddr) -> Encoded {
    let (family, size) = match addr {
        SocketAddr::V4(_) => (libc::AF_INET, V4_SIZE),
        SocketAddr::V6(_) => (libc::AF_INET6, V6_SIZE),
    };
    let family = libc::sa_family_t::try_from(family).unwrap_or_default();
    let mut bytes = [0; V6_SIZE];
    bytes[..2].copy_from_slice(&family.to_ne_bytes());
    bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
    match addr {
        SocketAddr::V4(addr) => bytes[4..8].copy_from_slice(&addr.ip().octets()),
        SocketAddr::V6(addr) => {
            bytes[4..8].copy_from_slice(&addr.flowinfo().to_be_bytes());
            bytes[8..24].copy_from_slice(&addr.ip().octets());
            bytes[24..].copy_from_slice(&addr.scope_id().to_ne_bytes());
        }
    }
    Encoded::from_buf_and_len(bytes, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encode_matches_sockaddr_layout() {
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
