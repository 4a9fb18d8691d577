//! The messages of the two sides.
//!
//! The C program sends a `struct` with an `enum` and a whole `ibv_mr` in it, as they lie in memory:
//! 56 bytes, most of which mean nothing to the peer.

use verbs::RemoteToken;

use super::exchange::BUFFER_SIZE;

/// The length of every message.
pub const MESSAGE_LEN: usize = 56;

/// Where `ibv_mr.addr` is in the message, and `ibv_mr.length`, and `ibv_mr.rkey`.
const ADDR: usize = 24;
const LENGTH: usize = 32;
const RKEY: usize = 48;

/// What one side tells the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The memory that the other side may write to, or read from.
    Mr(RemoteToken),
    /// The other side's memory has been written to, or read from.
    Done,
}

impl Message {
    /// The message as it is sent: in this machine's byte order, as in C.
    pub fn to_wire(self) -> [u8; MESSAGE_LEN] {
        let mut wire = [0; MESSAGE_LEN];
        let mut put = |start: usize, bytes: &[u8]| {
            wire[start..start + bytes.len()].copy_from_slice(bytes);
        };
        match self {
            Self::Mr(token) => {
                put(0, &0_u32.to_ne_bytes());
                put(ADDR, &token.addr.to_ne_bytes());
                put(LENGTH, &token.len.to_ne_bytes());
                put(RKEY, &token.rkey.to_ne_bytes());
            }
            Self::Done => put(0, &1_u32.to_ne_bytes()),
        }
        wire
    }

    /// Reads a message that a peer has sent. `None` if it is not one.
    pub fn from_wire(wire: &[u8]) -> Option<Self> {
        let wire: &[u8; MESSAGE_LEN] = wire.try_into().ok()?;
        match u32::from_ne_bytes(field(wire, 0)?) {
            0 => Some(Self::Mr(RemoteToken {
                addr: u64::from_ne_bytes(field(wire, ADDR)?),
                // The C program does not look at the length either: it is that of every buffer.
                len: BUFFER_SIZE as u64,
                rkey: u32::from_ne_bytes(field(wire, RKEY)?),
            })),
            1 => Some(Self::Done),
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

    const TOKEN: RemoteToken = RemoteToken {
        addr: 0x0102_0304_0506_0708,
        len: 1024,
        rkey: 0x0a0b_0c0d,
    };

    #[test]
    fn a_message_is_laid_out_as_in_c() {
        let mut expected = [0; 56];
        expected[24..32].copy_from_slice(&0x0102_0304_0506_0708_u64.to_ne_bytes());
        expected[32..40].copy_from_slice(&1024_u64.to_ne_bytes());
        expected[48..52].copy_from_slice(&0x0a0b_0c0d_u32.to_ne_bytes());
        assert_eq!(Message::Mr(TOKEN).to_wire(), expected);
        let mut expected = [0; 56];
        expected[..4].copy_from_slice(&1_u32.to_ne_bytes());
        assert_eq!(Message::Done.to_wire(), expected);
    }

    #[test]
    fn what_means_nothing_is_not_looked_at() {
        let mut wire = Message::Mr(TOKEN).to_wire();
        for meaningless in [4..24, 32..48, 52..56] {
            wire[meaningless].fill(0xee);
        }
        assert_eq!(Message::from_wire(&wire), Some(Message::Mr(TOKEN)));
    }

    #[test]
    fn anything_else_is_no_message() {
        let wire = Message::Done.to_wire();
        assert_eq!(Message::from_wire(&wire), Some(Message::Done));
        assert_eq!(Message::from_wire(&wire[..55]), None);
        assert_eq!(Message::from_wire(&[wire.as_slice(), &[0]].concat()), None);
        assert_eq!(Message::from_wire(&[]), None);
        assert_eq!(Message::from_wire(&[2; 56]), None);
    }
}
