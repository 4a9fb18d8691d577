//! Protocol versions.

use std::fmt;

use super::connect::ConnectData;

/// Private data of a rejection: an `int` in host byte order.
pub const REJECTED: [u8; 4] = 1_i32.to_ne_bytes();

/// A protocol version. All supported versions have the same wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Major version.
    pub major: u8,
    /// Minor version.
    pub minor: u8,
}

impl Version {
    /// The version supported by every host, and proposed by this one.
    pub const V3_1: Self = Self { major: 3, minor: 1 };

    /// Supported minor versions, 0 and 1, as a bit mask.
    pub const MINORS: u16 = 0b11;

    /// The version of the reply to a proposal; `None` if there is no common one.
    pub fn answer(proposal: &ConnectData) -> Option<Self> {
        match proposal.version {
            Self::V3_1 => Some(Self::V3_1),
            Self { major: 4, .. } => match proposal.minors & Self::MINORS {
                0 => None,
                common => Some(Self {
                    major: 4,
                    minor: u8::from(common & 0b10 != 0),
                }),
            },
            _ => None,
        }
    }

    /// The version accepted by `reply`; `None` if it is not supported.
    pub fn adopt(reply: &ConnectData) -> Option<Self> {
        let version = reply.version;
        if version.major == 0 {
            return Some(Self::V3_1);
        }
        (version >= Self::V3_1 && version.major <= 4).then_some(version)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::wire::HostPair;

    fn data(major: u8, minor: u8, minors: u16) -> ConnectData {
        let hosts = HostPair::V4 {
            from: Ipv4Addr::LOCALHOST,
            to: Ipv4Addr::LOCALHOST,
        };
        ConnectData {
            version: Version { major, minor },
            minors,
            ..ConnectData::proposal(hosts, 0)
        }
    }

    #[test]
    fn version_reply_follows_the_table() {
        let rows = [
            (data(3, 1, 3), Some((3, 1))),
            (data(3, 1, 0), Some((3, 1))),
            (data(4, 1, 3), Some((4, 1))),
            (data(4, 1, 1), Some((4, 0))),
            (data(4, 0, 2), Some((4, 1))),
            (data(4, 1, 4), None),
            (data(0, 0, 3), None),
            (data(3, 0, 3), None),
            (data(3, 2, 3), None),
            (data(5, 1, 3), None),
        ];
        for (proposal, answer) in rows {
            let answer = answer.map(|(major, minor)| Version { major, minor });
            assert_eq!(Version::answer(&proposal), answer, "{proposal:?}");
        }
        assert_eq!(REJECTED, 1_i32.to_ne_bytes());
    }

    #[test]
    fn version_reply_is_adopted_if_supported() {
        let adopted = |major, minor| {
            Version::adopt(&data(major, minor, 3)).map(|version| version.to_string())
        };
        assert_eq!(adopted(0, 0).as_deref(), Some("3.1"));
        assert_eq!(adopted(3, 1).as_deref(), Some("3.1"));
        assert_eq!(adopted(4, 0).as_deref(), Some("4.0"));
        assert_eq!(
            (adopted(3, 0), adopted(2, 9), adopted(5, 0)),
            (None, None, None)
        );
    }
}
