//! What the sides tell each other when they connect: the private data of request and reply.

use std::{error, fmt};

use super::{
    entry::Target,
    order::{ByteOrder, bytes},
    scale,
};

/// The version of the protocol.
pub const VERSION: u8 = 1;

const BIG_ENDIAN: u8 = 1 << 0;
const IOMAP: u8 = 1 << 1;

/// What one side tells the other when they connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// The byte order of its tables.
    pub order: ByteOrder,
    /// How many messages it can take: the depth of its receive queue.
    pub credits: u16,
    /// How many mappings its table holds; `None` if it does not know of them.
    pub iomap_size: Option<u16>,
    /// Its table of targets: the address, the key, and how many *entries* there are. The table of
    /// mappings follows.
    pub targets: Target,
    /// The first target: where it wants the first bytes.
    pub first: Target,
}

/// Why what the peer has sent is no connection of this protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadConnectData {
    /// There are fewer bytes than there must be.
    Short(usize),
    /// Another version of the protocol.
    Version(u8),
    /// It can take no messages.
    NoCredits,
    /// Its table of targets has so few entries that it would be overwritten while in use.
    Targets(u32),
    /// It has no room for data.
    NoBuffer,
}

impl ConnectData {
    /// The number of bytes.
    pub const SIZE: usize = 40;

    /// The data as it goes over the wire.
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

    /// Reads what a peer has sent. There may be more bytes, of which nothing is known.
    ///
    /// # Errors
    /// It makes no sense, or is of another version.
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

/// Reads as [`Display`](fmt::Display): `unwrap` and `fn main() -> Result` print it.
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

    /// T-WP1, T-WP2: what a server of librdmacm was seen to send.
    #[test]
    fn what_was_seen_on_the_wire() {
        assert_eq!(golden().encode(), GOLDEN);
        assert_eq!(ConnectData::decode(&GOLDEN), Ok(golden()));
        let mut padded = GOLDEN.to_vec();
        padded.resize(196, 0xaa);
        assert_eq!(ConnectData::decode(&padded), Ok(golden()));
    }

    /// T-WP11, T-WP15
    #[test]
    fn the_flags_say_order_and_mappings() {
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

    /// T-WP3
    #[test]
    fn what_makes_no_sense_is_refused() {
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
