//! Socket addresses as bytes.

#![forbid(unsafe_code)]

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
};

use crate::errno::os;

/// Decodes an address.
pub(crate) fn decode(bytes: &[u8]) -> io::Result<SocketAddr> {
    let (family, rest) = take(bytes)?;
    let family = libc::c_int::from(u16::from_ne_bytes(family));
    let (port, rest) = take(rest)?;
    let port = u16::from_be_bytes(port);
    match family {
        libc::AF_INET => {
            let (ip, _) = take::<4>(rest)?;
            Ok((Ipv4Addr::from(ip), port).into())
        }
        libc::AF_INET6 => {
            let (flow, rest) = take(rest)?;
            let (ip, rest) = take::<16>(rest)?;
            let (scope, _) = take(rest)?;
            Ok(SocketAddrV6::new(
                Ipv6Addr::from(ip),
                port,
                u32::from_be_bytes(flow),
                u32::from_ne_bytes(scope),
            )
            .into())
        }
        _ => Err(os(libc::EAFNOSUPPORT)),
    }
}

/// Whether the family is `AF_UNSPEC`.
pub(crate) fn is_unspecified(bytes: &[u8]) -> bool {
    let family = take(bytes).map(|(family, _)| u16::from_ne_bytes(family));
    family.is_ok_and(|family| libc::c_int::from(family) == libc::AF_UNSPEC)
}

fn take<const N: usize>(bytes: &[u8]) -> io::Result<([u8; N], &[u8])> {
    let (prefix, rest) = bytes.split_first_chunk().ok_or_else(|| os(libc::EINVAL))?;
    Ok((*prefix, rest))
}

#[cfg(test)]
mod tests {
    use interpose::encode;

    use super::*;

    #[test]
    fn sockaddr_round_trips() {
        for addr in ["10.9.0.1:7471", "[fe80::1]:80", "0.0.0.0:0"] {
            let addr: SocketAddr = addr.parse().unwrap();
            assert_eq!(decode(&encode(addr)).unwrap(), addr);
        }
        let v6 = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 1, 2, 3).into();
        assert_eq!(decode(&encode(v6)).unwrap(), v6);
        let bytes = encode("10.9.0.1:258".parse().unwrap());
        assert_eq!(bytes[2..8], [1, 2, 10, 9, 0, 1]);
        assert_eq!(bytes.len(), 16);
    }

    #[test]
    fn sockaddr_short_or_of_unknown_family_is_refused() {
        let sockaddr = encode("[::1]:1".parse().unwrap());
        for len in 0..sockaddr.len() {
            let err = decode(&sockaddr[..len]).unwrap_err();
            assert_eq!(err.raw_os_error(), Some(libc::EINVAL), "{len}");
        }
        assert!(is_unspecified(&[0; 2]) && !is_unspecified(&sockaddr) && !is_unspecified(&[0]));
        let err = decode(&[0; 28]).unwrap_err();
        assert_eq!(err.raw_os_error(), Some(libc::EAFNOSUPPORT));
    }
}
