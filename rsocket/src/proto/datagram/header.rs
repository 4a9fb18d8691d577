//! What goes before the bytes of a datagram: over UDP, and from queue pair to queue pair.

use std::{
    error::Error,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    ops::Deref,
};

/// What every message over UDP begins with.
const TAG: [u8; 4] = [0x55; 4];
/// Bytes of the header over UDP.
const EXCHANGE_V4: usize = 16;
const EXCHANGE_V6: usize = 28;
/// Bytes of the header between queue pairs.
const ORIGIN_V4: usize = 8;
const ORIGIN_V6: usize = 24;
/// A number of a queue pair has 24 bits.
const QP_NUM: u32 = 0x00ff_ffff;

/// A header, as it goes over the wire.
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

/// Why something that has come is no datagram of this protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum BadDatagram {
    /// It is too short for its header.
    Short(usize),
    /// It does not begin as all do.
    Tag([u8; 4]),
    /// Its header is for another family, or of another size.
    Version {
        /// 4 or 6, if it were right.
        version: u8,
        /// The size of the header that it says.
        length: u8,
    },
    /// It is neither data nor an answer.
    Operation(u8),
    /// No queue pair for datagrams of programs has this number.
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

/// Reads as [`Display`](fmt::Display): `unwrap` and `fn main() -> Result` print it.
impl fmt::Debug for BadDatagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for BadDatagram {}

/// What a message over UDP is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The bytes of a datagram follow. It is answered with [`Answer`](Self::Answer).
    Data,
    /// Nothing follows: the sender's queue pair was what mattered.
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

/// The header of a message over UDP, by which peers tell each other their queue pairs.
///
/// ```text
/// 0 tag 55555555   4 version   5 operation   6 header length   7 zero
/// 8 queue pair, big-endian, in the lower 24 bits   12 the sender's own address, 4 or 16 bytes
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// What it is.
    pub operation: Operation,
    /// The sender's queue pair.
    pub qp_num: u32,
    /// The sender's own address. Nobody relies on it.
    pub addr: IpAddr,
}

impl Exchange {
    /// The header's bytes.
    pub fn encode(&self) -> Encoded {
        let mut encoded = Encoded::EMPTY;
        let (version, len) = match self.addr {
            IpAddr::V4(_) => (4, EXCHANGE_V4),
            IpAddr::V6(_) => (6, EXCHANGE_V6),
        };
        encoded.push(&TAG);
        // It is 16 or 28.
        let len = u8::try_from(len).unwrap_or(u8::MAX);
        encoded.push(&[version, self.operation.code(), len, 0]);
        encoded.push(&(self.qp_num & QP_NUM).to_be_bytes());
        match self.addr {
            IpAddr::V4(ip) => encoded.push(&ip.octets()),
            IpAddr::V6(ip) => encoded.push(&ip.octets()),
        }
        encoded
    }

    /// Reads the header of what has come from `from`, and returns it and the bytes after it.
    ///
    /// # Errors
    /// It is something else, or is not for the address family that it has come by.
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
        // The first two are for management, and the last one stands for all of a multicast group.
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

    /// How long the header is for peers of an address family.
    pub fn len_for(peer: IpAddr) -> usize {
        match peer {
            IpAddr::V4(_) => EXCHANGE_V4,
            IpAddr::V6(_) => EXCHANGE_V6,
        }
    }
}

/// The header between queue pairs: the address that the datagram is from.
///
/// ```text
/// 0 version   1 header length   2 port, big-endian
/// 4 address, 4 bytes; or flow information, 4 bytes, and 8 address, 16 bytes
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(
    /// The sender's address and port.
    pub SocketAddr,
);

impl Origin {
    /// The header's bytes.
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

    /// Reads the header of what has come, and returns it and the bytes after it.
    ///
    /// # Errors
    /// It is something else.
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

    /// How long the header is for an address family.
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

    /// Seen from a C library.
    #[test]
    fn an_answer_is_the_golden_one() {
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
    fn a_header_is_read_as_it_was_written() {
        let v6: IpAddr = "fd00::9".parse().unwrap();
        for (addr, len) in [(V4, 16), (v6, 28)] {
            let data = Exchange {
                operation: Operation::Data,
                qp_num: 0x00ab_cdef,
                addr,
            };
            let mut bytes = data.encode().to_vec();
            assert_eq!((bytes.len(), Exchange::len_for(addr)), (len, len));
            // The upper bits of the number are nobody's.
            bytes[8] = 0xff;
            bytes.extend(b"hello");
            assert_eq!(Exchange::decode(&bytes, addr), Ok((data, &b"hello"[..])));
        }
    }

    #[test]
    fn an_origin_is_read_as_it_was_written() {
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

    /// T-DG8, P29
    #[test]
    fn what_is_cut_or_wrong_is_refused() {
        let v6: IpAddr = "fd00::9".parse().unwrap();
        for addr in [V4, v6] {
            let header = Exchange {
                operation: Operation::Data,
                qp_num: 2,
                addr,
            };
            let whole = header.encode();
            for len in 0..whole.len() {
                let cut = Exchange::decode(&whole[..len], addr);
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
        // Not by the family that it says.
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
