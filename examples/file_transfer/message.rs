//! Messages of the receiver.
//!
//! The layout is the C program's `struct` in memory: 24 bytes.

use verbs::RemoteToken;

/// Length of every message, in bytes.
pub const MESSAGE_LEN: usize = 24;

/// Size of the receiver's buffer, in bytes. Both sides use this constant.
pub const BUFFER_SIZE: usize = 10 * 1024 * 1024;

/// Maximum length of a file name, in bytes, with the terminating zero.
pub const MAX_NAME_LEN: usize = 256;

const ADDR: usize = 8;
const RKEY: usize = 16;
const MARK: usize = 20;

/// Marks a digest. The C programs send zeros in this field.
const DIGEST: u32 = 0x4443_5243;

/// Length and CRC-32 of a file. The sender puts the digest in the buffer of the last write, the receiver in
/// `Done`. The C programs send no digest and ignore a received one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// File size, in bytes.
    pub len: u64,
    /// CRC-32 of the content.
    pub sum: u32,
}

impl Digest {
    /// Length of a digest in the sender's last write, in bytes.
    pub const WIRE_LEN: usize = MESSAGE_LEN;

    /// Parses a digest. `None` if the peer has sent none.
    pub fn from_wire(wire: &[u8]) -> Option<Self> {
        let marked = u32::from_ne_bytes(field(wire, MARK)?) == DIGEST;
        marked.then_some(Self {
            len: u64::from_ne_bytes(field(wire, ADDR)?),
            sum: u32::from_ne_bytes(field(wire, RKEY)?),
        })
    }
}

/// A message from the receiver to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The buffer to write to.
    Mr(RemoteToken),
    /// The last chunk is stored; the sender may write the next.
    Ready,
    /// The file is complete, with the digest of the stored bytes.
    Done(Option<Digest>),
}

impl Message {
    /// Encodes the message in this machine's byte order, as in C.
    pub fn to_wire(self) -> [u8; MESSAGE_LEN] {
        let mut wire = [0; MESSAGE_LEN];
        let id: u32 = match self {
            Self::Mr(token) => {
                wire[ADDR..ADDR + 8].copy_from_slice(&token.addr.to_ne_bytes());
                wire[RKEY..RKEY + 4].copy_from_slice(&token.rkey.to_ne_bytes());
                1
            }
            Self::Ready => 2,
            Self::Done(digest) => {
                if let Some(Digest { len, sum }) = digest {
                    wire[ADDR..ADDR + 8].copy_from_slice(&len.to_ne_bytes());
                    wire[RKEY..RKEY + 4].copy_from_slice(&sum.to_ne_bytes());
                    wire[MARK..MARK + 4].copy_from_slice(&DIGEST.to_ne_bytes());
                }
                3
            }
        };
        wire[..4].copy_from_slice(&id.to_ne_bytes());
        wire
    }

    /// Parses a message. `None` if the bytes are invalid.
    pub fn from_wire(wire: &[u8]) -> Option<Self> {
        let wire: &[u8; MESSAGE_LEN] = wire.try_into().ok()?;
        match u32::from_ne_bytes(field(wire, 0)?) {
            1 => Some(Self::Mr(RemoteToken {
                addr: u64::from_ne_bytes(field(wire, ADDR)?),
                len: BUFFER_SIZE as u64,
                rkey: u32::from_ne_bytes(field(wire, RKEY)?),
            })),
            2 => Some(Self::Ready),
            3 => Some(Self::Done(Digest::from_wire(wire))),
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

    const MR: Message = Message::Mr(RemoteToken {
        addr: 0x0102_0304_0506_0708,
        len: 10_485_760,
        rkey: 0x0a0b_0c0d,
    });

    #[test]
    fn message_layout_matches_c() {
        let mut expected = [0; 24];
        expected[..4].copy_from_slice(&1_u32.to_ne_bytes());
        expected[8..16].copy_from_slice(&0x0102_0304_0506_0708_u64.to_ne_bytes());
        expected[16..20].copy_from_slice(&0x0a0b_0c0d_u32.to_ne_bytes());
        assert_eq!(MR.to_wire(), expected);
    }

    #[test]
    fn message_round_trips_and_invalid_bytes_are_refused() {
        let digest = Digest {
            len: 1 << 40,
            sum: 7,
        };
        for message in [
            MR,
            Message::Ready,
            Message::Done(None),
            Message::Done(Some(digest)),
        ] {
            assert_eq!(Message::from_wire(&message.to_wire()), Some(message));
        }
        let wire = MR.to_wire();
        assert_eq!(Message::from_wire(&wire[..23]), None);
        assert_eq!(Message::from_wire(&[wire.as_slice(), &[0]].concat()), None);
        for id in [0, 4, 0x0100_0001, u32::MAX] {
            let mut wire = wire;
            wire[..4].copy_from_slice(&id.to_ne_bytes());
            assert_eq!(Message::from_wire(&wire), None, "{id}");
        }
    }
}
