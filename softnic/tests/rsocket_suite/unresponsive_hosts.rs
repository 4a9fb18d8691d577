//! Unresponsive neighbours: addresses of the device's own network without a host. A fabric needs no setup for silence.

use std::net::SocketAddr;

use crate::local;

/// Replaces the setup of a guest.
pub(crate) struct UnresponsiveHosts;

impl UnresponsiveHosts {
    pub(crate) fn new() -> Self {
        Self
    }

    /// Address of an unresponsive neighbour.
    pub(crate) fn host(&self) -> SocketAddr {
        let _: &Self = self;
        let SocketAddr::V4(local_addr) = local() else {
            unreachable!("an address for IPv6");
        };
        let [a, b, c, _] = local_addr.ip().octets();
        SocketAddr::from(([a, b, c, 199], 9))
    }
}
