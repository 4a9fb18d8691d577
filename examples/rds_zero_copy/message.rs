//! The messages of both sides: 8 bytes, of which the first is the type, and the last four are the
//! size of the memory in bytes, in network order.
//!
//! A control message carries the cookie of the memory, so that programs for the kernel's RDS can
//! send it:
//! they learn the cookie only by sending the message.

/// Size of every message.
pub const MESSAGE_LEN: usize = 8;

/// Maximum size of the memory of a request, as in RDS.
pub const MAX_MEMORY: u32 = 1 << 20;

/// Type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Hello, answered by a hello.
    Hello,
    /// Read the memory of the sender.
    Read,
    /// Write the bytes read before back, in reverse order.
    Write,
    /// The request has succeeded.
    Done,
    /// The request has failed.
    Refused,
}

const KINDS: [Kind; 5] = [
    Kind::Hello,
    Kind::Read,
    Kind::Write,
    Kind::Done,
    Kind::Refused,
];

/// A request or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Type of the message.
    pub kind: Kind,
    /// Size of the memory in bytes.
    pub len: u32,
}

impl Message {
    /// Encodes the message.
    pub fn to_wire(self) -> [u8; MESSAGE_LEN] {
        let kind = KINDS.iter().zip(0..).find(|(kind, _)| **kind == self.kind);
        let [a, b, c, d] = self.len.to_be_bytes();
        // Contains every type.
        [kind.map_or(0, |(_, number)| number), 0, 0, 0, a, b, c, d]
    }

    /// Decodes a message; `None` if malformed or above [`MAX_MEMORY`].
    pub fn from_wire(wire: &[u8]) -> Option<Self> {
        let &[kind, 0, 0, 0, a, b, c, d] = wire else {
            return None;
        };
        let kind = *KINDS.get(usize::from(kind))?;
        let len = u32::from_be_bytes([a, b, c, d]);
        (len <= MAX_MEMORY).then_some(Self { kind, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_round_trips() {
        for kind in KINDS {
            let message = Message {
                kind,
                len: 0x0001_0203,
            };
            assert_eq!(Message::from_wire(&message.to_wire()), Some(message));
        }
        let write = Message {
            kind: Kind::Write,
            len: 20_000,
        };
        assert_eq!(write.to_wire(), [2, 0, 0, 0, 0, 0, 0x4E, 0x20]);
    }

    #[test]
    fn malformed_message_is_rejected() {
        let bad: [&[u8]; 5] = [
            b"",
            &[0; 7],
            &[0; 9],
            &[5, 0, 0, 0, 0, 0, 0, 1],
            // More than 1 MiB.
            &[1, 0, 0, 0, 0, 0x10, 0, 1],
        ];
        for wire in bad {
            assert_eq!(Message::from_wire(wire), None, "{wire:?}");
        }
    }
}
