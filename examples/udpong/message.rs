//! Messages, in the layout of the C program.

/// Size of messages without data, in bytes.
pub const CONTROL: usize = 16;

/// Size of the header, in bytes; the rest is payload.
const HEAD: usize = 8;

/// Purpose of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Request for a client number.
    Login,
    /// Reset of the count.
    Start,
    /// Counted by the server.
    Data,
    /// Counted and sent back by the server.
    Echo,
    /// Request for the count.
    End,
    /// Treated as data.
    Other(u8),
}

impl Op {
    fn code(self) -> u8 {
        match self {
            Self::Login => 0,
            Self::Start => 1,
            Self::Data => 2,
            Self::Echo => 3,
            Self::End => 4,
            Self::Other(code) => code,
        }
    }
}

/// A message in a buffer.
///
/// ```text
/// 0 operation   1 client   2 sequence number   3 zero   4 count, big-endian   8 anything
/// ```
#[derive(Clone, Debug)]
pub struct Message {
    bytes: Box<[u8; Self::MAX_LEN]>,
}

impl Default for Message {
    fn default() -> Self {
        Self {
            bytes: Box::new([0; Self::MAX_LEN]),
        }
    }
}

impl Message {
    /// Maximum length of a message, in bytes.
    pub const MAX_LEN: usize = HEAD + 2048;

    /// First `len` bytes, for sending.
    pub fn bytes(&self, len: usize) -> &[u8] {
        &self.bytes[..len]
    }

    /// Buffer for receiving.
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.bytes[..]
    }

    /// Whether `len` bytes form a message.
    pub fn is_whole(len: usize) -> bool {
        len >= HEAD
    }

    /// Returns the purpose.
    pub fn op(&self) -> Op {
        match self.bytes[0] {
            0 => Op::Login,
            1 => Op::Start,
            2 => Op::Data,
            3 => Op::Echo,
            4 => Op::End,
            other => Op::Other(other),
        }
    }

    /// Sets the purpose.
    pub fn set_op(&mut self, op: Op) {
        self.bytes[0] = op.code();
    }

    /// Number of the client.
    pub fn client(&self) -> u8 {
        self.bytes[1]
    }

    /// Sets the number of the client.
    pub fn set_client(&mut self, client: u8) {
        self.bytes[1] = client;
    }

    /// Sequence number among answered messages.
    pub fn sequence(&self) -> u8 {
        self.bytes[2]
    }

    /// Sets the sequence number.
    pub fn set_sequence(&mut self, sequence: u8) {
        self.bytes[2] = sequence;
    }

    /// Number of messages counted.
    pub fn count(&self) -> u32 {
        let bytes = [self.bytes[4], self.bytes[5], self.bytes[6], self.bytes[7]];
        u32::from_be_bytes(bytes)
    }

    /// Sets the number of messages counted.
    pub fn set_count(&mut self, count: u32) {
        self.bytes[4..HEAD].copy_from_slice(&count.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_layout_matches_c() {
        let mut message = Message::default();
        message.set_op(Op::End);
        message.set_client(7);
        message.set_sequence(9);
        message.set_count(0x0102_0304);
        assert_eq!(message.bytes(10), [4, 7, 9, 0, 1, 2, 3, 4, 0, 0]);
        assert_eq!(message.op(), Op::End);
        assert_eq!(message.count(), 0x0102_0304);
        message.space()[0] = 200;
        assert_eq!(message.op(), Op::Other(200));
        assert!(Message::is_whole(8) && !Message::is_whole(7));
    }
}
