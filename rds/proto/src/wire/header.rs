//! The 48-byte header of a frame.

use std::{error, fmt};

use bitflags::bitflags;

use super::{extension::Extensions, reader::Reader};

bitflags! {
    /// Header flags.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u8 {
        /// The body is a congestion map. Ignored with other flags set.
        const CONG_BITMAP = 0x01;
        /// The sender requests an acknowledgement.
        const ACK_REQUIRED = 0x02;
        /// The message is a retransmission after the loss of a connection.
        const RETRANSMITTED = 0x04;
        /// A second extension follows the first one. Set by kernels that send the length of an RDMA operation
        /// ([`Extension::RdmaBytes`](super::Extension::RdmaBytes)) beside its key.
        const SECOND_EXTENSION = 0x20;
        /// Unknown flags are kept.
        const _ = !0;
    }
}

/// Header of a frame. All frames of a message have the same header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Sequence number; 0 for frames outside of the sequence.
    pub sequence: u64,
    /// Sequence number of the last message handled on this connection; 0 for none.
    pub ack: u64,
    /// Length of the message in bytes, over all frames.
    pub len: u32,
    /// Source port.
    pub from: u16,
    /// Destination port.
    pub to: u16,
    /// Flags.
    pub flags: Flags,
    /// Credits granted to the receiver of the header, with flow control.
    pub credit: u8,
    /// Extensions.
    pub extensions: Extensions,
}

/// Why a header is rejected.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadHeader {
    /// Too few bytes.
    Short(usize),
    /// Wrong checksum.
    Checksum(u16),
}

impl Header {
    /// Size in bytes.
    pub const SIZE: usize = 48;

    const CHECKSUM_AT: usize = 30;

    /// Encodes the header with its checksum.
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut wire = [0; Self::SIZE];
        wire[..8].copy_from_slice(&self.sequence.to_be_bytes());
        wire[8..16].copy_from_slice(&self.ack.to_be_bytes());
        wire[16..20].copy_from_slice(&self.len.to_be_bytes());
        wire[20..22].copy_from_slice(&self.from.to_be_bytes());
        wire[22..24].copy_from_slice(&self.to.to_be_bytes());
        wire[24] = self.flags.bits();
        wire[25] = self.credit;
        wire[32..].copy_from_slice(&self.extensions.0);
        let checksum = !sum(&wire);
        wire[Self::CHECKSUM_AT..32].copy_from_slice(&checksum.to_be_bytes());
        wire
    }

    /// Whether the sender requests an acknowledgement.
    pub(crate) fn requires_ack(&self) -> bool {
        self.flags.contains(Flags::ACK_REQUIRED)
    }

    /// Decodes the header at the start of `wire`. With `unchecked`, a zero checksum is accepted.
    ///
    /// # Errors
    /// Too few bytes, or a wrong checksum.
    pub fn decode(wire: &[u8], unchecked: bool) -> Result<Self, BadHeader> {
        let short = BadHeader::Short(wire.len());
        let wire: &[u8; Self::SIZE] = wire.first_chunk().ok_or(short)?;
        Self::read(Reader::new(wire), wire, unchecked).ok_or(short)?
    }

    /// Decodes the fields; `None` if there are too few bytes.
    fn read(
        mut reader: Reader<'_>,
        wire: &[u8; Self::SIZE],
        unchecked: bool,
    ) -> Option<Result<Self, BadHeader>> {
        let header = Self {
            sequence: reader.u64()?,
            ack: reader.u64()?,
            len: reader.u32()?,
            from: reader.u16()?,
            to: reader.u16()?,
            flags: Flags::from_bits_retain(reader.u8()?),
            credit: reader.u8()?,
            extensions: {
                let _padding = reader.u32()?;
                let checksum = reader.u16()?;
                if sum(wire) != 0xffff && !(unchecked && checksum == 0) {
                    return Some(Err(BadHeader::Checksum(checksum)));
                }
                Extensions(reader.bytes()?)
            },
        };
        Some(Ok(header))
    }
}

/// The ones' complement sum of 16-bit words, as in IPv4.
fn sum(wire: &[u8; Header::SIZE]) -> u16 {
    let (quads, _) = wire.as_chunks();
    let quads = quads
        .iter()
        .map(|&quad| u64::from(u32::from_be_bytes(quad)));
    let mut sum: u64 = quads.sum();
    while sum > u64::from(u16::MAX) {
        sum = (sum >> 16) + (sum & u64::from(u16::MAX));
    }
    u16::try_from(sum).unwrap_or(u16::MAX)
}

impl fmt::Display for BadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(len) => write!(
                f,
                "frame of {len} bytes is shorter than the header of {}",
                Header::SIZE
            ),
            Self::Checksum(sum) => write!(f, "header has the wrong checksum {sum:#06x}"),
        }
    }
}

/// Reads as [`Display`](fmt::Display): `unwrap` and `fn main() -> Result` print it.
impl fmt::Debug for BadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl error::Error for BadHeader {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Cookie, Extension};

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    fn header(sequence: u64, ack: u64, len: u32, from: u16, to: u16, flags: u8) -> Header {
        Header {
            sequence,
            ack,
            len,
            from,
            to,
            flags: Flags::from_bits_retain(flags),
            ..Header::default()
        }
    }

    fn with(mut header: Header, extension: Extension) -> Header {
        header.extensions.add(extension).unwrap();
        header
    }

    /// The header of the map was captured; the others are derived.
    #[test]
    fn header_matches_golden_bytes() {
        let cookie = Cookie {
            rkey: 0x1122_3344,
            offset: 0x123,
        };
        let golden = [
            (
                header(0, 5, 0, 0, 0, 0),
                "0000000000000000 0000000000000005 00000000 0000 0000 00 00 00000000 fffa",
                "",
            ),
            (
                header(0, 0, 8192, 0, 0, 1),
                "0000000000000000 0000000000000000 00002000 0000 0000 01 00 00000000 deff",
                "",
            ),
            (
                header(1, 0, 0, 4321, 0, 2),
                "0000000000000001 0000000000000000 00000000 10e1 0000 02 00 00000000 ed1d",
                "",
            ),
            (
                header(1, 1, 0, 0, 4321, 2),
                "0000000000000001 0000000000000001 00000000 0000 10e1 02 00 00000000 ed1c",
                "",
            ),
            (
                header(0x0102_0304_0506_0708, 9, 10000, 4001, 4002, 6),
                "0102030405060708 0000000000000009 00002710 0fa1 0fa2 06 00 00000000 a38f",
                "",
            ),
            (
                with(
                    header(7, 3, 64, 4001, 4002, 0),
                    Extension::Destination(cookie),
                ),
                "0000000000000007 0000000000000003 00000040 0fa1 0fa2 00 00 00000000 542d",
                "03 11223344 00000123",
            ),
            (
                with(
                    header(8, 3, 64, 4002, 4001, 2),
                    Extension::Rdma(0x1122_3344),
                ),
                "0000000000000008 0000000000000003 00000040 0fa2 0fa1 02 00 00000000 762d",
                "02 11223344",
            ),
        ];
        for (header, first, extension) in golden {
            let mut wire = hex(&[first, extension].concat());
            wire.resize(Header::SIZE, 0);
            assert_eq!(header.encode()[..], wire);
            assert_eq!(Header::decode(&wire, false), Ok(header));
        }
    }

    /// A message behind an RDMA write of 100 bytes, as Linux 7.2 encodes it (`net/rds/ib_send.c`).
    #[test]
    fn header_with_two_extensions_is_decoded() {
        let mut wire = hex(
            "0000000000000009 0000000000000003 00000040 0fa2 0fa1 22 00 00000000 54c4\
             02 11223344 04 00000064 01 000000",
        );
        wire.resize(Header::SIZE, 0);
        let decoded = Header::decode(&wire, false).unwrap();
        assert_eq!(decoded.flags, Flags::ACK_REQUIRED | Flags::SECOND_EXTENSION);
        assert_eq!(
            decoded.extensions.iter().collect::<Vec<_>>(),
            [Extension::Rdma(0x1122_3344), Extension::RdmaBytes(100, 1)]
        );
        assert_eq!(decoded.encode()[..], wire);
    }

    #[test]
    fn header_round_trips_extreme_values() {
        let all = Header {
            sequence: u64::MAX,
            ack: u64::MAX,
            len: u32::MAX,
            from: u16::MAX,
            to: u16::MAX,
            flags: Flags::all(),
            credit: u8::MAX,
            extensions: Extensions([0xff; 16]),
        };
        assert_eq!(Header::decode(&all.encode(), true), Ok(all));
        let mut long = header(1, 2, 3, 4, 5, 0x58).encode().to_vec();
        long.extend([9; 100]);
        let flags = Header::decode(&long, false).unwrap().flags;
        assert_eq!(flags.bits(), 0x58, "unknown flags are kept");
    }

    #[test]
    fn header_checksum_detects_flipped_bits() {
        let wire = header(0x0102_0304_0506_0708, 9, 10000, 4001, 4002, 6).encode();
        for bit in 0..8 * Header::SIZE {
            let mut flipped = wire;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let read = Header::decode(&flipped, true);
            assert!(matches!(read, Err(BadHeader::Checksum(_))), "bit {bit}");
        }
        for len in [0, 1, 47] {
            assert_eq!(
                Header::decode(&wire[..len], true),
                Err(BadHeader::Short(len))
            );
        }
    }

    #[test]
    fn header_without_checksum_is_accepted_if_allowed() {
        let sent = header(1, 2, 3, 4, 5, 0);
        let mut wire = sent.encode();
        wire[30..32].fill(0);
        assert_eq!(Header::decode(&wire, true), Ok(sent));
        assert_eq!(Header::decode(&wire, false), Err(BadHeader::Checksum(0)));
    }
}
