//! Messages of tasks: a header, and a pattern to detect corruption.

use std::net::SocketAddrV4;

use super::options::HEADER_LEN;

/// Size of a header in bytes.
const LEN: usize = HEADER_LEN as usize;

/// Type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request for an answer.
    Request,
    /// An answer.
    Ack,
}

/// Operation of the responder on the requester's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads the memory.
    Read,
    /// Writes the memory.
    Write,
}

/// Memory fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rdma {
    /// The operation.
    pub operation: Operation,
    /// Local address of the requester's memory.
    pub addr: u64,
    /// Offset from the start of the exported range.
    pub offset: u64,
    /// Number with which the memory is filled.
    pub pattern: u64,
    /// Key of the memory; 0 if a control message has the cookie.
    pub key: u64,
    /// Size of a piece in bytes.
    pub len: u32,
    /// Number of pieces.
    pub vector: u32,
}

/// A message header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Sequence number between two tasks.
    pub sequence: u32,
    /// Sender.
    pub from: SocketAddrV4,
    /// Receiver.
    pub to: SocketAddrV4,
    /// Slot of the request among those in flight.
    pub index: u16,
    /// Type of the message.
    pub kind: Kind,
    /// Memory fields, if there is an operation.
    pub rdma: Option<Rdma>,
}

impl Header {
    /// Encodes the header.
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

    /// Decodes a header; `None` if malformed.
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

/// Bytes after a header, up to `len`.
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
    fn header_round_trips() {
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
    fn malformed_header_is_rejected() {
        let wire = header().to_wire();
        assert_eq!(Header::from_wire(&wire[..62]), None);
        for at in [18, 19] {
            let mut bad = wire;
            bad[at] = 3;
            assert_eq!(Header::from_wire(&bad), None);
        }
    }

    #[test]
    fn pattern_differs_between_blocks() {
        let bytes = pattern(600);
        // 41 · (11 + 3) = 574, and 41 · (574 + 3) = 23657.
        assert_eq!(bytes[..3], [11, 62, 105]);
        assert_ne!(bytes[..256], bytes[256..512]);
    }
}
