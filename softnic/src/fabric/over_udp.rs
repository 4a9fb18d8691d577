//! Hosts with a socket: packets on their way to it, and their number in flight.

use std::{net::IpAddr, sync::Arc};

use super::{interface, network::Network};
use crate::{
    carrier::{Carrier, KeeperLink},
    cm::Claims,
    engine::Packet,
};

/// Minimum and maximum of the number of packets of a connection in flight over UDP, and the bytes of the socket's buffer for each:
/// a frame of 4096 bytes takes up to three times as many, and the kernel's default buffer has a few hundred kilobytes. After
/// a loss, all packets in flight are sent again.
const IN_FLIGHT_OVER_UDP: [u32; 2] = [32, 128];
const BUFFER_IN_FLIGHT: u32 = 3 * 4096;

impl Network {
    /// Adds a host with a socket, and returns its index.
    ///
    /// # Panics
    /// If another host has the address.
    pub(super) fn add_host_over_udp(&mut self, addr: IpAddr, carrier: Carrier) -> usize {
        // Processes with the same seed have hosts with other addresses.
        let index = self.add_host_without_socket(addr);
        let host = &mut self.hosts[index];
        if let Some((slot, keeper)) = carrier.shared() {
            host.engine.set_slot(*slot);
            let claims: Arc<dyn Claims> = Arc::<KeeperLink>::clone(keeper);
            host.manager.share(*slot, claims);
        }
        let [min, max] = IN_FLIGHT_OVER_UDP;
        let in_flight = carrier.link().buffer() / BUFFER_IN_FLIGHT;
        host.engine.set_max_in_flight(in_flight.clamp(min, max));
        host.carrier = Some(carrier);
        self.set_mtu(index, interface::UNKNOWN_MTU);
        index
    }

    /// Prepares for a packet over a host's socket, and returns the packet's identification.
    pub(super) fn reserve(&mut self, from: usize, dst: IpAddr, packet: &Packet<'_>) -> u16 {
        let Some(carrier) = &mut self.hosts[from].carrier else {
            return 0;
        };
        let to = (dst, packet.frame.bth.dest_qp);
        let (number, lost) = carrier.reserve(to, packet.frame_len());
        self.traffic.lost += lost;
        number
    }

    /// Appends a packet to those to be sent over a host's socket.
    pub(super) fn append(&mut self, from: usize, dst: IpAddr, packet: &Packet<'_>) {
        let number = self.reserve(from, dst, packet);
        if let Some(carrier) = &mut self.hosts[from].carrier {
            let frame = Carrier::outgoing(packet.frame, number);
            let packet = packet.with_headers(&frame);
            let encoded = packet.encode(&mut *self.memory, carrier.packets());
            debug_assert!(encoded.is_ok(), "{encoded:?}");
        }
    }
}
