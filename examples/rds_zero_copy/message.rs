//! What the two sides say to each other: 8 bytes, of which the first says what, and the last four
//! how many bytes of memory it is about, in network order.
//!
//! The name of the memory goes beside the message, so that kernels' programs can send it as well:
//! they learn the name only when the message has been sent.

/// The length of every message.
pub const MESSAGE_LEN: usize = 8;

/// The most memory of one request, which is what RDS allows.
pub const MAX_MEMORY: u32 = 1 << 20;

/// What is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Are you there? It is answered by the same.
    Hello,
    /// Read my memory.
    Read,
    /// Write what you have read from me back to my memory, the last byte first.
    Write,
    /// That is done.
    Done,
    /// That is not done.
    Refused,
}

const KINDS: [Kind; 5] = [
    Kind::Hello,
    Kind::Read,
    Kind::Write,
    Kind::Done,
    Kind::Refused,
];

/// A request, or its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// What is said.
    pub kind: Kind,
    /// The number of bytes of the memory.
    pub len: u32,
}

impl Message {
    /// The message as it is sent.
    pub fn to_wire(self) -> [u8; MESSAGE_LEN] {
        let kind = KINDS.iter().zip(0..).find(|(kind, _)| **kind == self.kind);
        let [a, b, c, d] = self.len.to_be_bytes();
        // Every kind is among them.
        [kind.map_or(0, |(_, number)| number), 0, 0, 0, a, b, c, d]
    }

    /// Reads what a peer has sent. `None` if it is no message, or one about more memory than
    /// can be.
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
    fn messages_are_read_as_they_are_written() {
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
    fn what_is_no_message_is_not_read() {
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
