//! Private data of connection requests and replies.

use std::{
    error, fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::{FRAGMENT, reader::Reader, version::Version};

/// Address family, which determines the layout of the private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4, on port 18634.
    V4,
    /// IPv6, on port 16385.
    V6,
}

impl Family {
    /// Listening port of the connection manager.
    pub const fn port(self) -> u16 {
        match self {
            Self::V4 => 18634,
            Self::V6 => 16385,
        }
    }

    /// Size of the private data in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::V4 => 32,
            Self::V6 => 56,
        }
    }
}

/// Addresses of sender and receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostPair {
    /// IPv4 addresses.
    V4 {
        /// The sender.
        from: Ipv4Addr,
        /// The receiver.
        to: Ipv4Addr,
    },
    /// IPv6 addresses.
    V6 {
        /// The sender.
        from: Ipv6Addr,
        /// The receiver.
        to: Ipv6Addr,
    },
}

impl HostPair {
    /// Pairs two addresses of one family; `None` for different families.
    pub fn new(from: IpAddr, to: IpAddr) -> Option<Self> {
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Some(Self::V4 { from, to }),
            (IpAddr::V6(from), IpAddr::V6(to)) => Some(Self::V6 { from, to }),
            _ => None,
        }
    }

    /// The family of both addresses.
    pub fn family(self) -> Family {
        match self {
            Self::V4 { .. } => Family::V4,
            Self::V6 { .. } => Family::V6,
        }
    }

    /// The sender's address.
    pub fn from(self) -> IpAddr {
        match self {
            Self::V4 { from, .. } => from.into(),
            Self::V6 { from, .. } => from.into(),
        }
    }

    /// The receiver's address.
    pub fn to(self) -> IpAddr {
        match self {
            Self::V4 { to, .. } => to.into(),
            Self::V6 { to, .. } => to.into(),
        }
    }

    /// The pair from the view of the other side.
    #[must_use]
    pub fn reversed(self) -> Self {
        match self {
            Self::V4 { from, to } => Self::V4 { from: to, to: from },
            Self::V6 { from, to } => Self::V6 { from: to, to: from },
        }
    }
}

/// Private data of a connection request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// Addresses of sender and receiver.
    pub hosts: HostPair,
    /// Proposed or accepted version.
    pub version: Version,
    /// Minor versions supported by the sender, as a bit mask.
    pub minors: u16,
    /// Type of service. Connections with different ones are independent.
    pub tos: u8,
    /// Maximum frame body in bytes, for kernels with variable fragments; 0 for [`FRAGMENT`].
    pub fragment: u16,
    /// Sequence number of the last received message; 0 if unknown.
    pub ack: u64,
    /// Number of credits; 0 without flow control.
    pub credits: u32,
}

/// Why private data is rejected.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadConnectData {
    /// Too few bytes.
    Short(usize),
    /// The addresses differ from those of the connection.
    Addresses(HostPair),
    /// No common version.
    Version(Version),
}

impl ConnectData {
    /// The private data of a request.
    pub fn proposal(hosts: HostPair, tos: u8) -> Self {
        Self {
            hosts,
            version: Version::V3_1,
            minors: Version::MINORS,
            tos,
            fragment: 0,
            ack: 0,
            credits: 0,
        }
    }

    /// The private data of a reply; `hosts` are the actual addresses of the request.
    ///
    /// # Errors
    /// The addresses in the request are wrong, or the version is not supported.
    pub fn answer(&self, hosts: HostPair) -> Result<Self, BadConnectData> {
        if self.hosts != hosts {
            return Err(BadConnectData::Addresses(self.hosts));
        }
        let version = Version::answer(self).ok_or(BadConnectData::Version(self.version))?;
        Ok(Self {
            version,
            // 4096 fits any proposal.
            fragment: if self.fragment == 0 { 0 } else { 4096 },
            ..Self::proposal(hosts.reversed(), self.tos)
        })
    }

    /// Encodes into 32 bytes for IPv4, 56 for IPv6.
    pub fn encode(&self) -> Vec<u8> {
        let mut wire = Vec::with_capacity(self.hosts.family().size());
        match self.hosts {
            HostPair::V4 { from, to } => {
                wire.extend(from.octets());
                wire.extend(to.octets());
            }
            HostPair::V6 { from, to } => {
                wire.extend(from.octets());
                wire.extend(to.octets());
            }
        }
        wire.extend([self.version.major, self.version.minor]);
        wire.extend(self.minors.to_be_bytes());
        wire.extend([self.tos, 0]);
        wire.extend(self.fragment.to_be_bytes());
        wire.extend(self.ack.to_be_bytes());
        wire.extend(self.credits.to_be_bytes());
        wire.extend([0; 4]);
        wire
    }

    /// Decodes the private data of a request on a port of this family. Additional bytes are
    /// ignored, because the connection manager pads with zeros.
    ///
    /// # Errors
    /// Too few bytes.
    pub fn decode(wire: &[u8], family: Family) -> Result<Self, BadConnectData> {
        Self::read(Reader::new(wire), family)
            .filter(|_| wire.len() >= family.size())
            .ok_or(BadConnectData::Short(wire.len()))
    }

    fn read(mut reader: Reader<'_>, family: Family) -> Option<Self> {
        let hosts = match family {
            Family::V4 => HostPair::V4 {
                from: reader.bytes::<4>()?.into(),
                to: reader.bytes::<4>()?.into(),
            },
            Family::V6 => HostPair::V6 {
                from: reader.bytes::<16>()?.into(),
                to: reader.bytes::<16>()?.into(),
            },
        };
        let version = Version {
            major: reader.u8()?,
            minor: reader.u8()?,
        };
        let minors = reader.u16()?;
        let [tos, _] = reader.bytes()?;
        Some(Self {
            hosts,
            version,
            minors,
            tos,
            fragment: reader.u16()?,
            ack: reader.u64()?,
            credits: reader.u32()?,
        })
    }
}

const _: () = assert!(FRAGMENT == 4096, "the value in replies");

impl fmt::Display for BadConnectData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(len) => write!(f, "private data of {len} bytes is too short"),
            Self::Addresses(hosts) => write!(
                f,
                "its addresses are {} and {}, and those of the connection differ",
                hosts.from(),
                hosts.to()
            ),
            Self::Version(version) => write!(f, "version {version} is not supported"),
        }
    }
}

/// Reads as [`Display`](fmt::Display): `unwrap` and `fn main() -> Result` print it.
impl fmt::Debug for BadConnectData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl error::Error for BadConnectData {}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4() -> HostPair {
        HostPair::V4 {
            from: Ipv4Addr::new(10, 9, 0, 2),
            to: Ipv4Addr::new(10, 9, 0, 1),
        }
    }

    /// With a captured request.
    #[test]
    fn connect_data_matches_captured_request() {
        let request = ConnectData::proposal(v4(), 0);
        let mut wire = vec![
            10, 9, 0, 2, 10, 9, 0, 1, 3, 1, 0, 3, 0, 0, 0, 0, //
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(request.encode(), wire);
        for len in [32, 56, 196] {
            wire.resize(len, 0);
            assert_eq!(ConnectData::decode(&wire, Family::V4), Ok(request));
        }
        for len in [0, 1, 31] {
            let read = ConnectData::decode(&wire[..len], Family::V4);
            assert_eq!(read, Err(BadConnectData::Short(len)));
        }
    }

    #[test]
    fn connect_data_round_trips_in_both_families() {
        let v6 = HostPair::new(
            IpAddr::V6(Ipv6Addr::LOCALHOST),
            "fe80::1".parse::<IpAddr>().unwrap(),
        )
        .unwrap();
        for (hosts, family) in [(v4(), Family::V4), (v6, Family::V6)] {
            let data = ConnectData {
                version: Version { major: 4, minor: 1 },
                minors: 0xabcd,
                tos: 7,
                fragment: 16384,
                ack: u64::MAX - 1,
                credits: 0x0102_0304,
                ..ConnectData::proposal(hosts, 0)
            };
            let wire = data.encode();
            assert_eq!(wire.len(), family.size());
            assert_eq!(ConnectData::decode(&wire, family), Ok(data));
            assert_eq!(hosts.reversed().reversed(), hosts);
            assert_eq!(hosts.reversed().from(), hosts.to());
        }
        assert_eq!(v6.family().port(), 16385);
        assert_eq!(v4().family().port(), 18634);
        assert_eq!(HostPair::new(v4().from(), v6.from()), None);
    }

    #[test]
    fn connect_data_reply_reverses_hosts() {
        let proposal = ConnectData {
            fragment: 16384,
            ..ConnectData::proposal(v4(), 3)
        };
        let answer = proposal.answer(v4()).unwrap();
        assert_eq!((answer.hosts, answer.tos), (v4().reversed(), 3));
        assert_eq!(answer.fragment, 4096);
        let lied = proposal.answer(v4().reversed()).unwrap_err();
        assert_eq!(lied, BadConnectData::Addresses(v4()));
        assert_eq!(
            lied.to_string(),
            "its addresses are 10.9.0.2 and 10.9.0.1, and those of the connection differ"
        );
    }
}
