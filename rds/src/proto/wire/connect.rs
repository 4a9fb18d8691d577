//! What the sides tell each other when they connect: the private data of request and reply.

use std::{
    error, fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::{FRAGMENT, reader::Reader, version::Version};

/// The kind of address, which says how the private data is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4, on port 18634.
    V4,
    /// IPv6, on port 16385.
    V6,
}

impl Family {
    /// The port of the connection manager where hosts listen.
    pub const fn port(self) -> u16 {
        match self {
            Self::V4 => 18634,
            Self::V6 => 16385,
        }
    }

    /// The number of bytes of private data.
    pub const fn size(self) -> usize {
        match self {
            Self::V4 => 32,
            Self::V6 => 56,
        }
    }
}

/// The addresses of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostPair {
    /// By IPv4.
    V4 {
        /// The sender's.
        from: Ipv4Addr,
        /// The receiver's.
        to: Ipv4Addr,
    },
    /// By IPv6.
    V6 {
        /// The sender's.
        from: Ipv6Addr,
        /// The receiver's.
        to: Ipv6Addr,
    },
}

impl HostPair {
    /// The two addresses, if they are of one kind.
    pub fn new(from: IpAddr, to: IpAddr) -> Option<Self> {
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Some(Self::V4 { from, to }),
            (IpAddr::V6(from), IpAddr::V6(to)) => Some(Self::V6 { from, to }),
            _ => None,
        }
    }

    /// The kind of address.
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

    /// As the other side has them.
    #[must_use]
    pub fn reversed(self) -> Self {
        match self {
            Self::V4 { from, to } => Self::V4 { from: to, to: from },
            Self::V6 { from, to } => Self::V6 { from: to, to: from },
        }
    }
}

/// What one side tells the other when they connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// The addresses, the sender's first.
    pub hosts: HostPair,
    /// The version that is proposed, or that was agreed on.
    pub version: Version,
    /// The minor versions that the sender speaks, a bit for each.
    pub minors: u16,
    /// The type of service: connections of different ones have nothing to do with each other.
    pub tos: u8,
    /// The most bytes in a frame, for kernels that agree on it; 0 for the usual [`FRAGMENT`].
    pub fragment: u16,
    /// The number of the last message that has been received; 0 if that is not told.
    pub ack: u64,
    /// How many messages may be sent; 0 if nobody counts.
    pub credits: u32,
}

/// Why private data is no request for, or answer to, a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadConnectData {
    /// There are fewer bytes than there must be.
    Short(usize),
    /// The addresses are not those of the hosts that connect.
    Addresses(HostPair),
    /// No version that both speak.
    Version(Version),
}

impl ConnectData {
    /// What the one who dials proposes.
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

    /// The answer to a proposal that came from where `hosts` says, from its sender's view.
    ///
    /// # Errors
    /// The proposal lies about its addresses, or is of a version that nobody here speaks.
    pub fn answer(&self, hosts: HostPair) -> Result<Self, BadConnectData> {
        if self.hosts != hosts {
            return Err(BadConnectData::Addresses(self.hosts));
        }
        let version = Version::answer(self).ok_or(BadConnectData::Version(self.version))?;
        Ok(Self {
            version,
            // 4096 fits.
            fragment: if self.fragment == 0 { 0 } else { 4096 },
            ..Self::proposal(hosts.reversed(), self.tos)
        })
    }

    /// The data as it goes over the wire: 32 bytes, or 56.
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

    /// Reads what a peer has sent to a port of this family. There may be more bytes, which mean
    /// nothing: the connection manager fills up with zeros.
    ///
    /// # Errors
    /// There are too few.
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

const _: () = assert!(FRAGMENT == 4096, "what an answer says");

impl fmt::Display for BadConnectData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(len) => write!(f, "{len} bytes of private data are too few"),
            Self::Addresses(hosts) => write!(
                f,
                "it says that it goes from {} to {}, which is wrong",
                hosts.from(),
                hosts.to()
            ),
            Self::Version(version) => write!(f, "version {version} is not spoken here"),
        }
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

    /// U-W06: the request was seen on the wire.
    #[test]
    fn what_was_seen_on_the_wire() {
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

    /// U-W06
    #[test]
    fn every_field_is_kept_in_both_families() {
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

    /// U-W07
    #[test]
    fn an_answer_goes_back_to_who_asked() {
        let asked = ConnectData {
            fragment: 16384,
            ..ConnectData::proposal(v4(), 3)
        };
        let answer = asked.answer(v4()).unwrap();
        assert_eq!((answer.hosts, answer.tos), (v4().reversed(), 3));
        assert_eq!(answer.fragment, 4096);
        let lied = asked.answer(v4().reversed()).unwrap_err();
        assert_eq!(lied, BadConnectData::Addresses(v4()));
        assert_eq!(
            lied.to_string(),
            "it says that it goes from 10.9.0.2 to 10.9.0.1, which is wrong"
        );
    }
}
