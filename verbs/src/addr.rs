//! Addresses: GIDs and LIDs.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

use ibverbs_sys as ffi;

/// `ibv_gid`—A global identifier: the 128-bit address of a port, written like an IPv6 address.
///
/// On RoCE, the IP address of the port's network interface; an IPv4 address is mapped to IPv6.
///
/// ```
/// use verbs::Gid;
/// let gid = Gid::from("10.9.0.1".parse::<std::net::IpAddr>().unwrap());
/// assert_eq!(gid.to_string(), "::ffff:10.9.0.1");
/// assert_eq!(gid.to_ip(), "10.9.0.1".parse::<std::net::IpAddr>().unwrap());
/// ```
#[doc(alias = "ibv_gid")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(
    /// The bytes, in network order.
    pub [u8; 16],
);

impl Gid {
    /// Whether all bytes are zero: an empty entry of a port's table.
    pub fn is_unspecified(self) -> bool {
        self.0 == [0; 16]
    }

    /// The address as an IP address: an IPv4 one if the GID is a mapped IPv4 address.
    pub fn to_ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }
}

impl From<IpAddr> for Gid {
    fn from(addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }
}

impl From<ffi::ibv_gid> for Gid {
    fn from(gid: ffi::ibv_gid) -> Self {
        Self(gid.to_raw())
    }
}

impl From<Gid> for ffi::ibv_gid {
    fn from(gid: Gid) -> Self {
        Self::from_raw(gid.0)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}
