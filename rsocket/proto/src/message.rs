//! Messages: 32 bits beside the payload.

use std::fmt;

const OP_SHIFT: u32 = 29;
const ARGUMENT: u32 = (1 << OP_SHIFT) - 1;

const DATA: u32 = 0;
const DATA_MORE: u32 = 1;
const CREDIT: u32 = 4;
const IOMAP: u32 = 6;
const CONTROL: u32 = 7;

/// A message: the immediate data of an RDMA write, or, over iWARP, a separate message of four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The number of bytes written to the receiver's next target.
    Data(u32),
    /// New limit for the total number of messages sent, modulo 2¹⁶. A target may have been written along with
    /// the message.
    Credit(u16),
    /// Index of the entry written in the receiver's table of mappings.
    Iomap(u16),
    /// A message without data.
    Control(Control),
    /// A reserved operation code, never sent.
    Reserved(u8),
}

/// A message without data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The sender has shut down both directions.
    Disconnect,
    /// No effect. Sent by implementations before 2014 as a keepalive probe.
    KeepAlive,
    /// The sender has shut down sending.
    Shutdown,
    /// Unknown code, to be ignored.
    Unknown(u32),
}

impl Message {
    /// Encodes the message.
    pub fn encode(self) -> u32 {
        let (op, argument) = match self {
            Self::Data(len) => (DATA, len & ARGUMENT),
            Self::Credit(limit) => (CREDIT, limit.into()),
            Self::Iomap(index) => (IOMAP, index.into()),
            Self::Control(control) => (CONTROL, control.argument()),
            Self::Reserved(op) => (u32::from(op & 7), 0),
        };
        op << OP_SHIFT | argument
    }

    /// Decodes a message.
    pub fn decode(word: u32) -> Self {
        let (op, argument) = (word >> OP_SHIFT, word & ARGUMENT);
        // The upper bits are ignored: the sender's counter may exceed 16 bits.
        let [_, _, high, low] = argument.to_be_bytes();
        let low = u16::from_be_bytes([high, low]);
        match op {
            DATA | DATA_MORE => Self::Data(argument),
            CREDIT => Self::Credit(low),
            IOMAP => Self::Iomap(low),
            CONTROL => Self::Control(Control::from_argument(argument)),
            _ => {
                let [_, _, _, op] = op.to_be_bytes();
                Self::Reserved(op)
            }
        }
    }
}

impl Control {
    fn argument(self) -> u32 {
        match self {
            Self::Disconnect => 0,
            Self::KeepAlive => 1,
            Self::Shutdown => 2,
            Self::Unknown(argument) => argument & ARGUMENT,
        }
    }

    fn from_argument(argument: u32) -> Self {
        match argument {
            0 => Self::Disconnect,
            1 => Self::KeepAlive,
            2 => Self::Shutdown,
            _ => Self::Unknown(argument),
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?} ({:#010x})", self.encode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_encoding_matches_the_captured_words() {
        for (message, word) in [
            (Message::Data(10), 0x0000_000a),
            (Message::Credit(0x180), 0x8000_0180),
            (Message::Credit(0x240), 0x8000_0240),
            (Message::Iomap(0), 0xc000_0000),
            (Message::Control(Control::Disconnect), 0xe000_0000),
            (Message::Control(Control::KeepAlive), 0xe000_0001),
            (Message::Control(Control::Shutdown), 0xe000_0002),
        ] {
            assert_eq!(message.encode(), word, "{message}");
            assert_eq!(Message::decode(word), message);
        }
    }

    /// A counter beyond 16 bits.
    #[test]
    fn credit_message_has_sixteen_bits() {
        assert_eq!(Message::decode(0x8001_0005), Message::Credit(5));
    }

    #[test]
    fn unknown_message_round_trips() {
        assert_eq!(Message::decode(0x2000_0009), Message::Data(9));
        for op in [2, 3, 5] {
            let word = u32::from(op) << 29 | 77;
            assert_eq!(Message::decode(word), Message::Reserved(op));
        }
        for argument in [3, 0x77, 0x1fff_ffff] {
            let message = Message::Control(Control::Unknown(argument));
            assert_eq!(Message::decode(0xe000_0000 | argument), message);
            assert_eq!(message.encode(), 0xe000_0000 | argument);
        }
    }
}
