//! The headers that the kernel takes off a received datagram.

use std::net::{IpAddr, SocketAddr};

use crate::wire::{self, IpHeader};

/// Length of a UDP header in bytes.
const UDP_LEN: usize = 8;

/// Fields of the headers reported by the kernel, and of IPv4's the identification and the flag DF, which are not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headers {
    pub(super) src: IpAddr,
    pub(super) src_port: u16,
    pub(super) dst: IpAddr,
    pub(super) identification: u16,
    pub(super) dont_fragment: bool,
}

impl Headers {
    /// Headers of a datagram with the identification 0.
    pub(super) fn of(from: SocketAddr, dst: IpAddr) -> Self {
        Self {
            src: from.ip(),
            src_port: from.port(),
            dst,
            identification: 0,
            dont_fragment: true,
        }
    }

    /// Length of the headers in bytes, IP and UDP, between addresses of this family.
    pub(super) fn len(addr: IpAddr) -> usize {
        match addr {
            IpAddr::V4(_) => 20 + UDP_LEN,
            IpAddr::V6(_) => 40 + UDP_LEN,
        }
    }

    /// Writes the headers to the start of a packet, in front of the datagram. `None` if the addresses are of different
    /// families, or the packet is too long or too short.
    pub(super) fn write(&self, packet: &mut [u8]) -> Option<()> {
        let payload = packet.len().checked_sub(Self::len(self.dst))?;
        let mut ip = IpHeader::new(self.src.to_canonical(), self.dst).ok()?;
        if let IpHeader::V4 {
            identification,
            dont_fragment,
            ..
        } = &mut ip
        {
            *identification = self.identification;
            *dont_fragment = self.dont_fragment;
        }
        let headers = wire::socket_headers(&ip, self.src_port, payload)?;
        packet.get_mut(..headers.len())?.copy_from_slice(&headers);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Bth, Extensions, Frame, Opcode, PORT};

    fn packet(src: &str, dst: &str) -> Vec<u8> {
        let frame = Frame {
            ip: IpHeader::new(src.parse().unwrap(), dst.parse().unwrap()).unwrap(),
            src_port: PORT,
            udp_checksum: 0,
            bth: Bth::new(Opcode::RC_SEND_ONLY, 17, 1),
            extensions: Extensions::default(),
            payload: b"hello",
        };
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn headers_of_a_frame_are_those_taken_off() {
        for [src, dst] in [["127.0.0.2", "127.0.0.3"], ["fd00::1", "fd00::2"]] {
            let expected = packet(src, dst);
            let headers = Headers {
                src: src.parse().unwrap(),
                src_port: PORT,
                dst: dst.parse().unwrap(),
                identification: 0,
                dont_fragment: true,
            };
            let len = Headers::len(headers.dst);
            let mut received = expected.clone();
            received[..len].fill(0xee);
            headers.write(&mut received).unwrap();
            assert_eq!(received, expected);
        }
    }

    #[test]
    fn datagram_of_another_family_or_without_headers_is_refused() {
        let headers = Headers {
            src: "fd00::1".parse().unwrap(),
            src_port: PORT,
            dst: "127.0.0.1".parse().unwrap(),
            identification: 0,
            dont_fragment: true,
        };
        assert_eq!(headers.write(&mut [0; 100]), None);
        let headers = Headers {
            src: "127.0.0.2".parse().unwrap(),
            ..headers
        };
        assert_eq!(headers.write(&mut [0; 27]), None);
        assert_eq!(headers.write(&mut [0; 28]), Some(()));
    }
}
