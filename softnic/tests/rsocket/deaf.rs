//! Hosts of the device's own network that do not exist: on a fabric, nothing has to be set up for them to be silent.

use std::net::SocketAddr;

use crate::local;

/// Stands for the setup that a guest needs.
pub(crate) struct DeafNeighbours;

impl DeafNeighbours {
    pub(crate) fn new() -> Self {
        Self
    }

    /// One of them.
    pub(crate) fn host(&self) -> SocketAddr {
        let _: &Self = self;
        let SocketAddr::V4(own) = local() else {
            unreachable!("an address for IPv6");
        };
        let [a, b, c, _] = own.ip().octets();
        SocketAddr::from(([a, b, c, 199], 9))
    }
}
