//! The interface of a host: MTU and link.

use super::network::Network;
use crate::carrier::Interface;

/// Maximum length of a frame's headers, for the path MTU.
const MAX_HEADERS: u32 = 40 + 8 + 12 + 4 + 28 + 4;

/// MTU of an interface that the system does not report: the minimum of IPv6, which the links of most tunnels have.
pub(super) const UNKNOWN_MTU: u32 = 1280;

impl Network {
    /// Sets the MTU of a host's interface, in bytes.
    pub(super) fn set_mtu(&mut self, host: usize, mtu: u32) {
        let host = &mut self.hosts[host];
        host.engine.set_mtu(path_mtu(mtu));
        host.manager.set_mtu(path_mtu(mtu));
    }

    /// Sets the state of the interface with a host's address; `None` if no interface has the address.
    pub(super) fn set_interface(&mut self, host: usize, interface: Option<&Interface>) {
        let of = &mut self.hosts[host];
        if let (Some(carrier), Some(interface)) = (&mut of.carrier, interface) {
            carrier.set_interface(interface.index);
            of.engine.set_gids(true);
            self.set_mtu(host, interface.mtu);
            self.set_link(host, interface.has_link);
        }
        self.activate(host);
    }

    /// Takes the address from a host's interface. `has_link` is the state of the interface.
    pub(super) fn remove_address(&mut self, host: usize, has_link: bool) {
        self.set_link(host, has_link);
        self.hosts[host].engine.set_gids(false);
        self.activate(host);
    }
}

/// Greatest path MTU whose frames fit a link's MTU, at least 256: as `iboe_get_mtu` of Linux, which subtracts the headers
/// of IPv6, UDP, BTH, XRCETH and `AtomicETH`, and the ICRC.
fn path_mtu(link_mtu: u32) -> u32 {
    let payload = link_mtu.saturating_sub(MAX_HEADERS);
    1 << payload.clamp(256, 4096).ilog2()
}
