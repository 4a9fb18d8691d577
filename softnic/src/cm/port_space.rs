//! Port spaces, and service ids of ports.

use crate::engine::QpKind;

/// Port space of an identifier, by kind of service. Each space has separate ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortSpace {
    /// Datagrams of IP over `InfiniBand`.
    IpoIb,
    /// Reliable connections.
    Tcp,
    /// Datagrams.
    Udp,
    /// Any service.
    Ib,
}

impl PortSpace {
    const ALL: [Self; 4] = [Self::IpoIb, Self::Tcp, Self::Udp, Self::Ib];

    /// Number of the space in `enum rdma_port_space`.
    pub fn number(self) -> u32 {
        match self {
            Self::IpoIb => 0x02,
            Self::Tcp => 0x106,
            Self::Udp => 0x111,
            Self::Ib => 0x13f,
        }
    }

    /// The space with a number of `enum rdma_port_space`.
    pub fn from_number(number: u32) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|space| space.number() == number)
    }

    /// Transport service of the space's queue pairs.
    pub fn kind(self) -> QpKind {
        match self {
            Self::IpoIb | Self::Udp => QpKind::Ud,
            Self::Tcp | Self::Ib => QpKind::Rc,
        }
    }

    /// Service id of a port.
    pub(super) fn service_id(self, port: u16) -> u64 {
        (u64::from(self.number()) << 16) | u64::from(port)
    }

    /// Space and port of a service id; `None` outside of the IP service ids.
    pub(super) fn of_service(id: u64) -> Option<(Self, u16)> {
        let [_, _, _, _, _, _, high, low] = id.to_be_bytes();
        let port = u16::from_be_bytes([high, low]);
        let mut all = Self::ALL.into_iter();
        let space = all.find(|space| space.service_id(port) == id)?;
        Some((space, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_ids_of_ports_are_those_of_the_annex() {
        assert_eq!(PortSpace::Tcp.service_id(0x1d2f), 0x0106_1d2f);
        assert_eq!(PortSpace::Udp.service_id(7), 0x0111_0007);
        assert_eq!(PortSpace::IpoIb.service_id(7), 0x0002_0007);
        for space in PortSpace::ALL {
            assert_eq!(PortSpace::of_service(space.service_id(9)), Some((space, 9)));
            assert_eq!(PortSpace::from_number(space.number()), Some(space));
        }
        assert_eq!(PortSpace::of_service(0x1_0106_1d2f), None);
        assert_eq!(PortSpace::from_number(0x107), None);
    }
}
