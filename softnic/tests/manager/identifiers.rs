//! Identifiers: binding, resolution, multicast groups, and removal of the device.

use std::{net::SocketAddr, time::Duration};

use softnic::{
    cm::{CmError, Occurrence, PortSpace, Reach},
    engine::{AttributeMask, State},
};

use crate::wire::{ADDRS, Wire};

const NONE: Duration = Duration::ZERO;

#[test]
fn only_addresses_of_the_host_are_bound() {
    let mut wire = Wire::new();
    let manager = &mut wire.managers[0];
    let id = manager.create_id(PortSpace::Tcp);
    let foreign = SocketAddr::from((ADDRS[1], 7));
    assert_eq!(
        manager.bind(id, foreign),
        Err(CmError::AddressNotAvailable(foreign))
    );
    let addr = SocketAddr::from((ADDRS[0], 7));
    manager.bind(id, addr).unwrap();
    assert!(manager.bind(id, addr).is_err(), "once");
    let other = manager.create_id(PortSpace::Tcp);
    assert_eq!(manager.bind(other, addr), Err(CmError::AddressInUse(addr)));
    manager.destroy_id(id, NONE);
    manager.bind(other, addr).unwrap();
    assert!(manager.has_device(other));
}

#[test]
fn addresses_are_resolved_late_or_not_at_all() {
    let mut wire = Wire::new();
    let peer = SocketAddr::from(([10, 9, 0, 77], 7));
    let start = wire.now;
    let id = wire.managers[0].create_id(PortSpace::Tcp);
    let mut resolve =
        |timeout, reach| wire.managers[0].resolve_addr(id, (None, peer), reach, timeout, start);
    assert_eq!(
        resolve(NONE, Reach::Nowhere),
        Err(CmError::Unreachable(peer))
    );
    resolve(Duration::from_millis(300), Reach::OnLink).unwrap();
    assert!(resolve(NONE, Reach::Known).is_err(), "in use");
    assert_eq!(wire.next(0).what, Occurrence::AddrError(-110));
    assert_eq!(wire.now - start, Duration::from_millis(300));
    let now = wire.now;
    let long = Duration::from_secs(20);
    wire.managers[0]
        .resolve_addr(id, (None, peer), Reach::OnLink, long, now)
        .unwrap();
    assert_eq!(wire.next(0).what, Occurrence::AddrError(-113));
    assert_eq!(wire.now - now, Duration::from_secs(3));
}

#[test]
fn listener_on_all_addresses_is_bound_to_no_device() {
    let mut wire = Wire::new();
    let manager = &mut wire.managers[1];
    let listener = manager.create_id(PortSpace::Tcp);
    manager.listen(listener, 1).unwrap();
    assert!(!manager.has_device(listener));
    assert!(manager.qp_attributes(listener, State::Init).is_err());
    let (local, _) = manager.addrs(listener);
    assert_ne!(local.unwrap().port(), 0);
}

#[test]
fn datagrams_have_a_key_and_connections_rights() {
    let mut wire = Wire::new();
    let (tcp, udp) = (wire.resolved(PortSpace::Tcp), wire.resolved(PortSpace::Udp));
    let attributes = |id| wire.managers[0].qp_attributes(id, State::Init).unwrap();
    assert!(attributes(tcp).1.contains(AttributeMask::ACCESS));
    let (datagrams, mask) = attributes(udp);
    assert!(mask.contains(AttributeMask::QKEY) && !mask.contains(AttributeMask::ACCESS));
    assert_eq!(datagrams.qkey, 0x0123_4567);
}

#[test]
fn groups_are_joined_by_datagrams_that_are_bound() {
    let mut wire = Wire::new();
    let group = [239, 1, 2, 3].into();
    let manager = &mut wire.managers[0];
    let (tcp, udp) = (
        manager.create_id(PortSpace::Tcp),
        manager.create_id(PortSpace::Udp),
    );
    assert!(manager.join_multicast(udp, group).is_err(), "not bound");
    for id in [tcp, udp] {
        manager.bind(id, (ADDRS[0], 0).into()).unwrap();
    }
    assert!(
        manager.join_multicast(tcp, group).is_err(),
        "for connections"
    );
    let v6 = manager.join_multicast(udp, "ff0e::1".parse().unwrap());
    assert!(matches!(v6, Err(CmError::NotSupported(_))));
    let membership = manager.join_multicast(udp, group).unwrap();
    manager.leave_multicast(udp, membership).unwrap();
    assert!(manager.leave_multicast(udp, membership).is_err());
    let joined = wire.next(0).what;
    assert!(matches!(joined, Occurrence::MulticastJoined { .. }));
}

#[test]
fn device_removal_notifies_bound_ids_only() {
    let mut wire = Wire::new();
    let (active, passive) = wire.connected();
    let idle = wire.managers[1].create_id(PortSpace::Tcp);
    wire.managers[1].remove_device();
    let mut notified = Vec::new();
    while notified.len() < 2 {
        let event = wire.next(1);
        assert_eq!(event.what, Occurrence::DeviceRemoval);
        notified.push(event.id);
    }
    assert!(notified.contains(&passive) && !notified.contains(&idle));
    let refused = wire.managers[1].bind(idle, (ADDRS[1], 0).into());
    assert_eq!(refused, Err(CmError::DeviceRemoved));
    // The messages of the identifier are lost.
    wire.disconnect(0, active);
    assert_eq!(wire.next(0).what, Occurrence::Disconnected(-110));
}
