//! The 48 bytes before the body of every frame.

use std::{error, fmt};

use bitflags::bitflags;

use super::{extension::Extensions, reader::Reader};

bitflags! {
    /// What a header says of its message.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u8 {
        /// The body is a congestion map. It counts only if there is no other flag.
        const CONG_BITMAP = 0x01;
        /// The sender wants an acknowledgement.
        const ACK_REQUIRED = 0x02;
        /// It has been sent before, on a connection that was lost.
        const RETRANSMITTED = 0x04;
        /// Those of other implementations are kept.
        const _ = !0;
    }
}

/// What is before the body of every frame; all frames of a message have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The number of the message; 0 for what is not counted.
    pub sequence: u64,
    /// The number of the last message that has been handled, since the connection was made; 0 if
    /// there was none.
    pub ack: u64,
    /// The number of bytes of the message, over all frames.
    pub len: u32,
    /// The port it comes from.
    pub from: u16,
    /// The port it goes to.
    pub to: u16,
    /// What else is said of it.
    pub flags: Flags,
    /// How many more messages the receiver of the header may send, where anybody counts them.
    pub credit: u8,
    /// What it has beside its bytes.
    pub extensions: Extensions,
}

/// Why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadHeader {
    /// There are fewer bytes than there must be.
    Short(usize),
    /// The checksum is wrong.
    Checksum(u16),
}

impl Header {
    /// The number of bytes.
    pub const SIZE: usize = 48;

    const CHECKSUM_AT: usize = 30;

    /// The header as it goes over the wire, with its checksum.
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

    /// Whether the sender wants an acknowledgement.
    pub(in crate::proto) fn asks(&self) -> bool {
        self.flags.contains(Flags::ACK_REQUIRED)
    }

    /// Reads the header at the start of `wire`. One without a checksum passes if `unchecked`.
    ///
    /// # Errors
    /// There are too few bytes, or they are not what was sent.
    pub fn decode(wire: &[u8], unchecked: bool) -> Result<Self, BadHeader> {
        let short = BadHeader::Short(wire.len());
        let wire: &[u8; Self::SIZE] = wire.first_chunk().ok_or(short)?;
        Self::read(Reader::new(wire), wire, unchecked).ok_or(short)?
    }

    /// `None` if there are too few bytes.
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

/// The sum of the words, as IPv4 has it: what overflows is added at the other end.
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
            Self::Short(len) => write!(f, "a frame of {len} bytes, not {} or more", Header::SIZE),
            Self::Checksum(sum) => write!(f, "a header with the wrong checksum, {sum:#06x}"),
        }
    }
}

impl error::Error for BadHeader {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::wire::{Cookie, Extension};

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

    /// U-W01: the map's was seen on the wire; the others follow from what was.
    #[test]
    fn the_golden_headers() {
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

    /// U-W01
    #[test]
    fn every_field_is_kept_at_its_extremes() {
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
        let mut long = header(1, 2, 3, 4, 5, 0x38).encode().to_vec();
        long.extend([9; 100]);
        let flags = Header::decode(&long, false).unwrap().flags;
        assert_eq!(flags.bits(), 0x38, "unknown flags are kept");
    }

    /// U-W02
    #[test]
    fn no_flipped_bit_passes() {
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

    /// U-W03
    #[test]
    fn a_header_without_checksum_passes_where_that_is_allowed() {
        let sent = header(1, 2, 3, 4, 5, 0);
        let mut wire = sent.encode();
        wire[30..32].fill(0);
        assert_eq!(Header::decode(&wire, true), Ok(sent));
        assert_eq!(Header::decode(&wire, false), Err(BadHeader::Checksum(0)));
    }
}
