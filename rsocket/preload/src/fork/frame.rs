//! Messages of a move.

#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Size in bytes of an offer, a confirmation and a start.
pub(crate) const FRAME_SIZE: usize = 48;

/// Size in bytes of a proof: a frame and both ends.
pub(crate) const PROOF_SIZE: usize = FRAME_SIZE + 2 * END_SIZE;

/// Size in bytes of an end: IPv6 address, with IPv4 as mapped, and port.
const END_SIZE: usize = 18;

/// First bytes of a frame: no text, and of no protocol.
const MAGIC: [u8; 15] = *b"\xf7rsocket move\x01\xf7";

/// Random number that identifies a stream.
pub(crate) type Secret = [u8; 16];

/// Both ends of a TCP connection, as the accepting side has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) accepting: SocketAddr,
    pub(crate) connecting: SocketAddr,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Accepting side, TCP: the stream may come to this RDMA port.
    Offer { port: u16 },
    /// Connecting side, first bytes of the RDMA stream.
    Proof,
    /// Accepting side, TCP: the stream is the RDMA stream from now on.
    Confirm,
    /// Connecting side, TCP: wakes the accepting side.
    Go,
}

impl Kind {
    const fn code(self) -> u8 {
        match self {
            Self::Offer { .. } => 1,
            Self::Proof => 2,
            Self::Confirm => 3,
            Self::Go => 4,
        }
    }
}

/// A message and its secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) secret: Secret,
}

/// Meaning of the first bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    Nothing,
    /// The first bytes of a frame: more bytes are under way, or these are data.
    Partial,
    Frame(Frame),
    /// Data of the program.
    Other,
}

impl Frame {
    pub(crate) fn encode(&self) -> [u8; FRAME_SIZE] {
        let mut bytes = [0; FRAME_SIZE];
        bytes[..15].copy_from_slice(&MAGIC);
        bytes[15] = self.kind.code();
        bytes[16..32].copy_from_slice(&self.secret);
        if let Kind::Offer { port } = self.kind {
            bytes[32..34].copy_from_slice(&port.to_be_bytes());
        }
        bytes
    }
}

impl Head {
    /// Whether an offer has arrived, or may be the first that arrives.
    pub(crate) fn may_be_offer(self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Frame(frame) => matches!(frame.kind, Kind::Offer { .. }),
            Self::Partial | Self::Other => false,
        }
    }

    /// Parses the first bytes of a stream.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Self::Nothing;
        }
        let compared = bytes.len().min(MAGIC.len());
        if bytes[..compared] != MAGIC[..compared] {
            return Self::Other;
        }
        let Some(frame) = bytes.first_chunk::<FRAME_SIZE>() else {
            return Self::Partial;
        };
        let kind = match frame[15] {
            1 => Kind::Offer {
                port: u16::from_be_bytes([frame[32], frame[33]]),
            },
            2 => Kind::Proof,
            3 => Kind::Confirm,
            4 => Kind::Go,
            _ => return Self::Other,
        };
        let mut secret = Secret::default();
        secret.copy_from_slice(&frame[16..32]);
        Self::Frame(Frame { kind, secret })
    }
}

fn encode_end(end: SocketAddr) -> [u8; END_SIZE] {
    let ip = match end.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; END_SIZE];
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..].copy_from_slice(&end.port().to_be_bytes());
    bytes
}

fn decode_end(bytes: &[u8]) -> Option<SocketAddr> {
    let (ip, port) = bytes.split_first_chunk::<16>()?;
    let ip = Ipv6Addr::from(*ip).to_canonical();
    Some(SocketAddr::new(
        ip,
        u16::from_be_bytes(*port.first_chunk()?),
    ))
}

/// First bytes of an RDMA stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Proof {
    pub(crate) secret: Secret,
    pub(crate) ends: Ends,
}

impl Proof {
    pub(crate) fn encode(&self) -> [u8; PROOF_SIZE] {
        let (kind, secret) = (Kind::Proof, self.secret);
        let mut bytes = [0; PROOF_SIZE];
        let (frame, ends) = bytes.split_at_mut(FRAME_SIZE);
        frame.copy_from_slice(&Frame { kind, secret }.encode());
        ends[..END_SIZE].copy_from_slice(&encode_end(self.ends.accepting));
        ends[END_SIZE..].copy_from_slice(&encode_end(self.ends.connecting));
        bytes
    }

    /// Parses a proof; `None` for anything else.
    pub(crate) fn decode(bytes: &[u8; PROOF_SIZE]) -> Option<Self> {
        let Head::Frame(Frame {
            kind: Kind::Proof,
            secret,
        }) = Head::of(bytes)
        else {
            return None;
        };
        let ends = &bytes[FRAME_SIZE..];
        Some(Self {
            secret,
            ends: Ends {
                accepting: decode_end(&ends[..END_SIZE])?,
                connecting: decode_end(&ends[END_SIZE..])?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: Kind) -> Frame {
        let secret = [7; 16];
        Frame { kind, secret }
    }

    #[test]
    fn frame_of_each_kind_is_read_back_and_its_beginning_is_no_data() {
        for kind in [
            Kind::Offer { port: 40_000 },
            Kind::Proof,
            Kind::Confirm,
            Kind::Go,
        ] {
            let bytes = frame(kind).encode();
            assert_eq!(Head::of(&[]), Head::Nothing);
            for len in 1..bytes.len() {
                assert_eq!(Head::of(&bytes[..len]), Head::Partial, "{kind:?}, {len}");
            }
            let longer = [&bytes[..], b"data"].concat();
            assert_eq!(Head::of(&longer), Head::Frame(frame(kind)));
        }
    }

    #[test]
    fn bytes_of_a_program_are_data() {
        let offer = frame(Kind::Offer { port: 1 }).encode();
        for byte in 0..16 {
            let mut other = offer;
            other[byte] ^= 0x80;
            assert_eq!(Head::of(&other), Head::Other, "{byte}");
        }
        assert_eq!(Head::of(b"GET / HTTP/1.1\r\n"), Head::Other);
        assert_eq!(Head::of(&[0; 4]), Head::Other);
    }

    #[test]
    fn proof_names_both_ends_of_either_family() {
        for (accepting, connecting) in [
            ("10.9.0.1:80", "10.9.0.2:40000"),
            ("[fd00::1]:443", "[fd00::2]:1"),
        ] {
            let proof = Proof {
                secret: [9; 16],
                ends: Ends {
                    accepting: accepting.parse().unwrap(),
                    connecting: connecting.parse().unwrap(),
                },
            };
            assert_eq!(Proof::decode(&proof.encode()), Some(proof));
        }
        let mut confirm = [0; PROOF_SIZE];
        confirm[..FRAME_SIZE].copy_from_slice(&frame(Kind::Confirm).encode());
        assert_eq!(Proof::decode(&confirm), None);
    }
}
