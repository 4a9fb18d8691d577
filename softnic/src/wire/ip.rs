//! The IPv4 header without options, 20 bytes, and the IPv6 header without extensions, 40 bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{error::WireError, reader::Reader};

/// Protocol number of UDP.
const UDP: u8 = 17;

/// Default time to live, or hop limit, as of Linux's rxe.
const HOP_LIMIT: u8 = 64;

/// Length of an IPv4 header without options.
const V4_LEN: u16 = 20;

/// Bit of the fragment field: do not fragment.
const DONT_FRAGMENT: u16 = 0x4000;

/// Fields of an IP header, except the fields implied by the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpHeader {
    /// IPv4.
    V4 {
        /// Type of service: DSCP and ECN.
        tos: u8,
        /// Identification; covered by the ICRC.
        identification: u16,
        /// Whether fragmentation is forbidden.
        dont_fragment: bool,
        /// Time to live, in hops.
        ttl: u8,
        /// Sender.
        src: Ipv4Addr,
        /// Receiver.
        dst: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// Traffic class: DSCP and ECN.
        traffic_class: u8,
        /// Flow label, 20 bits.
        flow_label: u32,
        /// Hop limit.
        hop_limit: u8,
        /// Sender.
        src: Ipv6Addr,
        /// Receiver.
        dst: Ipv6Addr,
    },
}

impl IpHeader {
    /// A header between two addresses: unfragmented, 64 hops, no class or label.
    ///
    /// # Errors
    /// - [`WireError::AddressFamilies`]: the addresses are of different families; convert one of them.
    pub fn new(src: IpAddr, dst: IpAddr) -> Result<Self, WireError> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Ok(Self::V4 {
                tos: 0,
                identification: 0,
                dont_fragment: true,
                ttl: HOP_LIMIT,
                src,
                dst,
            }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Ok(Self::V6 {
                traffic_class: 0,
                flow_label: 0,
                hop_limit: HOP_LIMIT,
                src,
                dst,
            }),
            _ => Err(WireError::AddressFamilies),
        }
    }

    /// Sender.
    pub fn src(&self) -> IpAddr {
        match self {
            Self::V4 { src, .. } => IpAddr::V4(*src),
            Self::V6 { src, .. } => IpAddr::V6(*src),
        }
    }

    /// Receiver.
    pub fn dst(&self) -> IpAddr {
        match self {
            Self::V4 { dst, .. } => IpAddr::V4(*dst),
            Self::V6 { dst, .. } => IpAddr::V6(*dst),
        }
    }

    /// The header behind a router, which takes one hop; `None` if no hop is left.
    pub(crate) fn forwarded(mut self) -> Option<Self> {
        let (Self::V4 { ttl: hops, .. }
        | Self::V6 {
            hop_limit: hops, ..
        }) = &mut self;
        *hops = hops.checked_sub(1).filter(|hops| *hops > 0)?;
        Some(self)
    }

    /// Length of the header in bytes.
    pub fn encoded_len(&self) -> usize {
        match self {
            Self::V4 { .. } => 20,
            Self::V6 { .. } => 40,
        }
    }

    /// Decodes a header, and limits the reader to the packet: Ethernet pads short packets.
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let bytes = reader.rest();
        let (&first, _) = bytes
            .split_first()
            .ok_or(WireError::Truncated("IP header"))?;
        match first >> 4 {
            4 => Self::decode_v4(first & 0x0f, bytes, reader),
            6 => Self::decode_v6(reader),
            version => Err(WireError::IpVersion(version)),
        }
    }

    fn decode_v4(words: u8, bytes: &[u8], reader: &mut Reader<'_>) -> Result<Self, WireError> {
        if words != 5 {
            return Err(WireError::IpOptions(words));
        }
        let _version = reader.u8()?;
        let tos = reader.u8()?;
        let len = reader.u16()?;
        let identification = reader.u16()?;
        let fragment = reader.u16()?;
        let ttl = reader.u8()?;
        let protocol = reader.u8()?;
        let _checksum = reader.u16()?;
        let src = Ipv4Addr::from(reader.array()?);
        let dst = Ipv4Addr::from(reader.array()?);
        if checksum(&bytes[..usize::from(V4_LEN)]) != 0 {
            return Err(WireError::IpChecksum);
        }
        if fragment & !DONT_FRAGMENT != 0 {
            return Err(WireError::Fragment);
        }
        if protocol != UDP {
            return Err(WireError::Protocol(protocol));
        }
        let len = len.checked_sub(V4_LEN).ok_or(WireError::Length)?;
        reader.truncate(len.into())?;
        Ok(Self::V4 {
            tos,
            identification,
            dont_fragment: fragment & DONT_FRAGMENT != 0,
            ttl,
            src,
            dst,
        })
    }

    fn decode_v6(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let word = reader.u32()?;
        let len = reader.u16()?;
        let protocol = reader.u8()?;
        let hop_limit = reader.u8()?;
        let src = Ipv6Addr::from(reader.array::<16>()?);
        let dst = Ipv6Addr::from(reader.array::<16>()?);
        if protocol != UDP {
            return Err(WireError::Protocol(protocol));
        }
        reader.truncate(len.into())?;
        let [_, class, _, _] = (word >> 4).to_be_bytes();
        Ok(Self::V6 {
            traffic_class: class,
            flow_label: word & 0xf_ffff,
            hop_limit,
            src,
            dst,
        })
    }

    /// Appends the header of a packet with `payload` bytes after the header; `None` if too long for IPv4.
    pub(super) fn encode(&self, payload: u16, to: &mut Vec<u8>) -> Option<()> {
        match *self {
            Self::V4 {
                tos,
                identification,
                dont_fragment,
                ttl,
                src,
                dst,
            } => {
                let len = payload.checked_add(V4_LEN)?;
                let start = to.len();
                to.extend([0x45, tos]);
                to.extend(len.to_be_bytes());
                to.extend(identification.to_be_bytes());
                let fragment = if dont_fragment { DONT_FRAGMENT } else { 0 };
                to.extend(fragment.to_be_bytes());
                to.extend([ttl, UDP, 0, 0]);
                to.extend(src.octets());
                to.extend(dst.octets());
                let sum = checksum(&to[start..]).to_be_bytes();
                to[start + 10..start + 12].copy_from_slice(&sum);
            }
            Self::V6 {
                traffic_class,
                flow_label,
                hop_limit,
                src,
                dst,
            } => {
                let word = 6 << 28 | u32::from(traffic_class) << 20 | flow_label & 0xf_ffff;
                to.extend(word.to_be_bytes());
                to.extend(payload.to_be_bytes());
                to.extend([UDP, hop_limit]);
                to.extend(src.octets());
                to.extend(dst.octets());
            }
        }
        Some(())
    }
}

/// One's complement of the one's complement sum of all 16-bit words; 0 for a header with a valid checksum.
pub(crate) fn checksum(header: &[u8]) -> u16 {
    let (words, _) = header.as_chunks();
    let sum: u32 = words
        .iter()
        .map(|word| u32::from(u16::from_be_bytes(*word)))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let [_, _, high, low] = (!((sum & 0xffff) + (sum >> 16))).to_be_bytes();
    u16::from_be_bytes([high, low])
}
