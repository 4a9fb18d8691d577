//! Messages of the two sides.
//!
//! The C program sends a `struct` with an `enum` and a whole `ibv_mr`, in the layout of memory: 56 bytes,
//! most of them meaningless to the peer.

use verbs::RemoteToken;

use super::exchange::BUFFER_SIZE;

/// Length of every message, in bytes.
pub const MESSAGE_LEN: usize = 56;

/// Offsets of `ibv_mr.addr`, `ibv_mr.length` and `ibv_mr.rkey` in the message.
const ADDR: usize = 24;
const LENGTH: usize = 32;
const RKEY: usize = 48;

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Token of the memory for the peer's operation.
    Mr(RemoteToken),
    /// The operation has completed.
    Done,
}

impl Message {
    /// Encodes the message in this machine's byte order, as in C.
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

    /// Parses a message. `None` if the bytes are invalid.
    pub fn from_wire(wire: &[u8]) -> Option<Self> {
        let wire: &[u8; MESSAGE_LEN] = wire.try_into().ok()?;
        match u32::from_ne_bytes(field(wire, 0)?) {
            0 => Some(Self::Mr(RemoteToken {
                addr: u64::from_ne_bytes(field(wire, ADDR)?),
                // As in the C program, the length field is ignored: every buffer has the same length.
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
    fn message_layout_matches_c() {
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
    fn from_wire_ignores_meaningless_fields() {
        let mut wire = Message::Mr(TOKEN).to_wire();
        for meaningless in [4..24, 32..48, 52..56] {
            wire[meaningless].fill(0xee);
        }
        assert_eq!(Message::from_wire(&wire), Some(Message::Mr(TOKEN)));
    }

    #[test]
    fn from_wire_refuses_invalid_bytes() {
        let wire = Message::Done.to_wire();
        assert_eq!(Message::from_wire(&wire), Some(Message::Done));
        assert_eq!(Message::from_wire(&wire[..55]), None);
        assert_eq!(Message::from_wire(&[wire.as_slice(), &[0]].concat()), None);
        assert_eq!(Message::from_wire(&[]), None);
        assert_eq!(Message::from_wire(&[2; 56]), None);
    }
}
