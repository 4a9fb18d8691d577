//! The choice of a GID, over tables.

use super::*;

fn ip(addr: &str) -> IpAddr {
    addr.parse().unwrap()
}

fn entry(index: u32, gid_type: GidType, gid: &str, ifindex: u32) -> GidEntry {
    GidEntry {
        gid: Gid::from(ip(gid)),
        gid_index: index,
        port_num: 1,
        gid_type,
        ndev_ifindex: Some(ifindex),
    }
}

fn interface(name: &str, addr: &str, prefix_len: u32) -> InterfaceAddr {
    InterfaceAddr {
        interface: name.to_owned(),
        addr: ip(addr),
        prefix_len,
        running: true,
    }
}

/// A card on `eth1`, with the usual table: each address as RoCE v1 and as RoCE v2.
fn table() -> Vec<GidEntry> {
    let addrs = ["fe80::1", "10.9.0.2", "fd00:9::2", "192.168.3.7"];
    let pairs = addrs.into_iter().zip((0..).step_by(2));
    let both = |(addr, index)| {
        [
            entry(index, GidType::ROCE_V1, addr, 2),
            entry(index + 1, GidType::ROCE_V2, addr, 2),
        ]
    };
    pairs.flat_map(both).collect()
}

fn interfaces() -> Vec<InterfaceAddr> {
    vec![
        interface("eth0", "172.16.0.2", 16),
        interface("eth1", "fe80::1", 64),
        interface("eth1", "10.9.0.2", 24),
        interface("eth1", "fd00:9::2", 64),
        interface("eth1", "192.168.3.7", 24),
    ]
}

/// The routes to `addr` for a host whose kernel sends from `source`, after changes to the facts.
fn routes(
    addr: &str,
    source: Option<&str>,
    table: &[GidEntry],
    change: impl FnOnce(&mut Facts<'_>),
) -> Routes {
    routes_over(&interfaces(), addr, source, table, change)
}

/// Like [`routes`], with other interfaces.
fn routes_over(
    interfaces: &[InterfaceAddr],
    addr: &str,
    source: Option<&str>,
    table: &[GidEntry],
    change: impl FnOnce(&mut Facts<'_>),
) -> Routes {
    let names = BTreeMap::from([(2, "eth1".to_owned()), (3, "eth2".to_owned())]);
    let mut facts = Facts {
        table,
        active: &[1],
        iwarp: false,
        interfaces,
        names: &names,
        source: source.map(ip),
    };
    change(&mut facts);
    facts.routes_to(ip(addr))
}

/// The indices of the suitable GIDs, and the best one.
fn usable(routes: &Routes) -> (Vec<u32>, Option<u32>) {
    let usable = routes.iter().filter(|route| route.not_taken.is_none());
    let best = routes.best().map(|route| route.entry.gid_index);
    (usable.map(|route| route.entry.gid_index).collect(), best)
}

/// The reason against the GID with an index.
fn against(routes: &Routes, index: u32) -> Option<NotTaken> {
    let mut all = routes.iter();
    let route = all.find(|route| route.entry.gid_index == index).unwrap();
    route.not_taken.clone()
}

#[test]
fn neighbour_is_reached_from_the_gid_of_its_subnet() {
    for (addr, source, index) in [
        ("10.9.0.1", "10.9.0.2", 3),
        ("::ffff:10.9.0.1", "10.9.0.2", 3),
        ("fd00:9::1", "fd00:9::2", 5),
        ("192.168.3.1", "192.168.3.7", 7),
        ("10.9.0.2", "10.9.0.2", 3), // its own address
    ] {
        let routes = routes(addr, Some(source), &table(), |_| ());
        assert_eq!(usable(&routes), (vec![index], Some(index)), "{routes}");
    }
}

#[test]
fn each_other_gid_has_its_reason() {
    let routes = routes("10.9.0.1", Some("10.9.0.2"), &table(), |_| ());
    for index in [0, 2, 4, 6] {
        assert_eq!(against(&routes, index), Some(NotTaken::RoceV1));
    }
    assert_eq!(against(&routes, 1), Some(NotTaken::OtherFamily));
    assert_eq!(against(&routes, 5), Some(NotTaken::OtherFamily));
    let other = NotTaken::OtherSubnet {
        source: ip("10.9.0.2"),
        interface: Some("eth1".to_owned()),
    };
    assert_eq!(against(&routes, 7), Some(other));
}

#[test]
fn routed_peer_is_reached_from_the_source_of_the_route() {
    // A gateway in 192.168.3.0/24 leads to other networks.
    let routes = routes("203.0.113.5", Some("192.168.3.7"), &table(), |_| ());
    assert_eq!(usable(&routes), (vec![7], Some(7)), "{routes}");
}

#[test]
fn peer_behind_another_interface_is_not_reached() {
    let routes = routes("203.0.113.5", Some("172.16.0.2"), &table(), |_| ());
    assert_eq!(usable(&routes), (vec![], None), "{routes}");
    let text = routes.to_string();
    let reason = "no: other subnet; the kernel sends to 203.0.113.5 from 172.16.0.2 by eth0";
    assert!(text.lines().nth(4).unwrap().ends_with(reason), "{text}");
}

#[test]
fn destination_without_route_has_no_gid() {
    let routes = routes("203.0.113.5", None, &table(), |_| ());
    assert_eq!(against(&routes, 3), Some(NotTaken::NoRoute));
    assert_eq!(usable(&routes), (vec![], None));
}

#[test]
fn link_down_excludes_every_gid_of_the_port_or_interface() {
    let of_port = routes("10.9.0.1", Some("10.9.0.2"), &table(), |facts| {
        facts.active = &[];
    });
    assert_eq!(against(&of_port, 3), Some(NotTaken::LinkDown));
    let mut stopped = interfaces();
    stopped[2].running = false;
    let of_interface = routes_over(&stopped, "10.9.0.1", Some("10.9.0.2"), &table(), |_| ());
    assert_eq!(against(&of_interface, 3), Some(NotTaken::LinkDown));
}

#[test]
fn link_local_peer_needs_a_single_link() {
    let one = routes("fe80::2", None, &table(), |_| ());
    assert_eq!(usable(&one), (vec![1], Some(1)), "{one}");
    assert_eq!(against(&one, 5), Some(NotTaken::LinkLocal));
    let mut two_links = table();
    two_links.push(entry(8, GidType::ROCE_V2, "fe80::3", 3));
    let two = routes("fe80::2", None, &two_links, |_| ());
    assert_eq!(against(&two, 1), Some(NotTaken::WithoutScope));
    assert_eq!(usable(&two), (vec![], None));
    let global = routes("fd00:9::1", Some("fd00:9::2"), &table(), |_| ());
    assert_eq!(against(&global, 1), Some(NotTaken::LinkLocal));
}

#[test]
fn source_of_the_kernel_is_best_among_several() {
    let mut table = table();
    table.push(entry(9, GidType::ROCE_V2, "10.9.0.3", 2));
    let mut interfaces = interfaces();
    interfaces.push(interface("eth1", "10.9.0.3", 24));
    for (source, best) in [("10.9.0.2", 3), ("10.9.0.3", 9)] {
        let routes = routes_over(&interfaces, "10.9.0.1", Some(source), &table, |_| ());
        assert_eq!(usable(&routes), (vec![3, 9], Some(best)), "{routes}");
    }
}

#[test]
fn gids_of_other_networks_are_resolved_by_cm() {
    let infiniband = [entry(0, GidType::IB, "fe80::5054:ff:fe12:3456", 2)];
    let reached = routes("10.9.0.1", Some("10.9.0.2"), &infiniband, |_| ());
    assert_eq!(against(&reached, 0), Some(NotTaken::InfiniBand));
    let reached = routes("10.9.0.1", Some("10.9.0.2"), &table(), |facts| {
        facts.iwarp = true;
    });
    assert_eq!(against(&reached, 3), Some(NotTaken::Iwarp));
}

#[test]
fn gid_without_interface_has_no_subnet() {
    let entries = [entry(0, GidType::ROCE_V2, "10.9.7.7", 1)];
    let routes = routes("10.9.0.1", None, &entries, |_| ());
    assert_eq!(usable(&routes), (vec![0], Some(0)), "{routes}");
}

#[test]
fn subnets_end_at_their_prefix() {
    let of = |addr, prefix_len| interface("eth1", addr, prefix_len);
    for (addr, local, inside) in [
        ("10.9.0.255", of("10.9.0.2", 24), true),
        ("10.9.1.0", of("10.9.0.2", 24), false),
        ("11.0.0.1", of("10.9.0.2", 0), true),
        ("10.9.0.3", of("10.9.0.2", 32), false),
        ("10.9.0.2", of("10.9.0.2", 32), true),
        ("fd00:9::ffff", of("fd00:9::2", 64), true),
        ("fd00:9:0:1::2", of("fd00:9::2", 64), false),
        ("10.9.0.2", of("::", 0), false),
    ] {
        assert_eq!(in_subnet(ip(addr), &local), inside, "{addr} {local:?}");
    }
}

#[test]
fn loopback_interface_is_found() {
    let found = interface_addrs().unwrap();
    let mut found = found.iter();
    let loopback = found.find(|local| local.addr == ip("127.0.0.1")).unwrap();
    assert_eq!((loopback.prefix_len, loopback.running), (8, true));
    assert_eq!(source_to(ip("127.0.0.1")), Some(ip("127.0.0.1")));
}

#[test]
fn table_has_a_line_for_each_gid() {
    let routes = routes("10.9.0.1", Some("10.9.0.2"), &table(), |_| ());
    let text = routes.to_string();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 1 + table().len(), "{text}");
    assert_eq!(
        lines[4],
        "   1     3 RoCE v2 ::ffff:10.9.0.2                         eth1      yes, the best"
    );
}
