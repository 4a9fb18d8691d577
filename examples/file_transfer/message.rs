//! The messages of the receiver.
//!
//! The C program sends a `struct` as it lies in memory: 24 bytes.

use verbs::RemoteToken;

/// The length of every message.
pub const MESSAGE_LEN: usize = 24;

/// The size of the memory that the sender writes to. Both sides know it.
pub const BUFFER_SIZE: usize = 10 * 1024 * 1024;

/// The most bytes of a file's name, with the zero byte at its end.
pub const MAX_NAME_LEN: usize = 256;

const ADDR: usize = 8;
const RKEY: usize = 16;
const MARK: usize = 20;

/// What marks a digest: C's programs send zeros there.
const DIGEST: u32 = 0x4443_5243;

/// The length and the CRC-32 of a file, which each side tells the other at its end: the sender in the buffer of
/// the last write, and the receiver behind its `Done`. C's programs send none, and look at none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// The file's size in bytes.
    pub len: u64,
    /// Its CRC-32.
    pub sum: u32,
}

impl Digest {
    /// The bytes that a digest has in the sender's last write.
    pub const WIRE_LEN: usize = MESSAGE_LEN;

    /// Reads the digest that a peer has sent. `None` if it has sent none.
    pub fn from_wire(wire: &[u8]) -> Option<Self> {
        let marked = u32::from_ne_bytes(field(wire, MARK)?) == DIGEST;
        marked.then_some(Self {
            len: u64::from_ne_bytes(field(wire, ADDR)?),
            sum: u32::from_ne_bytes(field(wire, RKEY)?),
        })
    }
}

/// What the receiver tells the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The memory to write to.
    Mr(RemoteToken),
    /// What has been written there is safe: the next part, please.
    Ready,
    /// The end of the file has been understood, and this is what has been stored.
    Done(Option<Digest>),
}

impl Message {
    /// The message as it is sent: in this machine's byte order, as in C.
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

    /// Reads a message that a peer has sent. `None` if it is not one.
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
    fn a_message_is_laid_out_as_in_c() {
        let mut expected = [0; 24];
        expected[..4].copy_from_slice(&1_u32.to_ne_bytes());
        expected[8..16].copy_from_slice(&0x0102_0304_0506_0708_u64.to_ne_bytes());
        expected[16..20].copy_from_slice(&0x0a0b_0c0d_u32.to_ne_bytes());
        assert_eq!(MR.to_wire(), expected);
    }

    #[test]
    fn what_is_sent_is_understood_and_nothing_else() {
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
