//! Encoding and decoding of `sockaddr`.

use std::{
    io,
    mem::offset_of,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
};

use interpose::os;
use libc::{c_int, sockaddr_in, sockaddr_in6};

/// Copies a field out of a `sockaddr`.
fn part<const N: usize>(raw: &[u8], at: usize) -> io::Result<[u8; N]> {
    let bytes = raw.get(at..at + N).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| os(libc::EINVAL))
}

/// Decodes an address; fails with `wrong` for another family.
pub(crate) fn read(raw: &[u8], wrong: c_int) -> io::Result<SocketAddr> {
    let family = c_int::from(u16::from_ne_bytes(part(raw, 0)?));
    match family {
        libc::AF_INET => {
            let port = u16::from_be_bytes(part(raw, offset_of!(sockaddr_in, sin_port))?);
            let ip: [u8; 4] = part(raw, offset_of!(sockaddr_in, sin_addr))?;
            // The whole structure must be present.
            part::<{ size_of::<sockaddr_in>() }>(raw, 0)?;
            Ok((Ipv4Addr::from(ip), port).into())
        }
        libc::AF_INET6 => {
            let port = u16::from_be_bytes(part(raw, offset_of!(sockaddr_in6, sin6_port))?);
            let ip: [u8; 16] = part(raw, offset_of!(sockaddr_in6, sin6_addr))?;
            let scope = u32::from_ne_bytes(part(raw, offset_of!(sockaddr_in6, sin6_scope_id))?);
            Ok(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope).into())
        }
        _ => Err(os(wrong)),
    }
}

/// The address of an unbound socket.
pub(crate) const UNSPECIFIED: [u8; size_of::<sockaddr_in>()] = [0; size_of::<sockaddr_in>()];

#[cfg(test)]
mod tests {
    use interpose::encode;

    use super::*;

    #[test]
    fn sockaddr_round_trips() {
        for addr in ["10.9.0.1:4000", "[fd09::1]:65535", "[fe80::1%3]:1"] {
            let addr: SocketAddr = addr.parse().unwrap();
            assert_eq!(read(&encode(addr), libc::EINVAL).unwrap(), addr);
        }
        assert_eq!(
            encode("10.9.0.1:258".parse().unwrap())[2..8],
            [1, 2, 10, 9, 0, 1]
        );
    }

    #[test]
    fn sockaddr_invalid_is_rejected() {
        let raw = encode("10.9.0.1:1".parse().unwrap());
        let errno = |raw: &[u8]| read(raw, libc::EAFNOSUPPORT).unwrap_err().raw_os_error();
        assert_eq!(errno(&raw[..15]), Some(libc::EINVAL));
        assert_eq!(errno(&[]), Some(libc::EINVAL));
        assert_eq!(errno(&UNSPECIFIED), Some(libc::EAFNOSUPPORT));
    }
}
