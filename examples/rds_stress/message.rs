//! The messages of tasks: a header, and bytes that can be told from others'.

use std::net::SocketAddrV4;

use super::options::HEADER_LEN;

/// The bytes of a header.
const LEN: usize = HEADER_LEN as usize;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It wants an answer.
    Request,
    /// It is one.
    Ack,
}

/// What the answerer does with memory of the requester's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

/// The part of a header that is about memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rdma {
    /// What is done with it.
    pub operation: Operation,
    /// The requester's own name for it.
    pub addr: u64,
    /// Where it begins in what the key names.
    pub offset: u64,
    /// The number that it is filled with.
    pub pattern: u64,
    /// Its name for the answerer; 0 if the name is beside the message.
    pub key: u64,
    /// The bytes of a piece.
    pub len: u32,
    /// The number of pieces.
    pub vector: u32,
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The number of the message, of those from one task to another.
    pub sequence: u32,
    /// Who sends it.
    pub from: SocketAddrV4,
    /// To whom.
    pub to: SocketAddrV4,
    /// Which of the requests that wait at the same time it is, or is about.
    pub index: u16,
    /// What it is.
    pub kind: Kind,
    /// Memory, if there is an operation.
    pub rdma: Option<Rdma>,
}

impl Header {
    /// As it is sent.
    pub fn to_wire(&self) -> [u8; LEN] {
        let mut wire = [0; LEN];
        let mut put = |at: usize, bytes: &[u8]| wire[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.sequence.to_be_bytes());
        put(4, &self.from.ip().octets());
        put(8, &self.to.ip().octets());
        put(12, &self.from.port().to_be_bytes());
        put(14, &self.to.port().to_be_bytes());
        put(16, &self.index.to_be_bytes());
        put(18, &[if self.kind == Kind::Request { 1 } else { 2 }]);
        if let Some(rdma) = self.rdma {
            put(
                19,
                &[if rdma.operation == Operation::Read {
                    1
                } else {
                    2
                }],
            );
            put(20, &rdma.addr.to_be_bytes());
            put(28, &rdma.offset.to_be_bytes());
            put(36, &rdma.pattern.to_be_bytes());
            put(44, &rdma.key.to_be_bytes());
            put(52, &rdma.len.to_be_bytes());
            put(56, &rdma.vector.to_be_bytes());
        }
        wire
    }

    /// Reads what a peer has sent; `None` if it is no message.
    pub fn from_wire(bytes: &[u8]) -> Option<Self> {
        let wire: &[u8; LEN] = bytes.first_chunk()?;
        let short = |at: usize| u16::from_be_bytes([wire[at], wire[at + 1]]);
        let long = |at: usize| u32::from(short(at)) << 16 | u32::from(short(at + 2));
        let quad = |at: usize| u64::from(long(at)) << 32 | u64::from(long(at + 4));
        let operation = match wire[19] {
            0 => None,
            1 => Some(Operation::Read),
            2 => Some(Operation::Write),
            _ => return None,
        };
        Some(Self {
            sequence: long(0),
            from: SocketAddrV4::new(long(4).into(), short(12)),
            to: SocketAddrV4::new(long(8).into(), short(14)),
            index: short(16),
            kind: match wire[18] {
                1 => Kind::Request,
                2 => Kind::Ack,
                _ => return None,
            },
            rdma: operation.map(|operation| Rdma {
                operation,
                addr: quad(20),
                offset: quad(28),
                pattern: quad(36),
                key: quad(44),
                len: long(52),
                vector: long(56),
            }),
        })
    }
}

/// What is in messages after their headers, up to `len` bytes.
pub fn pattern(len: usize) -> Vec<u8> {
    let mut value = 11_u32;
    let mut bytes = Vec::with_capacity(len);
    for next in 1..=u32::try_from(len).unwrap_or(u32::MAX) {
        bytes.push(value.to_le_bytes()[0]);
        value = value
            .wrapping_add(3)
            .wrapping_mul(41)
            .wrapping_add(next >> 8);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            sequence: 0x0102_0304,
            from: SocketAddrV4::new([10, 9, 0, 1].into(), 4001),
            to: SocketAddrV4::new([10, 9, 0, 2].into(), 4002),
            index: 3,
            kind: Kind::Ack,
            rdma: Some(Rdma {
                operation: Operation::Write,
                addr: 5,
                offset: 6,
                pattern: 7,
                key: 0x0000_0100_0000_0300,
                len: 20_000,
                vector: 4,
            }),
        }
    }

    #[test]
    fn headers_are_read_as_they_are_written() {
        let wire = header().to_wire();
        let start = [
            1, 2, 3, 4, 10, 9, 0, 1, 10, 9, 0, 2, 0x0F, 0xA1, 0x0F, 0xA2, 0, 3, 2, 2,
        ];
        assert_eq!(wire[..20], start);
        assert_eq!(
            wire[44..60],
            [0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 0x4E, 0x20, 0, 0, 0, 4]
        );
        assert_eq!(Header::from_wire(&wire), Some(header()));
        let plain = Header {
            rdma: None,
            kind: Kind::Request,
            ..header()
        };
        assert_eq!(Header::from_wire(&plain.to_wire()), Some(plain));
    }

    #[test]
    fn what_is_no_header_is_not_read() {
        let wire = header().to_wire();
        assert_eq!(Header::from_wire(&wire[..62]), None);
        for at in [18, 19] {
            let mut bad = wire;
            bad[at] = 3;
            assert_eq!(Header::from_wire(&bad), None);
        }
    }

    #[test]
    fn patterns_differ_from_block_to_block() {
        let bytes = pattern(600);
        // 41 · (11 + 3) = 574, and 41 · (574 + 3) = 23657.
        assert_eq!(bytes[..3], [11, 62, 105]);
        assert_ne!(bytes[..256], bytes[256..512]);
    }
}
