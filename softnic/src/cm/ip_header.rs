//! Header of the RDMA IP CM service, 36 bytes at the start of a request's private data: IP addresses and source port of
//! the connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Length of the header in bytes.
pub(super) const LEN: usize = 36;

/// IP addresses of a request, and the port of the active side. The passive side's port is part of the service id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpCmHeader {
    /// Port of the active side.
    pub src_port: u16,
    /// Address of the active side.
    pub src: IpAddr,
    /// Address of the passive side.
    pub dst: IpAddr,
}

impl IpCmHeader {
    /// Decodes a header; `None` for an unknown version.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.first_chunk()?;
        if bytes[0] != 0 {
            return None;
        }
        let [_, _, high, low, ..] = *bytes;
        let addr = |at: usize| -> Option<IpAddr> {
            let field: [u8; 16] = bytes[at..at + 16].try_into().ok()?;
            match bytes[1] >> 4 {
                4 => Some(IpAddr::from(Ipv4Addr::from(*field.last_chunk::<4>()?))),
                6 => Some(IpAddr::from(Ipv6Addr::from(field))),
                _ => None,
            }
        };
        Some(Self {
            src_port: u16::from_be_bytes([high, low]),
            src: addr(4)?,
            dst: addr(20)?,
        })
    }

    pub(super) fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[1] = if self.dst.is_ipv4() { 4 << 4 } else { 6 << 4 };
        bytes[2..4].copy_from_slice(&self.src_port.to_be_bytes());
        for (at, addr) in [(4, self.src), (20, self.dst)] {
            match addr {
                IpAddr::V4(addr) => bytes[at + 12..at + 16].copy_from_slice(&addr.octets()),
                IpAddr::V6(addr) => bytes[at..at + 16].copy_from_slice(&addr.octets()),
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_addresses_are_at_the_end_of_their_fields() {
        let header = IpCmHeader {
            src_port: 0x1d2f,
            src: [10, 9, 0, 1].into(),
            dst: [10, 9, 0, 2].into(),
        };
        let bytes = header.encode();
        assert_eq!(bytes[..4], [0, 0x40, 0x1d, 0x2f]);
        assert_eq!(
            bytes[4..20],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 9, 0, 1]
        );
        assert_eq!(bytes[32..], [10, 9, 0, 2]);
        assert_eq!(IpCmHeader::decode(&bytes), Some(header));
    }

    #[test]
    fn ipv6_addresses_are_whole_and_other_versions_are_refused() {
        let header = IpCmHeader {
            src_port: 1,
            src: "fd00::1".parse().unwrap(),
            dst: "fd00::2".parse().unwrap(),
        };
        let bytes = header.encode();
        assert_eq!(IpCmHeader::decode(&bytes), Some(header));
        for at in [0, 1] {
            let mut other = bytes;
            other[at] = 0x50;
            assert_eq!(IpCmHeader::decode(&other), None);
        }
        assert_eq!(IpCmHeader::decode(&bytes[1..]), None);
    }
}
