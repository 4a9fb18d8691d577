//! Connect data: the private data of a connection request and reply.

use std::{error, fmt};

use super::{
    entry::Target,
    order::{ByteOrder, bytes},
    scale,
};

/// Version of the protocol.
pub const VERSION: u8 = 1;

const BIG_ENDIAN: u8 = 1 << 0;
const IOMAP: u8 = 1 << 1;

/// Connect data of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// Byte order of the sender's tables.
    pub order: ByteOrder,
    /// Initial number of credits: the depth of the sender's receive queue.
    pub credits: u16,
    /// Number of entries in the sender's table of mappings; `None` without support for mappings.
    pub iomap_size: Option<u16>,
    /// The sender's table of targets: address, key, and the number of *entries*. The table of mappings
    /// follows directly.
    pub targets: Target,
    /// The first target: the memory for the first bytes.
    pub first: Target,
}

/// Reason for rejecting a peer's connect data.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadConnectData {
    /// Too few bytes; holds their number.
    Short(usize),
    /// Another version of the protocol.
    Version(u8),
    /// The peer grants no credits.
    NoCredits,
    /// The table of targets is too small: entries would be overwritten while in use.
    Targets(u32),
    /// The first target is empty.
    NoBuffer,
}

impl ConnectData {
    /// Size in bytes.
    pub const SIZE: usize = 40;

    /// Encodes the connect data for the wire.
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut wire = [0; Self::SIZE];
        wire[0] = VERSION;
        if self.order == ByteOrder::Big {
            wire[1] |= BIG_ENDIAN;
        }
        if let Some(size) = self.iomap_size {
            wire[1] |= IOMAP;
            wire[7] = scale::encode(size);
        }
        wire[2..4].copy_from_slice(&self.credits.to_be_bytes());
        wire[8..24].copy_from_slice(&self.targets.encode(ByteOrder::Big));
        wire[24..].copy_from_slice(&self.first.encode(ByteOrder::Big));
        wire
    }

    /// Decodes a peer's connect data, ignoring bytes after the end.
    ///
    /// # Errors
    /// The data are malformed or of another version.
    pub fn decode(wire: &[u8]) -> Result<Self, BadConnectData> {
        let Some(wire) = wire.first_chunk::<{ Self::SIZE }>() else {
            return Err(BadConnectData::Short(wire.len()));
        };
        if wire[0] != VERSION {
            return Err(BadConnectData::Version(wire[0]));
        }
        let flags = wire[1];
        let data = Self {
            order: if flags & BIG_ENDIAN != 0 {
                ByteOrder::Big
            } else {
                ByteOrder::Little
            },
            credits: u16::from_be_bytes(bytes(wire, 2)),
            iomap_size: (flags & IOMAP != 0).then(|| scale::decode(wire[7])),
            targets: Target::decode(&bytes(wire, 8), ByteOrder::Big),
            first: Target::decode(&bytes(wire, 24), ByteOrder::Big),
        };
        if data.credits == 0 {
            return Err(BadConnectData::NoCredits);
        }
        if data.targets.len < 2 {
            return Err(BadConnectData::Targets(data.targets.len));
        }
        if data.first.len == 0 {
            return Err(BadConnectData::NoBuffer);
        }
        Ok(data)
    }
}

impl fmt::Display for BadConnectData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(len) => write!(f, "{len} bytes of private data, not {}", ConnectData::SIZE),
            Self::Version(version) => write!(f, "version {version}, not {VERSION}"),
            Self::NoCredits => write!(f, "no credits"),
            Self::Targets(entries) => write!(f, "{entries} targets, not 2 or more"),
            Self::NoBuffer => write!(f, "no room for data"),
        }
    }
}

/// Prints the [`Display`](fmt::Display) text, since `unwrap` and `fn main() -> Result` print errors with
/// `Debug`.
impl fmt::Debug for BadConnectData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl error::Error for BadConnectData {}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden() -> ConnectData {
        ConnectData {
            order: ByteOrder::Little,
            credits: 384,
            iomap_size: Some(3),
            targets: Target {
                addr: 0x7fac_cc02_4000,
                rkey: 0x6d2,
                len: 2,
            },
            first: Target {
                addr: 0x7fac_cc02_6000,
                rkey: 0x7bd,
                len: 0x1_0000,
            },
        }
    }

    const GOLDEN: [u8; 40] = [
        0x01, 0x02, 0x01, 0x80, 0x00, 0x00, 0x00, 0x03, // version, flags, credits, mappings
        0x00, 0x00, 0x7f, 0xac, 0xcc, 0x02, 0x40, 0x00, 0x00, 0x00, 0x06, 0xd2, 0, 0, 0, 2, //
        0x00, 0x00, 0x7f, 0xac, 0xcc, 0x02, 0x60, 0x00, 0x00, 0x00, 0x07, 0xbd, 0, 1, 0, 0,
    ];

    /// Captured from a librdmacm server.
    #[test]
    fn connect_data_matches_the_captured_bytes() {
        assert_eq!(golden().encode(), GOLDEN);
        assert_eq!(ConnectData::decode(&GOLDEN), Ok(golden()));
        let mut padded = GOLDEN.to_vec();
        padded.resize(196, 0xaa);
        assert_eq!(ConnectData::decode(&padded), Ok(golden()));
    }

    #[test]
    fn connect_data_flags_hold_byte_order_and_iomap() {
        let data = ConnectData {
            order: ByteOrder::Big,
            iomap_size: None,
            ..golden()
        };
        let wire = data.encode();
        assert_eq!((wire[1], wire[7]), (1, 0));
        assert_eq!(wire[8..], GOLDEN[8..], "always big-endian");
        assert_eq!(ConnectData::decode(&wire), Ok(data));
    }

    #[test]
    fn connect_data_with_invalid_values_is_refused() {
        let with = |at: usize, with: &[u8]| {
            let mut wire = GOLDEN;
            wire[at..at + with.len()].copy_from_slice(with);
            ConnectData::decode(&wire).unwrap_err()
        };
        for version in [0, 2, 255] {
            assert_eq!(with(0, &[version]), BadConnectData::Version(version));
        }
        assert_eq!(with(2, &[0, 0]), BadConnectData::NoCredits);
        assert_eq!(with(20, &[0; 4]), BadConnectData::Targets(0));
        assert_eq!(with(23, &[1]), BadConnectData::Targets(1));
        assert_eq!(with(36, &[0; 4]), BadConnectData::NoBuffer);
        for len in [0, 1, 39] {
            let err = ConnectData::decode(&GOLDEN[..len]).unwrap_err();
            assert_eq!(err, BadConnectData::Short(len));
        }
        assert_eq!(
            BadConnectData::Short(39).to_string(),
            "39 bytes of private data, not 40"
        );
    }
}
