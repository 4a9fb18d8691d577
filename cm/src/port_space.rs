//! Port spaces: the kind of service of an identifier.

use rdmacm_sys::rdma_port_space;

/// `rdma_port_space`—Kind of service of an identifier, with a numbering of ports.
///
/// # References
/// [rdma_create_id(3)](https://man7.org/linux/man-pages/man3/rdma_create_id.3.html)
#[doc(alias = "rdma_port_space")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortSpace {
    /// Reliable connections, with the port numbers of TCP.
    #[doc(alias = "RDMA_PS_TCP")]
    #[default]
    Tcp,
    /// Datagrams and multicast, with the port numbers of UDP.
    #[doc(alias = "RDMA_PS_UDP")]
    Udp,
    /// Datagrams in the multicast groups of IP over InfiniBand. On InfiniBand only.
    #[doc(alias = "RDMA_PS_IPOIB")]
    IpoIb,
    /// Any service, identified by an InfiniBand service ID.
    #[doc(alias = "RDMA_PS_IB")]
    Ib,
}

impl PortSpace {
    pub(crate) fn to_raw(self) -> rdma_port_space {
        match self {
            Self::Tcp => rdma_port_space::RDMA_PS_TCP,
            Self::Udp => rdma_port_space::RDMA_PS_UDP,
            Self::IpoIb => rdma_port_space::RDMA_PS_IPOIB,
            Self::Ib => rdma_port_space::RDMA_PS_IB,
        }
    }

    pub(crate) fn from_raw(raw: rdma_port_space) -> Option<Self> {
        [Self::Tcp, Self::Udp, Self::IpoIb, Self::Ib]
            .into_iter()
            .find(|space| space.to_raw() == raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_space_round_trips_and_unknown_numbers_are_none() {
        for (space, number) in [
            (PortSpace::IpoIb, 2),
            (PortSpace::Tcp, 0x106),
            (PortSpace::Udp, 0x111),
            (PortSpace::Ib, 0x13f),
        ] {
            assert_eq!(space.to_raw().0, number);
            assert_eq!(PortSpace::from_raw(space.to_raw()), Some(space));
        }
        assert_eq!(PortSpace::from_raw(rdma_port_space(0x107)), None);
    }
}
