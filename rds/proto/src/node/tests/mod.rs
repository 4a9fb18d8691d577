//! Tests with two nodes, and frames passed between them.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

mod admission;
mod fairness;
mod later;
mod overload;

use super::*;
use crate::{
    connection::{Body, Completion, Draft, Notification, Request, Status, Violation},
    link::{Action, Failure, RequestId},
    wire::{BadConnectData, ConnectData, Flags, Header, HostPair, Version},
};

type TestNode = Node<Vec<u8>, Vec<u8>>;

const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2));
const NOW: Duration = Duration::ZERO;

fn node() -> TestNode {
    let mut settings = Settings::new(NonZero::<u64>::MIN, 1);
    settings.connection.keepalive = None;
    // Without timers, acknowledgements need a request.
    settings.connection.ack_after = None;
    Node::new(settings)
}

fn bound(node: &mut TestNode, ip: IpAddr, port: u16) -> SocketId {
    let id = node.socket();
    node.bind(id, (ip, port).into()).unwrap();
    id
}

fn send(node: &mut TestNode, id: SocketId, to: SocketAddr, len: u32) -> Result<(), SocketError> {
    let draft = Draft::new(len, vec![5; len as usize]);
    match node.send(id, Some(to), draft) {
        Ok(_) => Ok(()),
        Err(refused) => {
            assert_eq!(
                refused.draft.payload.len(),
                len as usize,
                "it is given back"
            );
            Err(refused.error)
        }
    }
}

/// Two connected nodes.
struct Pair {
    a: TestNode,
    b: TestNode,
    /// Connection ids of `a` and `b`.
    ids: [ConnectionId; 2],
}

impl Pair {
    /// Connects two nodes. `a` dials for a queued message.
    fn connect(mut a: TestNode, mut b: TestNode) -> Self {
        let at_a = a.connections().next().unwrap();
        let Some(Action::Dial(dialled)) = a.poll(NOW, at_a) else {
            panic!("no side dials");
        };
        let proposal = a.proposal(at_a).unwrap().encode();
        let at_b = b.request(NOW, (B, A), &proposal, RequestId(0)).unwrap();
        let Some(Action::Accept(_, accepted)) = b.poll(NOW, at_b) else {
            panic!("no side accepts");
        };
        let answer = b.answer(at_b).unwrap().encode();
        assert_eq!(a.established(NOW, at_a, dialled, Some(&answer)), Ok(true));
        assert_eq!(b.established(NOW, at_b, accepted, None), Ok(true));
        let ids = [at_a, at_b];
        let mut pair = Self { a, b, ids };
        pair.run_until_idle().unwrap();
        pair
    }

    /// Transfers frames until both nodes are idle.
    fn run_until_idle(&mut self) -> Result<(), Violation> {
        loop {
            let [at_a, at_b] = self.ids;
            let forth = carry(&mut self.a, at_a, &mut self.b, at_b)?;
            let back = carry(&mut self.b, at_b, &mut self.a, at_a)?;
            if !forth && !back {
                self.a.retire_acked();
                self.b.retire_acked();
                return Ok(());
            }
        }
    }
}

/// Transfers frames from one node to the other; returns whether there were any.
fn carry(
    from: &mut TestNode,
    id: ConnectionId,
    to: &mut TestNode,
    connection: ConnectionId,
) -> Result<bool, Violation> {
    let mut any = false;
    while let Some(work) = from.transmit(id, 1) {
        any = true;
        let tag = work.tag;
        if let Request::Frame { header, body, .. } = work.request {
            let body = match body {
                Body::Nothing => vec![],
                Body::Message { payload, range } => {
                    payload[range.start as usize..range.end as usize].to_vec()
                }
                Body::Map { map, range } => map.as_bytes()[range].to_vec(),
            };
            to.received(NOW, connection, &header, body)?;
        }
        from.completed(id, tag, Completion::Success);
    }
    while let Some((tag, header)) = from.acknowledge(NOW, id) {
        any = true;
        to.received(NOW, connection, &header, vec![])?;
        from.completed(id, tag, Completion::Success);
    }
    Ok(any)
}

/// Two connected nodes with sockets on ports 4001 and 5000.
fn pair() -> (Pair, SocketId, SocketId) {
    let (mut a, mut b) = (node(), node());
    let from = bound(&mut a, A, 4001);
    let to = bound(&mut b, B, 5000);
    send(&mut a, from, (B, 5000).into(), 0).unwrap();
    let mut pair = Pair::connect(a, b);
    assert!(matches!(pair.b.receive(to), Ok(Some(Event::Message(_)))));
    (pair, from, to)
}

fn lens(node: &mut TestNode, id: SocketId) -> Vec<u32> {
    std::iter::from_fn(|| match node.receive(id).unwrap() {
        Some(Event::Message(delivery)) => Some(delivery.len),
        _ => None,
    })
    .collect()
}

#[test]
fn bind_rejects_invalid_addresses() {
    let mut node = node();
    let id = node.socket();
    let addr = |text: &str| text.parse::<SocketAddr>().unwrap();
    for bad in [
        "0.0.0.0:5",
        "255.255.255.255:5",
        "224.0.0.1:5",
        "[::]:5",
        "[ff02::1]:5",
        "[fe80::1]:5",
    ] {
        let bad = addr(bad);
        assert_eq!(node.bind(id, bad), Err(SocketError::Address(bad)));
    }
    assert_eq!(node.bind(id, addr("10.9.0.1:1")), Err(SocketError::Port(1)));
    let high = addr("10.9.0.1:65535");
    assert_eq!(node.bind(id, high), Ok(high));
    assert_eq!(
        node.bind(id, addr("10.9.0.1:7")),
        Err(SocketError::AlreadyBound(high))
    );
    let second = node.socket();
    assert_eq!(node.bind(second, high), Err(SocketError::InUse(high)));
    let mapped = addr("[::ffff:10.9.0.1]:8");
    assert_eq!(node.bind(second, mapped), Ok(addr("10.9.0.1:8")));
    let other = node.socket();
    assert_eq!(node.bind(other, addr("10.9.0.3:8")), Ok(addr("10.9.0.3:8")));
    let mut ports = std::collections::HashSet::new();
    for _ in 0..1000 {
        let id = node.socket();
        let port = node.bind(id, addr("10.9.0.1:0")).unwrap().port();
        assert!(port >= 2 && ports.insert(port));
    }
    node.close(id).unwrap();
    assert_eq!(node.bind(id, high), Err(SocketError::Closed));
    let again = node.socket();
    assert_eq!(node.bind(again, high), Ok(high), "it is free again");
}

#[test]
fn send_uses_the_default_destination() {
    let mut node = node();
    let id = node.socket();
    let (here, one, two) = ((A, 40), (B, 50), (B, 60));
    let to = SocketAddr::from(one);
    assert_eq!(node.names(id), Ok((None, None)));
    assert_eq!(send(&mut node, id, to, 0), Err(SocketError::NotConnected));
    node.connect(id, to).unwrap();
    assert_eq!(node.names(id), Ok((None, Some(to))), "before it is bound");
    node.bind(id, here.into()).unwrap();
    for dest in [one, two] {
        node.connect(id, dest.into()).unwrap();
        assert_eq!(node.names(id), Ok((Some(here.into()), Some(dest.into()))));
        let sent = node.send(id, None, Draft::new(0, vec![])).unwrap();
        assert!(matches!(sent, Dispatched::Queued(..)));
    }
    let unconnected = bound(&mut node, A, 41);
    let refused = node
        .send(unconnected, None, Draft::new(0, vec![]))
        .unwrap_err();
    assert_eq!(refused.error, SocketError::NotConnected);
    let v6: SocketAddr = "[2001:db8::1]:50".parse().unwrap();
    assert_eq!(node.connect(id, v6), Err(SocketError::Family(v6)));
    let any = SocketAddr::from(([0, 0, 0, 0], 5));
    assert_eq!(node.connect(id, any), Err(SocketError::NoDestination(any)));
    let reserved = (B, 1).into();
    assert_eq!(send(&mut node, id, reserved, 0), Err(SocketError::Port(1)));
}

#[test]
fn connect_requires_matching_scope_id() {
    let mut node = node();
    let id = node.socket();
    let addr = |text: &str| text.parse::<SocketAddr>().unwrap();
    node.bind(id, addr("[fe80::1%2]:5")).unwrap();
    node.connect(id, addr("[fe80::2%2]:5")).unwrap();
    let other = addr("[fe80::2%3]:5");
    assert_eq!(node.connect(id, other), Err(SocketError::Family(other)));
    node.connect(id, addr("[2001:db8::1]:5")).unwrap();
}

#[test]
fn send_limit_is_exceeded_by_the_last_message_only() {
    let mut node = node();
    let id = bound(&mut node, A, 40);
    let to = (B, 50).into();
    node.set_limits(id, 1000, 1000).unwrap();
    assert_eq!(
        send(&mut node, id, to, 1001),
        Err(SocketError::TooLong(1001))
    );
    assert_eq!(send(&mut node, id, to, 999), Ok(()));
    assert_eq!(send(&mut node, id, to, 1000), Ok(()));
    assert_eq!(send(&mut node, id, to, 1), Err(SocketError::Full));
    assert_eq!(send(&mut node, id, to, 0), Err(SocketError::Full));
    assert!(!node.readiness(id).unwrap().writable);
    assert_eq!(node.waiting(id), Ok((1999, 0)));
    node.cancel(id, None).unwrap();
    assert_eq!(node.waiting(id), Ok((0, 0)));
    assert!(node.readiness(id).unwrap().writable);
    assert_eq!(std::iter::from_fn(|| node.finished()).count(), 2);
    node.set_limits(id, 2 << 20, 1000).unwrap();
    assert_eq!(send(&mut node, id, to, 1 << 20), Ok(()));
    let long = (1 << 20) + 1;
    assert_eq!(
        send(&mut node, id, to, long),
        Err(SocketError::TooLong(long))
    );
}

#[test]
fn messages_are_delivered_with_sender_address() {
    let (mut pair, from, to) = pair();
    let second = bound(&mut pair.b, B, 5001);
    for (len, port) in [(0, 5000), (7, 5001), (10_000, 5000), (8, 5001)] {
        send(&mut pair.a, from, (B, port).into(), len).unwrap();
    }
    pair.run_until_idle().unwrap();
    assert_eq!(pair.a.waiting(from), Ok((0, 0)), "all is acknowledged");
    let first = pair.b.peek(to).unwrap().unwrap();
    assert_eq!((first.from, first.len), ((A, 4001).into(), 0));
    assert_eq!(lens(&mut pair.b, to), [0, 10_000]);
    assert_eq!(lens(&mut pair.b, second), [7, 8]);
    assert!(pair.a.woken().is_some() && pair.b.woken().is_some());
}

#[test]
fn messages_to_unbound_port_are_dropped() {
    let (mut pair, from, _) = pair();
    for _ in 0..100 {
        send(&mut pair.a, from, (B, 77).into(), 10).unwrap();
    }
    pair.run_until_idle().unwrap();
    assert_eq!(pair.a.waiting(from), Ok((0, 0)));
    assert_eq!(pair.b.stats().no_socket, 100);
}

#[test]
fn close_cancels_unsent_messages() {
    let mut a = node();
    let id = bound(&mut a, A, 40);
    let other = bound(&mut a, A, 41);
    for _ in 0..100 {
        send(&mut a, id, (B, 50).into(), 0).unwrap();
    }
    send(&mut a, other, (B, 50).into(), 10).unwrap();
    a.close(id).unwrap();
    assert_eq!(a.close(id), Err(SocketError::Closed));
    assert_eq!(std::iter::from_fn(|| a.finished()).count(), 100);
    assert_eq!(a.waiting(other), Ok((10, 0)));
}

/// The time of closing many sockets must not depend on the number of peers.
#[test]
fn close_after_acknowledgement_leaves_peers_idle() {
    let (mut pair, from, to) = pair();
    while pair.a.busy().is_some() || pair.b.busy().is_some() {}
    pair.a.close(from).unwrap();
    pair.b.close(to).unwrap();
    assert_eq!((pair.a.busy(), pair.b.busy()), (None, None));
}

/// A port is congested above its limit, and released below half.
#[test]
fn congestion_blocks_senders_until_half_of_limit() {
    let (mut pair, from, to) = pair();
    let dest = (B, 5000).into();
    pair.b.set_limits(to, 1000, 20_000).unwrap();
    pair.a.set_watch(from, false).unwrap();
    let idle = pair.a.readiness(from).unwrap();
    assert!(!idle.map_changed, "no send was refused");
    let mut sent = 0;
    let congested = loop {
        match send(&mut pair.a, from, dest, 1000) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        pair.run_until_idle().unwrap();
    };
    assert_eq!(congested, SocketError::Congested(dest));
    assert_eq!(sent, 21);
    assert!(pair.a.peer_map(B).unwrap().contains(5000));
    assert!(!pair.a.readiness(from).unwrap().map_changed);
    // Other ports are not congested.
    send(&mut pair.a, from, (B, 5001).into(), 1).unwrap();
    for remaining in (0..21_u64).rev() {
        pair.b.receive(to).unwrap();
        pair.run_until_idle().unwrap();
        let free = send(&mut pair.a, from, dest, 0).is_ok();
        assert_eq!(free, remaining < 10, "{remaining} are left");
        if free {
            break;
        }
    }
    assert!(pair.a.readiness(from).unwrap().map_changed);
}

/// A blocked sender sleeps until a map arrives.
#[test]
fn congestion_release_wakes_blocked_senders() {
    for watches in [false, true] {
        let (mut pair, from, to) = pair();
        pair.a.set_watch(from, watches).unwrap();
        pair.b.set_limits(to, 1000, 10).unwrap();
        let dest = (B, 5000).into();
        send(&mut pair.a, from, dest, 11).unwrap();
        pair.run_until_idle().unwrap();
        let refused = send(&mut pair.a, from, dest, 1);
        assert_eq!(refused, Err(SocketError::Congested(dest)));
        while pair.a.woken().is_some() {}
        lens(&mut pair.b, to);
        pair.run_until_idle().unwrap();
        assert_eq!(pair.a.woken(), Some(from));
    }
}

/// Receiving only messages releases the port, too.
#[test]
fn congestion_ends_when_messages_are_received() {
    let (mut pair, from, to) = pair();
    pair.b.set_limits(to, 1000, 10).unwrap();
    let dest = (B, 5000).into();
    send(&mut pair.a, from, dest, 11).unwrap();
    pair.run_until_idle().unwrap();
    assert!(pair.a.peer_map(B).unwrap().contains(5000));
    let delivery = pair.b.receive_message(to).unwrap().unwrap();
    assert_eq!(delivery.len, 11);
    pair.run_until_idle().unwrap();
    assert!(!pair.a.peer_map(B).unwrap().contains(5000));
    assert_eq!(send(&mut pair.a, from, dest, 1), Ok(()));
}

#[test]
fn congestion_monitor_reports_released_port() {
    let (mut pair, from, to) = pair();
    pair.a.set_watch(from, true).unwrap();
    pair.b.set_limits(to, 1000, 10).unwrap();
    let dest = (B, 5000).into();
    send(&mut pair.a, from, dest, 11).unwrap();
    pair.run_until_idle().unwrap();
    let refused = send(&mut pair.a, from, dest, 1);
    assert_eq!(refused, Err(SocketError::Congested(dest)));
    lens(&mut pair.b, to);
    pair.run_until_idle().unwrap();
    let ready = pair.a.readiness(from).unwrap();
    assert!(ready.readable && !ready.map_changed);
    let event = pair.a.receive(from).unwrap();
    assert!(matches!(event, Some(Event::Congestion(ports)) if ports == 1 << 8));
    assert!(pair.a.receive(from).unwrap().is_none());
}

#[test]
fn close_ends_congestion_of_its_port() {
    let (mut pair, from, to) = pair();
    pair.b.set_limits(to, 1000, 10).unwrap();
    let dest = (B, 5000).into();
    send(&mut pair.a, from, dest, 11).unwrap();
    pair.run_until_idle().unwrap();
    assert!(send(&mut pair.a, from, dest, 1).is_err());
    pair.b.close(to).unwrap();
    pair.run_until_idle().unwrap();
    assert_eq!(send(&mut pair.a, from, dest, 1), Ok(()));
}

#[test]
fn statistics_of_a_forgotten_connection_remain() {
    let (mut pair, from, _) = pair();
    let at_a = pair.ids[0];
    send(&mut pair.a, from, (B, 5000).into(), 10).unwrap();
    let posted = pair.a.transmit(at_a, 10).map(|work| work.tag).unwrap();
    pair.a.completed(at_a, posted, Completion::Flushed);
    let attempt = pair.a.attempt(at_a).unwrap();
    pair.a.failed(at_a, attempt, Failure::Lost);
    assert_eq!(pair.a.poll(NOW, at_a), Some(Action::Close(attempt)));
    pair.a.closed(NOW, at_a, attempt);
    let stats = pair.a.connection_stats(at_a).unwrap();
    assert_eq!((stats.established, stats.retransmitted), (1, 1));
    let before = pair.a.stats();
    assert_eq!(
        (before.retransmitted, before.resets, before.sent),
        (1, 1, 2)
    );
    pair.a.forget(at_a);
    assert_eq!(pair.a.connection_stats(at_a), None);
    assert_eq!(pair.a.stats(), before);
    assert_eq!(pair.a.info().counter("send_retransmitted"), Some(1));
    let socket = pair.a.socket_stats(from).unwrap();
    assert_eq!((socket.messages_sent, socket.bytes_sent), (2, 10));
}

/// The map arrives on connecting, so a blocked sender has to dial.
#[test]
fn congestion_blocked_sender_reconnects() {
    let (mut pair, from, _) = pair();
    let at_a = pair.ids[0];
    let mut map = CongestionMap::default();
    map.set(5000, true);
    pair.a.peer_maps.insert(B.into(), map);
    let attempt = pair.a.attempt(at_a).unwrap();
    pair.a.failed(at_a, attempt, Failure::Unreachable);
    assert_eq!(pair.a.poll(NOW, at_a), Some(Action::Close(attempt)));
    pair.a.closed(NOW, at_a, attempt);
    let later = Duration::from_secs(1);
    let Some(Action::Dial(attempt)) = pair.a.poll(later, at_a) else {
        panic!("it was lost");
    };
    pair.a.failed(at_a, attempt, Failure::Unreachable);
    assert_eq!(pair.a.poll(later, at_a), Some(Action::Close(attempt)));
    pair.a.closed(later, at_a, attempt);
    assert_eq!(pair.a.deadline(at_a), None, "it has been tried once");
    let dest = (B, 5000).into();
    let refused = send(&mut pair.a, from, dest, 1);
    assert_eq!(refused, Err(SocketError::Congested(dest)));
    let dialled = pair.a.poll(2 * later, at_a);
    assert!(matches!(dialled, Some(Action::Dial(_))));
}

/// A sender blocked before the loss of the connection keeps the link dialing after a
/// failed attempt.
#[test]
fn congestion_blocked_sender_retries_until_map_arrives() {
    let (mut pair, from, to) = pair();
    let at_a = pair.ids[0];
    let other = bound(&mut pair.a, A, 4002);
    let dest = (B, 5000).into();
    pair.b.set_limits(to, 1000, 10).unwrap();
    for id in [from, other] {
        pair.a.set_limits(id, 1000, 1000).unwrap();
    }
    send(&mut pair.a, from, dest, 11).unwrap();
    pair.run_until_idle().unwrap();
    for id in [from, other] {
        let refused = send(&mut pair.a, id, dest, 1);
        assert_eq!(refused, Err(SocketError::Congested(dest)));
    }
    let fail = |a: &mut TestNode, now, attempt| {
        a.failed(at_a, attempt, Failure::Unreachable);
        assert_eq!(a.poll(now, at_a), Some(Action::Close(attempt)));
        a.closed(now, at_a, attempt);
    };
    let attempt = pair.a.attempt(at_a).unwrap();
    fail(&mut pair.a, NOW, attempt);
    for second in 1..5 {
        let now = Duration::from_secs(second);
        let Some(Action::Dial(attempt)) = pair.a.poll(now, at_a) else {
            panic!("neither side dials, and both wait for ever");
        };
        fail(&mut pair.a, now, attempt);
        if second == 2 {
            pair.a.close(from).unwrap();
        }
    }
    // No sender is blocked any more.
    pair.a.close(other).unwrap();
    bound(&mut pair.a, A, 4003);
    assert_eq!(pair.a.deadline(at_a), None);
}

/// After the map has arrived, the link stops dialing.
#[test]
fn congestion_map_stops_reconnects() {
    let (mut pair, from, to) = pair();
    let at_a = pair.ids[0];
    let dest = (B, 5000).into();
    pair.b.set_limits(to, 1000, 10).unwrap();
    send(&mut pair.a, from, dest, 11).unwrap();
    pair.run_until_idle().unwrap();
    assert!(send(&mut pair.a, from, dest, 1).is_err());
    lens(&mut pair.b, to);
    pair.run_until_idle().unwrap();
    for second in 0..2 {
        let now = Duration::from_secs(second);
        let attempt = pair.a.attempt(at_a).unwrap();
        pair.a.failed(at_a, attempt, Failure::Unreachable);
        assert_eq!(pair.a.poll(now, at_a), Some(Action::Close(attempt)));
        pair.a.closed(now, at_a, attempt);
        let again = pair.a.poll(Duration::from_secs(second + 1), at_a);
        assert_eq!(matches!(again, Some(Action::Dial(_))), second == 0);
    }
}

/// A peer ignoring congestion cannot exceed a multiple of the limit.
#[test]
fn overload_despite_congestion_resets_the_connection() {
    let (mut pair, _, to) = pair();
    pair.b.set_limits(to, 1000, 1000).unwrap();
    let mut frame = Header {
        from: 4001,
        to: 5000,
        len: 100,
        ..Header::default()
    };
    let at_b = pair.ids[1];
    let mut accepted = 0;
    let violation = loop {
        frame.sequence = 100 + accepted;
        match pair.b.received(NOW, at_b, &frame.encode(), vec![0; 100]) {
            Ok(_) => accepted += 1,
            Err(violation) => break violation,
        }
    };
    assert_eq!(violation, Violation::Overflow(5000));
    assert_eq!(accepted, 40);
    assert_eq!(pair.b.waiting(to), Ok((0, 4000)));
    let Some(Action::Close(attempt)) = pair.b.poll(NOW, at_b) else {
        panic!("the connection is kept");
    };
    pair.b.closed(NOW, at_b, attempt);
    assert_eq!(
        pair.b.next_sequences(at_b).unwrap().1,
        100 + accepted,
        "it comes again"
    );
}

#[test]
fn ping_from_congested_port_is_not_answered() {
    let (mut pair, _, _) = pair();
    let ping = |sequence| Header {
        sequence,
        from: 4001,
        to: 0,
        flags: Flags::ACK_REQUIRED,
        ..Header::default()
    };
    let at_b = pair.ids[1];
    let mut map = CongestionMap::default();
    for (congested, sequence) in [(false, 100), (true, 101)] {
        map.set(4001, congested);
        pair.b.peer_maps.insert(A.into(), map.clone());
        let before = pair.b.next_sequences(at_b).unwrap().0;
        pair.b
            .received(NOW, at_b, &ping(sequence).encode(), vec![])
            .unwrap();
        let answers = pair.b.next_sequences(at_b).unwrap().0 - before;
        assert_eq!(answers, u64::from(!congested));
    }
}

#[test]
fn set_tos_works_once_before_sending() {
    let mut a = node();
    let id = a.socket();
    assert_eq!(a.set_tos(id, 3), Err(SocketError::NotConnected));
    a.bind(id, (A, 40).into()).unwrap();
    a.set_tos(id, 3).unwrap();
    assert_eq!(a.set_tos(id, 4), Err(SocketError::TosInUse(3)));
    let plain = bound(&mut a, A, 41);
    for id in [id, plain] {
        send(&mut a, id, (B, 50).into(), 1).unwrap();
    }
    assert_eq!(a.set_tos(plain, 3), Err(SocketError::TosInUse(0)));
    let routes = a.connections().map(|id| a.route(id).unwrap().tos);
    assert_eq!(routes.collect::<Vec<_>>(), [3, 0]);
}

#[test]
fn local_message_is_delivered_without_connection() {
    let mut a = node();
    let from = bound(&mut a, A, 40);
    let to = bound(&mut a, A, 50);
    let sent = a.send(from, Some((A, 50).into()), Draft::new(3, vec![1, 2, 3]));
    let Ok(Dispatched::Local(local)) = sent else {
        panic!("{sent:?}");
    };
    let delivery = Delivery {
        connection: None,
        sequence: 0,
        times: None,
        from: local.from,
        len: local.draft.len,
        bodies: connection::Bodies::One(local.draft.payload),
        cookie: None,
    };
    assert_eq!(a.deliver_local(local.to, delivery), Some(to));
    assert_eq!(lens(&mut a, to), [3]);
    let ping = a.send(from, Some((A, 0).into()), Draft::new(0, vec![]));
    assert!(matches!(ping, Ok(Dispatched::Answered(_))));
    let Some(Event::Message(pong)) = a.receive(from).unwrap() else {
        panic!("no answer");
    };
    assert_eq!((pong.from, pong.len), ((A, 0).into(), 0));
    assert_eq!(a.connections().count(), 0);
}

/// Requested notifications, and failures for sockets with `RDS_RECVERR`.
#[test]
fn operation_notifications_follow_request_and_recverr() {
    let mut a = node();
    let id = bound(&mut a, A, 40);
    let end = |status, requested| Notification {
        owner: id,
        token: 1,
        status,
        requested,
    };
    let mut is_notified = |wants, notification| {
        a.set_failures(id, wants).unwrap();
        let socket = a.sockets.get_mut(&id).unwrap();
        socket.notify(notification);
        matches!(a.receive(id), Ok(Some(Event::Operation(_))))
    };
    assert!(is_notified(false, end(Status::Success, true)));
    assert!(is_notified(false, end(Status::Dropped, true)));
    assert!(!is_notified(false, end(Status::Dropped, false)));
    assert!(is_notified(true, end(Status::Dropped, false)));
    assert!(!is_notified(true, end(Status::Success, false)));
}

/// Addresses in a request must match the connection.
#[test]
fn requests_with_false_addresses_or_over_limit_are_rejected() {
    let mut settings = Settings::new(NonZero::<u64>::MIN, 1);
    settings.max_connections_per_peer = 2;
    let mut b = TestNode::new(settings);
    let hosts = HostPair::new(A, B).unwrap();
    let send_request =
        |b: &mut TestNode, data: ConnectData| b.request(NOW, (B, A), &data.encode(), RequestId(0));
    let lie = ConnectData::proposal(hosts.reversed(), 0);
    let refused = BadRequest::Data(BadConnectData::Addresses(hosts.reversed()));
    assert_eq!(send_request(&mut b, lie), Err(refused));
    let version = Version { major: 5, minor: 1 };
    let strange = ConnectData {
        version,
        ..ConnectData::proposal(hosts, 0)
    };
    let refused = BadRequest::Data(BadConnectData::Version(version));
    assert_eq!(send_request(&mut b, strange), Err(refused));
    let short = b.request(NOW, (B, A), &[0; 31], RequestId(0));
    assert_eq!(short, Err(BadRequest::Data(BadConnectData::Short(31))));
    assert_eq!(b.connections().count(), 0);
    for tos in 0..3 {
        let request = send_request(&mut b, ConnectData::proposal(hosts, tos));
        assert_eq!(request.is_err(), tos == 2, "the third is too much");
    }
}

/// The version of the reply is adopted, or the attempt fails.
#[test]
fn reply_with_old_version_fails_the_attempt() {
    let mut a = node();
    let id = bound(&mut a, A, 40);
    send(&mut a, id, (B, 50).into(), 1).unwrap();
    let at_a = a.connections().next().unwrap();
    let Some(Action::Dial(attempt)) = a.poll(NOW, at_a) else {
        panic!("no side dials");
    };
    let version = Version { major: 3, minor: 0 };
    let old = ConnectData {
        version,
        ..a.proposal(at_a).unwrap()
    };
    let refused = a.established(NOW, at_a, attempt, Some(&old.encode()));
    assert_eq!(refused, Err(BadConnectData::Version(version)));
    assert_eq!(a.poll(NOW, at_a), Some(Action::Close(attempt)));
    assert!(!a.is_up(at_a));
}

#[test]
fn info_lists_messages_in_all_queues() {
    let (mut a, mut b) = (node(), node());
    let (at_a, at_b) = (bound(&mut a, A, 4000), bound(&mut b, B, 4001));
    send(&mut a, at_a, (B, 4001).into(), 100).unwrap();
    let info = a.info();
    assert_eq!((info.sending.len(), info.unacknowledged.len()), (1, 0));
    let waiting = &info.sending[0];
    assert_eq!((waiting.sequence, waiting.len), (1, 100));
    assert_eq!(waiting.local, (A, 4000).into());
    assert_eq!(waiting.peer, (B, 4001).into());
    assert!(info.connections[0].flags.is_empty());
    let mut pair = Pair::connect(a, b);
    send(&mut pair.b, at_b, (A, 4000).into(), 7).unwrap();
    send(&mut pair.b, at_b, (A, 9).into(), 7).unwrap();
    pair.run_until_idle().unwrap();
    let (a, b) = (pair.a.info(), pair.b.info());
    assert!(a.sending.is_empty() && a.unacknowledged.is_empty());
    assert_eq!(b.receiving[0].len, 100);
    assert_eq!(b.receiving[0].peer, (A, 4000).into());
    assert_eq!(a.connections[0].next_rx, b.connections[0].next_tx);
    assert_eq!(a.sockets[0].local, (A, 4000).into());
    assert_eq!(a.sockets[0].send_limit, DEFAULT_LIMIT);
    let count = |info: &crate::info::Info, name| info.counter(name).unwrap();
    assert_eq!(count(&a, "send_queued"), 1);
    assert_eq!(count(&a, "recv_queued"), 1);
    assert_eq!(count(&a, "recv_drop_no_sock"), 1);
    assert_eq!(count(&a, "cong_update_received"), 1);
    assert_eq!(count(&a, "recv_delivered"), 0);
    drop(pair.a.receive(at_a).unwrap());
    assert_eq!(count(&pair.a.info(), "recv_delivered"), 1);
}
