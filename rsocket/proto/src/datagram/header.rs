//! Headers of datagrams: over UDP, and between queue pairs.

use std::{
    error::Error,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    ops::Deref,
};

/// First bytes of every message over UDP.
const TAG: [u8; 4] = [0x55; 4];
/// Size in bytes of the header over UDP.
const EXCHANGE_V4: usize = 16;
const EXCHANGE_V6: usize = 28;
/// Size in bytes of the header between queue pairs.
const ORIGIN_V4: usize = 8;
const ORIGIN_V6: usize = 24;
/// Mask of a queue pair number: 24 bits.
const QP_NUM: u32 = 0x00ff_ffff;

/// An encoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    bytes: [u8; EXCHANGE_V6],
    len: usize,
}

impl Encoded {
    const EMPTY: Self = Self {
        bytes: [0; EXCHANGE_V6],
        len: 0,
    };

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

impl Deref for Encoded {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Reason for rejecting a received message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum BadDatagram {
    /// Shorter than its header; holds the length in bytes.
    Short(usize),
    /// Wrong tag.
    Tag([u8; 4]),
    /// A header of another address family or size.
    Version {
        /// Version field: 4 or 6 if valid.
        version: u8,
        /// Length field, in bytes.
        length: u8,
    },
    /// Unknown operation code.
    Operation(u8),
    /// A queue pair number reserved by the verbs.
    QueuePair(u32),
}

impl fmt::Display for BadDatagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(len) => write!(f, "{len} bytes are less than the header"),
            Self::Tag(tag) => write!(f, "it begins with {tag:02x?}"),
            Self::Version { version, length } => {
                write!(f, "version {version} with a header of {length} bytes")
            }
            Self::Operation(op) => write!(f, "operation {op}"),
            Self::QueuePair(number) => write!(f, "queue pair {number:#x}"),
        }
    }
}

/// Prints the [`Display`](fmt::Display) text, since `unwrap` and `fn main() -> Result` print errors with
/// `Debug`.
impl fmt::Debug for BadDatagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for BadDatagram {}

/// Kind of a message over UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Carries the bytes of a datagram. The receiver replies with [`Answer`](Self::Answer).
    Data,
    /// Carries only the sender's queue pair number.
    Answer,
}

impl Operation {
    fn code(self) -> u8 {
        match self {
            Self::Data => 0,
            Self::Answer => 7,
        }
    }
}

/// Header of a message over UDP: advertises the sender's queue pair number.
///
/// ```text
/// 0 tag 55555555   4 version   5 operation   6 header length   7 zero
/// 8 queue pair, big-endian, in the lower 24 bits   12 the sender's own address, 4 or 16 bytes
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Kind of the message.
    pub operation: Operation,
    /// Queue pair number of the sender.
    pub qp_num: u32,
    /// Address of the sender. Ignored by receivers.
    pub addr: IpAddr,
}

impl Exchange {
    /// Encodes the header.
    pub fn encode(&self) -> Encoded {
        let mut encoded = Encoded::EMPTY;
        let (version, len) = match self.addr {
            IpAddr::V4(_) => (4, EXCHANGE_V4),
            IpAddr::V6(_) => (6, EXCHANGE_V6),
        };
        encoded.push(&TAG);
        // The length is 16 or 28.
        let len = u8::try_from(len).unwrap_or(u8::MAX);
        encoded.push(&[version, self.operation.code(), len, 0]);
        encoded.push(&(self.qp_num & QP_NUM).to_be_bytes());
        match self.addr {
            IpAddr::V4(ip) => encoded.push(&ip.octets()),
            IpAddr::V6(ip) => encoded.push(&ip.octets()),
        }
        encoded
    }

    /// Decodes a message from `from`. Returns the header and the payload.
    ///
    /// # Errors
    /// The message is malformed, or of another address family than `from`.
    pub fn decode(bytes: &[u8], from: IpAddr) -> Result<(Self, &[u8]), BadDatagram> {
        let short = BadDatagram::Short(bytes.len());
        let (tag, rest) = bytes.split_first_chunk::<4>().ok_or(short)?;
        if *tag != TAG {
            return Err(BadDatagram::Tag(*tag));
        }
        let (&[version, op, length, _], rest) = rest.split_first_chunk().ok_or(short)?;
        let (qp_num, rest) = rest.split_first_chunk().ok_or(short)?;
        let (addr, payload) = match (from, version, usize::from(length)) {
            (IpAddr::V4(_), 4, EXCHANGE_V4) => {
                let (ip, payload) = rest.split_first_chunk::<4>().ok_or(short)?;
                (IpAddr::from(*ip), payload)
            }
            (IpAddr::V6(_), 6, EXCHANGE_V6) => {
                let (ip, payload) = rest.split_first_chunk::<16>().ok_or(short)?;
                (IpAddr::from(*ip), payload)
            }
            _ => return Err(BadDatagram::Version { version, length }),
        };
        let operation = match op {
            0 => Operation::Data,
            7 => Operation::Answer,
            op => return Err(BadDatagram::Operation(op)),
        };
        // Queue pairs 0 and 1 are for management; the last number addresses a multicast group.
        let qp_num = u32::from_be_bytes(*qp_num) & QP_NUM;
        if qp_num < 2 || qp_num == QP_NUM {
            return Err(BadDatagram::QueuePair(qp_num));
        }
        let header = Self {
            operation,
            qp_num,
            addr,
        };
        Ok((header, payload))
    }

    /// Returns the length of the header for an address family, in bytes.
    pub fn len_for(peer: IpAddr) -> usize {
        match peer {
            IpAddr::V4(_) => EXCHANGE_V4,
            IpAddr::V6(_) => EXCHANGE_V6,
        }
    }
}

/// Header between queue pairs: the source address of the datagram.
///
/// ```text
/// 0 version   1 header length   2 port, big-endian
/// 4 address, 4 bytes; or flow information, 4 bytes, and 8 address, 16 bytes
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(
    /// Address and port of the sender.
    pub SocketAddr,
);

impl Origin {
    /// Encodes the header.
    pub fn encode(&self) -> Encoded {
        let mut encoded = Encoded::EMPTY;
        let port = self.0.port().to_be_bytes();
        match self.0 {
            SocketAddr::V4(addr) => {
                encoded.push(&[4, 8]);
                encoded.push(&port);
                encoded.push(&addr.ip().octets());
            }
            SocketAddr::V6(addr) => {
                encoded.push(&[6, 24]);
                encoded.push(&port);
                encoded.push(&addr.flowinfo().to_be_bytes());
                encoded.push(&addr.ip().octets());
            }
        }
        encoded
    }

    /// Decodes a message. Returns the header and the payload.
    ///
    /// # Errors
    /// The message is malformed.
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), BadDatagram> {
        let short = BadDatagram::Short(bytes.len());
        let (&[version, length], rest) = bytes.split_first_chunk().ok_or(short)?;
        let (port, rest) = rest.split_first_chunk().ok_or(short)?;
        let port = u16::from_be_bytes(*port);
        match (version, length) {
            (4, 8) => {
                let (ip, payload) = rest.split_first_chunk::<4>().ok_or(short)?;
                Ok((Self((Ipv4Addr::from(*ip), port).into()), payload))
            }
            (6, 24) => {
                let (flow, rest) = rest.split_first_chunk().ok_or(short)?;
                let (ip, payload) = rest.split_first_chunk::<16>().ok_or(short)?;
                let flow = u32::from_be_bytes(*flow);
                let addr = SocketAddrV6::new(Ipv6Addr::from(*ip), port, flow, 0);
                Ok((Self(addr.into()), payload))
            }
            _ => Err(BadDatagram::Version { version, length }),
        }
    }

    /// Returns the length of the header for an address family, in bytes.
    pub fn len_for(addr: IpAddr) -> usize {
        match addr {
            IpAddr::V4(_) => ORIGIN_V4,
            IpAddr::V6(_) => ORIGIN_V6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));

    /// Captured from librdmacm.
    #[test]
    fn datagram_answer_matches_the_captured_bytes() {
        let answer = Exchange {
            operation: Operation::Answer,
            qp_num: 0x11,
            addr: V4,
        };
        let golden = [
            0x55, 0x55, 0x55, 0x55, 4, 7, 16, 0, 0, 0, 0, 0x11, 10, 9, 0, 1,
        ];
        assert_eq!(*answer.encode(), golden);
        assert_eq!(Exchange::decode(&golden, V4), Ok((answer, &[][..])));
    }

    #[test]
    fn datagram_header_round_trips() {
        let v6: IpAddr = "fd00::9".parse().unwrap();
        for (addr, len) in [(V4, 16), (v6, 28)] {
            let data = Exchange {
                operation: Operation::Data,
                qp_num: 0x00ab_cdef,
                addr,
            };
            let mut bytes = data.encode().to_vec();
            assert_eq!((bytes.len(), Exchange::len_for(addr)), (len, len));
            // The upper eight bits of the number are ignored.
            bytes[8] = 0xff;
            bytes.extend(b"hello");
            assert_eq!(Exchange::decode(&bytes, addr), Ok((data, &b"hello"[..])));
        }
    }

    #[test]
    fn datagram_source_round_trips() {
        let golden = [4, 8, 0x1c, 0x06, 10, 9, 0, 1];
        let origin = Origin((V4, 7174).into());
        assert_eq!(*origin.encode(), golden);
        assert_eq!(Origin::decode(&golden), Ok((origin, &[][..])));
        let v6 = SocketAddrV6::new("fd00::1".parse().unwrap(), 0x0102, 0x0304_0506, 0);
        let origin = Origin(v6.into());
        let mut bytes = origin.encode().to_vec();
        assert_eq!(bytes[..8], [6, 24, 1, 2, 3, 4, 5, 6]);
        assert_eq!(bytes.len(), Origin::len_for(v6.ip().to_owned().into()));
        bytes.push(7);
        assert_eq!(Origin::decode(&bytes), Ok((origin, &[7][..])));
    }

    #[test]
    fn datagram_header_truncated_or_invalid_is_refused() {
        let v6: IpAddr = "fd00::9".parse().unwrap();
        for addr in [V4, v6] {
            let header = Exchange {
                operation: Operation::Data,
                qp_num: 2,
                addr,
            };
            let encoded = header.encode();
            for len in 0..encoded.len() {
                let cut = Exchange::decode(&encoded[..len], addr);
                assert_eq!(cut, Err(BadDatagram::Short(len)));
            }
            let origin = Origin((addr, 1).into()).encode();
            for len in 0..origin.len() {
                let cut = Origin::decode(&origin[..len]);
                assert_eq!(cut, Err(BadDatagram::Short(len)));
            }
        }
        let four = Exchange {
            operation: Operation::Data,
            qp_num: 2,
            addr: V4,
        };
        // Rejected: not the family of the sender's address.
        assert!(Exchange::decode(&four.encode(), v6).is_err());
        for (at, value) in [(0, 0), (4, 6), (5, 1), (6, 28), (6, 0), (11, 0), (11, 1)] {
            let mut bytes = four.encode().to_vec();
            bytes[at] = value;
            assert!(Exchange::decode(&bytes, V4).is_err(), "{at}");
        }
        for (version, length) in [(4, 24), (6, 8), (0, 0), (255, 255)] {
            let mut bytes = [0; 40];
            (bytes[0], bytes[1]) = (version, length);
            let refused = Origin::decode(&bytes);
            assert_eq!(refused, Err(BadDatagram::Version { version, length }));
        }
    }
}
