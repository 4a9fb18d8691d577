//! The datagram protocol.
//!
//! A socket has a UDP address. The first datagrams to a peer are sent over UDP, behind a header with the
//! sender's queue pair number ([`Exchange`]). The peer answers with its own number. Later datagrams travel
//! between the queue pairs, behind a header with the source address ([`Origin`]). Nothing is retransmitted.

mod header;
mod node;
mod peers;
mod stats;

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

pub use header::{BadDatagram, Encoded, Exchange, Operation, Origin};
pub use node::{Arrived, Node, UdpOutcome};
pub use peers::Route;
pub use stats::DatagramStats;

use crate::stream::Settings;

/// Maximum size in bytes of a message including its header.
pub const SLOT: usize = 2048;

/// Queue key of all datagram queue pairs.
pub const QKEY: u32 = 0x0123_4567;

/// Returns the canonical form of an address for comparisons: mapped IPv4 addresses become IPv4; flow
/// information and an irrelevant scope are cleared.
pub fn canonical(addr: SocketAddr) -> SocketAddr {
    match (addr, addr.ip().to_canonical()) {
        (SocketAddr::V6(v6), IpAddr::V6(ip)) => {
            let link_local = ip.is_unicast_link_local() || ip.is_multicast();
            let scope = if link_local { v6.scope_id() } else { 0 };
            SocketAddrV6::new(ip, v6.port(), 0, scope).into()
        }
        (addr, ip) => (ip, addr.port()).into(),
    }
}

/// Maximum length in bytes of a datagram to this peer. The limit of UDP holds for every route, since longer
/// datagrams could never start a route resolution.
pub fn max_len_by_udp(peer: IpAddr) -> usize {
    SLOT - Exchange::len_for(peer)
}

/// Maximum length in bytes of a datagram to this peer between queue pairs, in packets of at most `mtu` bytes.
pub fn max_len_by_path(peer: IpAddr, mtu: usize) -> usize {
    SLOT.min(mtu).saturating_sub(Origin::len_for(peer))
}

/// Adjusts the sizes for datagrams: each depth is limited to the number of slots in the buffer, and the
/// buffer to the depth.
pub fn fit(mut settings: Settings) -> Settings {
    let fit = |depth: &mut u16, buffer: &mut u32| {
        let slots = usize::try_from(*buffer).unwrap_or(usize::MAX) / SLOT;
        let slots = u16::try_from(slots).unwrap_or(u16::MAX).max(1);
        *depth = (*depth).clamp(1, slots);
        *buffer = u32::from(*depth) * 2048;
    };
    fit(&mut settings.recv_depth, &mut settings.recv_buffer);
    fit(&mut settings.send_depth, &mut settings.send_buffer);
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_address_is_unique() {
        let plain: SocketAddr = "10.9.0.1:5".parse().unwrap();
        let mapped: SocketAddr = "[::ffff:10.9.0.1]:5".parse().unwrap();
        assert_eq!(canonical(mapped), plain);
        assert_eq!(canonical(plain), plain);
        let global = |flow, scope| SocketAddrV6::new("fd00::1".parse().unwrap(), 5, flow, scope);
        assert_eq!(
            canonical(global(1, 2).into()),
            canonical(global(3, 4).into())
        );
        let local = |flow, scope| SocketAddrV6::new("fe80::1".parse().unwrap(), 5, flow, scope);
        assert_eq!(canonical(local(1, 2).into()), canonical(local(0, 2).into()));
        assert_ne!(canonical(local(0, 2).into()), canonical(local(0, 3).into()));
    }

    #[test]
    fn max_datagram_fits_packet_and_receive_slot() {
        let v4: IpAddr = "10.9.0.1".parse().unwrap();
        let v6: IpAddr = "fd00::1".parse().unwrap();
        assert_eq!(
            (max_len_by_path(v4, 1024), max_len_by_path(v6, 1024)),
            (1016, 1000)
        );
        assert_eq!(
            (max_len_by_path(v4, 4096), max_len_by_path(v6, 4096)),
            (2040, 2024)
        );
        assert_eq!((max_len_by_udp(v4), max_len_by_udp(v6)), (2032, 2020));
        assert_eq!(max_len_by_path(v6, 0), 0);
    }

    #[test]
    fn datagram_settings_bound_slots_by_depth_and_buffer() {
        let sizes = |recv_depth, recv_buffer| {
            let fitted = fit(Settings {
                recv_depth,
                recv_buffer,
                ..Settings::default()
            });
            (fitted.recv_depth, fitted.recv_buffer)
        };
        assert_eq!(sizes(384, 131_072), (64, 131_072));
        assert_eq!(sizes(16, 131_072), (16, 32_768));
        assert_eq!(sizes(0, 0), (1, 2048));
        assert_eq!(sizes(65_534, u32::MAX), (65_534, 65_534 * 2048));
        let fitted = fit(Settings::default());
        assert_eq!((fitted.send_depth, fitted.send_buffer), (64, 131_072));
    }
}
