//! Tests with data captured from a kernel.

use std::net::{IpAddr, SocketAddr};

use super::*;

/// Socket options of Linux 6.1: number, element size and value, as printed by `peer.py info` of the
/// tests on two hosts.
const KERNEL: &str = include_str!("kernel-6.1.txt");

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|digit| digit.to_digit(16))
        .map(|digit| u8::try_from(digit).unwrap())
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// The captured sections.
fn sections() -> Vec<(Section, Vec<u8>)> {
    let mut sections = vec![];
    for line in KERNEL.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let section = Section::from_option(words[0].parse().unwrap());
        let [_, size, bytes] = words[..] else {
            assert_eq!(section, None, "{line}");
            continue;
        };
        let section = section.unwrap();
        assert_eq!(section.element_size(), size.parse().unwrap(), "{line}");
        sections.push((section, hex(bytes)));
    }
    sections
}

fn table(section: Section) -> Table {
    let (_, bytes) = sections()
        .into_iter()
        .find(|(one, _)| *one == section)
        .unwrap();
    section.decode(&bytes).unwrap()
}

#[test]
fn info_of_kernel_round_trips() {
    assert_eq!(sections().len(), 13);
    for (section, bytes) in sections() {
        let mut info = Info::default();
        match section.decode(&bytes).unwrap() {
            Table::Counters(counters) => info.counters = counters,
            Table::Connections(connections) => info.connections = connections,
            Table::Messages(messages) => {
                info.sending.clone_from(&messages);
                info.unacknowledged.clone_from(&messages);
                info.receiving = messages;
            }
            Table::Sockets(sockets) => info.sockets = sockets,
            Table::DeviceConnections(connections) => info.device_connections = connections,
        }
        assert_eq!(info.encode(section), bytes, "{section:?}");
        if !bytes.is_empty() {
            assert_eq!(section.decode(&bytes[1..]), None);
        }
    }
}

#[test]
fn info_of_kernel_has_expected_contents() {
    let ip = |last| IpAddr::from([10, 9, 0, last]);
    let local = SocketAddr::new(ip(2), 4200);
    for family in [AddressFamily::V4, AddressFamily::V6] {
        let Table::Connections(connections) = table(Section::Connections(family)) else {
            unreachable!("{family:?}")
        };
        let ends: Vec<_> = connections
            .iter()
            .map(|one| (one.local, one.peer))
            .collect();
        assert!(ends.contains(&(ip(2), ip(1))), "{ends:?}");
        let up = connections.iter().find(|one| one.peer == ip(1)).unwrap();
        assert_eq!(up.flags, ConnectionFlags::CONNECTED);
        assert_eq!(up.transport, "infiniband");
        let Table::Messages(messages) = table(Section::RecvMessages(family)) else {
            unreachable!("{family:?}")
        };
        let [message] = &messages[..] else {
            unreachable!("{messages:?}")
        };
        assert_eq!((message.peer, message.len), (local, 300));
        let Table::Messages(messages) = table(Section::SendMessages(family)) else {
            unreachable!("{family:?}")
        };
        let waiting: Vec<_> = messages
            .iter()
            .map(|one| (one.peer.port(), one.len))
            .collect();
        assert_eq!(waiting, [(4999, 5000)]);
        let Table::Sockets(sockets) = table(Section::Sockets(family)) else {
            unreachable!("{family:?}")
        };
        let [socket] = &sockets[..] else {
            unreachable!("{sockets:?}")
        };
        assert_eq!(socket.local, local);
        assert_eq!(socket.peer, SocketAddr::new(ip(99), 4999));
        assert_eq!((socket.send_limit, socket.recv_limit), (2 << 20, 2 << 20));
        let Table::DeviceConnections(connections) = table(Section::DeviceConnections(family))
        else {
            unreachable!("{family:?}")
        };
        let up = connections.iter().find(|one| one.peer == ip(1)).unwrap();
        assert_eq!((up.max_send_wr, up.max_recv_wr), (256, 1024));
        assert_eq!(up.local_gid[12..], [10, 9, 0, 2]);
    }
    let Table::Counters(counters) = table(Section::Counters) else {
        unreachable!("they are counters")
    };
    let info = Info {
        counters,
        ..Info::default()
    };
    assert_eq!(info.counter("recv_ping"), Some(0));
    assert_eq!(info.counter("conn_reset"), Some(0));
    assert_eq!(info.counter("nothing"), None);
}

#[test]
fn info_omits_ipv6_from_ipv4_layout() {
    let info = Info {
        connections: vec![ConnectionInfo {
            next_tx: 1,
            next_rx: 2,
            local: "fd09::1".parse().unwrap(),
            peer: "fd09::2".parse().unwrap(),
            transport: "infiniband".to_owned(),
            flags: ConnectionFlags::CONNECTED,
            tos: 0,
        }],
        ..Info::default()
    };
    assert!(
        info.encode(Section::Connections(AddressFamily::V4))
            .is_empty()
    );
    let bytes = info.encode(Section::Connections(AddressFamily::V6));
    let back = Section::Connections(AddressFamily::V6).decode(&bytes);
    assert_eq!(back, Some(Table::Connections(info.connections)));
}
