//! Overload by peers, and its effect on other peers.

use super::*;

/// Another peer of B.
const UNKNOWN_PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 66));

fn unknown_peer(node: &mut TestNode) -> ConnectionId {
    let data = ConnectData::proposal(HostPair::new(UNKNOWN_PEER, B).unwrap(), 0);
    let id = node.request(NOW, (B, UNKNOWN_PEER), &data.encode(), RequestId(1));
    let id = id.unwrap();
    let Some(Action::Accept(_, attempt)) = node.poll(NOW, id) else {
        panic!("it is not accepted");
    };
    assert_eq!(node.established(NOW, id, attempt, None), Ok(true));
    id
}

/// Sends messages until a violation; returns the number accepted.
fn flood(node: &mut TestNode, id: ConnectionId, len: u32, max: u64) -> (u64, Option<Violation>) {
    let first = node.next_sequences(id).unwrap().1.max(1);
    for accepted in 0..max {
        let header = Header {
            sequence: first + accepted,
            from: 4001,
            to: 5000,
            len,
            ..Header::default()
        };
        let body = vec![0; len as usize];
        if let Err(violation) = node.received(NOW, id, &header.encode(), body) {
            return (accepted, Some(violation));
        }
    }
    (max, None)
}

#[test]
fn overload_of_a_socket_resets_only_the_sender() {
    for len in [100, 0] {
        let (mut pair, _, to) = pair();
        pair.b.set_limits(to, 1000, 1000).unwrap();
        let hostile = unknown_peer(&mut pair.b);
        let (_, violation) = flood(&mut pair.b, hostile, len, 20_000);
        assert_eq!(violation, Some(Violation::Overflow(5000)));
        let innocent = pair.ids[1];
        assert_eq!(flood(&mut pair.b, innocent, len, 5), (5, None));
        assert!(pair.b.is_up(innocent));
        // The other connection has its own share, and no more.
        let (_, violation) = flood(&mut pair.b, innocent, len, 20_000);
        assert_eq!(violation, Some(Violation::Overflow(5000)));
    }
}

#[test]
fn overload_of_all_sockets_resets_only_the_sender() {
    let (mut a, mut b) = (node(), node());
    b.settings.max_waiting = 1 << 20;
    let from = bound(&mut a, A, 4001);
    let to = bound(&mut b, B, 5000);
    send(&mut a, from, (B, 5000).into(), 0).unwrap();
    let mut pair = Pair::connect(a, b);
    pair.b.set_limits(to, 1000, u32::MAX).unwrap();
    pair.b.settings.max_connections = 16;
    let hostile = unknown_peer(&mut pair.b);
    let (accepted, violation) = flood(&mut pair.b, hostile, 4096, 20_000);
    assert_eq!(violation, Some(Violation::Overflow(5000)));
    assert!(accepted * 4096 <= 1 << 20, "{accepted} messages");
    // The share of one connection is a sixteenth.
    let innocent = pair.ids[1];
    let (accepted, violation) = flood(&mut pair.b, innocent, 4096, 20_000);
    assert_eq!(violation, Some(Violation::Overflow(5000)));
    assert!((15..=16).contains(&accepted), "{accepted} messages");
    // Receiving restores the accounting.
    lens(&mut pair.b, to);
    assert_eq!(pair.b.waiting_bytes, 0);
    let counted = pair.b.peers.iter().map(|(_, peer)| peer.waiting_bytes);
    assert_eq!(counted.sum::<u64>(), 0);
}

/// A body that is not copied keeps the memory of a whole frame.
#[test]
fn messages_are_accounted_with_the_memory_they_keep() {
    let lens = [0, 1024, 1025, 4096, 4097, 5120, 5121, 8192];
    let costs = lens.map(Delivery::<Vec<u8>>::cost);
    let expected = [0, 1024, 4096, 4096, 4097, 5120, 8192, 8192].map(|len| len + 256);
    assert_eq!(costs, expected);
}

#[test]
fn close_restores_buffer_accounting() {
    let (mut pair, _, to) = pair();
    let id = pair.ids[1];
    assert_eq!(flood(&mut pair.b, id, 100, 5), (5, None));
    drop(pair.b.receive_message(to).unwrap());
    assert_eq!(pair.b.waiting_bytes, 4 * 356);
    pair.b.close(to).unwrap();
    assert_eq!(pair.b.waiting_bytes, 0);
    assert_eq!(pair.b.peers.get(id).unwrap().waiting_bytes, 0);
}

/// Receives a congestion map with these ports set.
fn map(node: &mut TestNode, now: Duration, id: ConnectionId, ports: &[u16]) {
    let mut map = CongestionMap::default();
    for &port in ports {
        map.set(port, true);
    }
    let header = Header {
        len: 8192,
        flags: Flags::CONG_BITMAP,
        ..Header::default()
    };
    for part in map.as_bytes().chunks(4096) {
        let got = node.received(now, id, &header.encode(), part.to_vec());
        assert_eq!(got, Ok(None));
    }
}

fn woken(node: &mut TestNode) -> Vec<SocketId> {
    std::iter::from_fn(|| node.woken()).collect()
}

/// Maps at line rate wake refused senders only, and each of these once.
#[test]
fn congestion_map_wakes_only_refused_senders_of_released_ports() {
    let (mut pair, _, to) = pair();
    let other = bound(&mut pair.b, B, 5001);
    let other_socket = bound(&mut pair.b, B, 5002);
    let id = pair.ids[1];
    let hostile = unknown_peer(&mut pair.b);
    woken(&mut pair.b);
    for _ in 0..5 {
        map(&mut pair.b, NOW, id, &[4001, 4002]);
        for (socket, port) in [(to, 4001), (other, 4002)] {
            let refused = send(&mut pair.b, socket, (A, port).into(), 1);
            assert!(matches!(refused, Err(SocketError::Congested(_))));
        }
        for ports in [&[8], &[9]] {
            map(&mut pair.b, NOW, hostile, ports);
        }
        assert_eq!(woken(&mut pair.b), []);
        map(&mut pair.b, NOW, id, &[]);
        assert_eq!(woken(&mut pair.b), [other, to]);
        for socket in [to, other] {
            assert!(pair.b.readiness(socket).unwrap().map_changed);
            assert!(!pair.b.readiness(socket).unwrap().map_changed, "once");
        }
        assert!(!pair.b.readiness(other_socket).unwrap().map_changed);
        assert!(pair.b.congestion_blocked.is_empty());
    }
}

/// A sender refused by a host that is forgotten learns of the end of the congestion.
#[test]
fn congestion_ends_when_the_host_is_forgotten() {
    let (mut pair, _, to) = pair();
    let id = pair.ids[1];
    map(&mut pair.b, NOW, id, &[4001]);
    assert!(send(&mut pair.b, to, (A, 4001).into(), 1).is_err());
    woken(&mut pair.b);
    pair.b.forget(id);
    assert_eq!(woken(&mut pair.b), [to]);
    assert!(pair.b.readiness(to).unwrap().map_changed);
}

/// A woken sender has to register again.
#[test]
fn congestion_map_without_release_wakes_blocked_senders_once() {
    let (mut pair, _, to) = pair();
    let id = pair.ids[1];
    map(&mut pair.b, NOW, id, &[4001]);
    let refused = send(&mut pair.b, to, (A, 4001).into(), 1);
    assert!(matches!(refused, Err(SocketError::Congested(_))));
    woken(&mut pair.b);
    map(&mut pair.b, NOW, id, &[4001]);
    assert_eq!(woken(&mut pair.b), [to]);
    map(&mut pair.b, NOW, id, &[4001]);
    assert_eq!(woken(&mut pair.b), [], "no second notice");
}

/// Local congestion releases senders without a map.
#[test]
fn congestion_release_wakes_local_senders() {
    let mut node = node();
    let from = bound(&mut node, A, 4001);
    let to = bound(&mut node, A, 5000);
    node.set_limits(to, 1000, 10).unwrap();
    let delivery = Delivery {
        connection: None,
        sequence: 0,
        times: None,
        from: (A, 4001).into(),
        len: 11,
        bodies: connection::Bodies::One(vec![0; 11]),
        cookie: None,
    };
    node.deliver_local((A, 5000).into(), delivery);
    let dest = (A, 5000).into();
    let refused = send(&mut node, from, dest, 1);
    assert_eq!(refused, Err(SocketError::Congested(dest)));
    woken(&mut node);
    drop(node.receive_message(to).unwrap());
    assert_eq!(woken(&mut node), [from]);
}
