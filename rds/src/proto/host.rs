//! Addresses of hosts, to be looked up.

use std::net::IpAddr;

/// An address of a host as one number, which a map compares at once; with `IpAddr` it takes thrice as long. Those of
/// IPv4 are as IPv6 writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Host(u128);

impl From<IpAddr> for Host {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self((0xffff << 32) | u128::from(v4.to_bits())),
            IpAddr::V6(v6) => Self(v6.to_bits()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn what_is_written_differently_is_the_same_host() {
        let v4 = Ipv4Addr::new(10, 9, 0, 1);
        let mapped = IpAddr::V6(v4.to_ipv6_mapped());
        assert_eq!(Host::from(IpAddr::V4(v4)), Host::from(mapped));
        let all = ["0.0.0.1", "::1", "10.9.0.1", "10.9.0.2", "fd09::1"];
        let hosts = all.map(|text| Host::from(text.parse::<IpAddr>().unwrap()));
        let different: std::collections::BTreeSet<Host> = hosts.into_iter().collect();
        assert_eq!(different.len(), all.len());
    }
}
