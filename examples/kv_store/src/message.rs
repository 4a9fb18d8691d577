//! Messages between client and server.
//!
//! Every message has the same length and, on all machines, the same layout:
//!
//! ```text
//! byte 0     1     2      4             16                    128
//!      kind  key   value  (zero)        key, value            Put
//!      kind  len   len
//!      kind  (zero)       number (u32)                        Hello
//!      kind  (zero)       buckets (u32), address (u64),       Welcome
//!                                       RKey (u32)
//!      kind  (zero)       version (u64)                       Stored
//!      kind  (zero)                                           Full
//! ```

use std::num::NonZeroU32;

use verbs::RemoteToken;

use super::{
    bucket::BUCKET_LEN,
    entry::{ENTRY_LEN, Entry},
};

/// Length of every message, in bytes.
pub const MESSAGE_LEN: usize = 16 + ENTRY_LEN;

/// Version of this protocol.
pub const PROTOCOL: u32 = 1;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Client: the version of the client's protocol.
    Hello(u32),
    /// Server: the table's token and the number of buckets.
    Welcome(RemoteToken, NonZeroU32),
    /// Client: store this entry.
    Put(Entry),
    /// Server: stored, with this version.
    Stored(u64),
    /// Server: the bucket is full.
    Full,
}

impl Message {
    /// Encodes the message.
    pub fn to_wire(&self) -> [u8; MESSAGE_LEN] {
        let mut wire = [0; MESSAGE_LEN];
        let mut put = |start: usize, bytes: &[u8]| {
            wire[start..start + bytes.len()].copy_from_slice(bytes);
        };
        match self {
            Self::Hello(number) => {
                put(0, &[1]);
                put(4, &number.to_le_bytes());
            }
            Self::Welcome(token, buckets) => {
                put(0, &[2]);
                put(4, &buckets.get().to_le_bytes());
                put(8, &token.addr.to_le_bytes());
                put(16, &token.rkey.to_le_bytes());
            }
            Self::Put(entry) => {
                let (mut lengths, mut bytes) = ([0; 2], [0; ENTRY_LEN]);
                entry.write(&mut lengths, &mut bytes);
                put(0, &[3]);
                put(1, &lengths);
                put(16, &bytes);
            }
            Self::Stored(version) => {
                put(0, &[4]);
                put(4, &version.to_le_bytes());
            }
            Self::Full => put(0, &[5]),
        }
        wire
    }

    /// Parses a message. `None` if the bytes are invalid.
    pub fn from_wire(wire: &[u8]) -> Option<Self> {
        let wire: &[u8; MESSAGE_LEN] = wire.try_into().ok()?;
        match wire[0] {
            1 => Some(Self::Hello(u32::from_le_bytes(field(wire, 4)?))),
            2 => {
                let buckets = NonZeroU32::new(u32::from_le_bytes(field(wire, 4)?))?;
                let token = RemoteToken {
                    addr: u64::from_le_bytes(field(wire, 8)?),
                    len: u64::from(buckets.get()) * BUCKET_LEN as u64,
                    rkey: u32::from_le_bytes(field(wire, 16)?),
                };
                Some(Self::Welcome(token, buckets))
            }
            3 => Entry::read(field(wire, 1)?, &field(wire, 16)?).map(Self::Put),
            4 => Some(Self::Stored(u64::from_le_bytes(field(wire, 4)?))),
            5 => Some(Self::Full),
            _ => None,
        }
    }
}

fn field<const N: usize>(wire: &[u8], start: usize) -> Option<[u8; N]> {
    wire.get(start..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_round_trips() {
        let token = RemoteToken {
            addr: 0x0102_0304_0506_0708,
            len: 1536,
            rkey: 0x0a0b_0c0d,
        };
        for message in [
            Message::Hello(PROTOCOL),
            Message::Welcome(token, NonZeroU32::new(3).unwrap()),
            Message::Put(Entry::new(b"key", b"value").unwrap()),
            Message::Put(Entry::new(&[1; 100], &[2; 12]).unwrap()),
            Message::Stored(u64::MAX),
            Message::Full,
        ] {
            assert_eq!(Message::from_wire(&message.to_wire()), Some(message));
        }
    }

    #[test]
    fn from_wire_refuses_invalid_bytes() {
        let wire = Message::Full.to_wire();
        assert_eq!(Message::from_wire(&wire[..MESSAGE_LEN - 1]), None);
        assert_eq!(Message::from_wire(&[&wire[..], &[0]].concat()), None);
        for (kind, rest) in [(0, 0), (2, 0), (3, 0), (3, 255), (6, 0), (255, 255)] {
            let mut wire = [rest; MESSAGE_LEN];
            wire[0] = kind;
            assert_eq!(Message::from_wire(&wire), None, "{kind}, {rest}");
        }
    }
}
