//! Admission of peers: limits and eviction.

use super::*;

pub(super) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Address of a possibly hostile host.
pub(super) fn host(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a09_0100 + number).into()
}

pub(super) fn send_request(
    node: &mut TestNode,
    now: Duration,
    peer: IpAddr,
    tos: u8,
) -> Result<ConnectionId, BadRequest> {
    let data = ConnectData::proposal(HostPair::new(peer, A).unwrap(), tos);
    node.request(now, (A, peer), &data.encode(), RequestId(0))
}

/// Accepts the attempt of a request.
pub(super) fn accept(node: &mut TestNode, now: Duration, id: ConnectionId) -> crate::link::Attempt {
    match node.poll(now, id) {
        Some(Action::Accept(_, attempt)) => attempt,
        other => panic!("{other:?}"),
    }
}

/// Connects a peer by its own request.
pub(super) fn connect(node: &mut TestNode, now: Duration, peer: IpAddr, tos: u8) -> ConnectionId {
    let id = send_request(node, now, peer, tos).unwrap();
    let attempt = accept(node, now, id);
    assert_eq!(node.established(now, id, attempt, None), Ok(true));
    id
}

/// Runs a closing connection until the link is down.
pub(super) fn close(node: &mut TestNode, now: Duration, id: ConnectionId) {
    while let Some(action) = node.poll(now, id) {
        if let Action::Close(attempt) = action {
            node.closed(now, id, attempt);
        }
    }
}

/// Loses a connection.
pub(super) fn lose(node: &mut TestNode, now: Duration, id: ConnectionId) {
    let attempt = node.attempt(id).unwrap();
    node.failed(id, attempt, Failure::Lost);
    close(node, now, id);
}

pub(super) fn with(change: impl FnOnce(&mut Settings)) -> TestNode {
    let mut settings = Settings::new(NonZero::<u64>::MIN, 1);
    settings.connection.keepalive = None;
    change(&mut settings);
    TestNode::new(settings)
}

pub(super) fn count(node: &TestNode, name: &str) -> u64 {
    node.info().counter(name).unwrap()
}

#[test]
fn failed_requests_of_unknown_peers_leave_no_state() {
    let mut node = with(|_| {});
    let socket = bound(&mut node, A, 4000);
    let mut now = NOW;
    for unknown_peer in 0..256 {
        for tos in 0..16 {
            now += Duration::from_millis(1);
            let id = send_request(&mut node, now, host(unknown_peer), tos).unwrap();
            let attempt = accept(&mut node, now, id);
            node.failed(id, attempt, Failure::Unreachable);
            close(&mut node, now, id);
            assert_eq!(node.route(id), None, "it is forgotten");
        }
    }
    assert_eq!(node.connections().count(), 0);
    assert!(send_request(&mut node, now, B, 0).is_ok());
    assert_eq!(send(&mut node, socket, (B, 4000).into(), 1), Ok(()));
}

#[test]
fn pending_limit_displaces_the_oldest_request() {
    let mut node = with(|_| {});
    let mut attempts = Vec::new();
    for unknown_peer in 0..64 {
        let now = Duration::from_millis(unknown_peer.into());
        let id = send_request(&mut node, now, host(unknown_peer), 0).unwrap();
        attempts.push((id, accept(&mut node, now, id)));
    }
    let now = Duration::from_millis(64);
    let id = send_request(&mut node, now, B, 0).unwrap();
    let (oldest, attempt) = attempts[0];
    assert_eq!(node.poll(now, oldest), Some(Action::Close(attempt)));
    assert_eq!(node.poll(now, attempts[1].0), None);
    accept(&mut node, now, id);
    node.closed(now, oldest, attempt);
    assert_eq!(node.poll(now, oldest), None);
    assert_eq!(node.route(oldest), None);
    assert_eq!(node.connections().count(), 64);
    // The slot is reused with a new id.
    let reused = send_request(&mut node, now, host(0), 0).unwrap();
    assert_ne!(reused, oldest);
    assert_eq!(count(&node, "conn_refused"), 0);
}

#[test]
fn pending_requests_of_one_address_are_an_eighth() {
    let mut node = with(|_| {});
    let mut first = None;
    for tos in 0..16 {
        let request = send_request(&mut node, NOW, B, tos);
        assert_eq!(request.is_ok(), tos < 8, "{request:?}");
        if let Ok(id) = request {
            let attempt = accept(&mut node, NOW, id);
            first.get_or_insert((id, attempt));
        }
    }
    assert_eq!(count(&node, "conn_refused"), 8);
    assert!(send_request(&mut node, NOW, host(0), 0).is_ok());
    // Forged requests do not keep the address out: the oldest yields after 2 s.
    assert!(send_request(&mut node, seconds(2), B, 8).is_ok());
    let (first, attempt) = first.unwrap();
    assert_eq!(node.poll(seconds(2), first), Some(Action::Close(attempt)));
}

#[test]
fn pending_requests_have_a_quarter_of_the_receives() {
    let mut node = with(|settings| settings.max_receives = 32 * 16);
    let ids: Vec<_> = (0..9)
        .map(|unknown_peer| {
            let id = send_request(&mut node, NOW, host(unknown_peer), 0).unwrap();
            let attempt = accept(&mut node, NOW, id);
            (id, attempt)
        })
        .collect();
    let closing = ids
        .iter()
        .filter(|&&(id, attempt)| node.poll(NOW, id) == Some(Action::Close(attempt)));
    assert_eq!(closing.count(), 1);
}

#[test]
fn pending_limit_does_not_apply_to_known_peers() {
    let mut node = with(|_| {});
    let known_peer = connect(&mut node, NOW, B, 0);
    lose(&mut node, NOW, known_peer);
    let mut attempts = Vec::new();
    for unknown_peer in 0..64 {
        let id = send_request(&mut node, NOW, host(unknown_peer), 0).unwrap();
        accept(&mut node, NOW, id);
        attempts.push(id);
    }
    assert_eq!(send_request(&mut node, NOW, B, 0), Ok(known_peer));
    for &id in &attempts {
        assert_eq!(node.poll(NOW, id), None, "none yields");
    }
    // The limit is reached: the oldest attempt yields to an unknown peer.
    let unknown = send_request(&mut node, NOW, host(64), 0).unwrap();
    let yields = |&&id: &&ConnectionId| matches!(node.poll(NOW, id), Some(Action::Close(_)));
    let yielding: Vec<_> = attempts.iter().filter(yields).collect();
    assert_eq!(yielding, [&attempts[0]]);
    assert_ne!(unknown, known_peer);
}

/// Duplicate detection must cover a peer that sends data before the RTU.
#[test]
fn peer_with_data_before_rtu_is_remembered() {
    let mut node = with(|_| {});
    let socket = bound(&mut node, A, 5000);
    let id = send_request(&mut node, NOW, B, 0).unwrap();
    let attempt = accept(&mut node, NOW, id);
    let mut header = Header {
        sequence: 7,
        from: 4001,
        to: 5000,
        ..Header::default()
    };
    node.received(NOW, id, &header.encode(), vec![]).unwrap();
    node.failed(id, attempt, Failure::Lost);
    close(&mut node, NOW, id);
    assert_eq!(connect(&mut node, NOW, B, 0), id);
    header.flags = Flags::RETRANSMITTED;
    node.received(NOW, id, &header.encode(), vec![]).unwrap();
    assert_eq!(lens(&mut node, socket), [0], "it comes once");
}

#[test]
fn connection_limit_evicts_the_longest_idle_peer() {
    let mut node = with(|settings| settings.max_connections = 16);
    let ids: Vec<_> = (0..14)
        .map(|unknown_peer| {
            let now = seconds(unknown_peer.into());
            let id = connect(&mut node, now, host(unknown_peer), 0);
            lose(&mut node, now, id);
            id
        })
        .collect();
    // A reconnected peer is no longer the oldest.
    let again = connect(&mut node, seconds(20), host(0), 0);
    assert_eq!(again, ids[0], "it is remembered");
    lose(&mut node, seconds(20), again);
    connect(&mut node, seconds(21), B, 0);
    assert_eq!(node.connections().count(), 14);
    assert_eq!(node.route(ids[1]), None);
    assert!(node.route(ids[0]).is_some() && node.route(ids[2]).is_some());
    assert_eq!(count(&node, "conn_evicted"), 1);
}

#[test]
fn connection_limit_per_peer_evicts_same_address() {
    let mut node = with(|settings| settings.max_connections_per_peer = 2);
    let first = connect(&mut node, NOW, B, 0);
    let second = connect(&mut node, NOW, B, 1);
    assert_eq!(
        send_request(&mut node, NOW, B, 2),
        Err(BadRequest::Connections(2))
    );
    lose(&mut node, seconds(1), second);
    connect(&mut node, seconds(1), B, 2);
    assert!(node.is_up(first));
    assert_eq!(node.route(second), None);
}

/// Disconnects a peer from all entries, and has this host dial again. The peer does not answer.
fn redial_all(node: &mut TestNode, now: Duration, ids: &[ConnectionId]) {
    for &id in ids {
        lose(node, now, id);
    }
    for &id in ids {
        assert!(matches!(
            node.poll(now + seconds(1), id),
            Some(Action::Dial(_))
        ));
    }
}

#[test]
fn request_ends_an_attempt_without_messages_of_the_same_address() {
    for change in [
        (|settings| settings.max_connections = 8) as fn(&mut Settings),
        |settings| settings.max_connections_per_peer = 7,
    ] {
        let mut node = with(change);
        let socket = bound(&mut node, A, 4000);
        let ids: Vec<_> = (0..7).map(|tos| connect(&mut node, NOW, B, tos)).collect();
        redial_all(&mut node, NOW, &ids);
        // The oldest attempt has a message.
        send(&mut node, socket, (B, 4000).into(), 1).unwrap();
        let now = seconds(2);
        let id = send_request(&mut node, now, B, 7).unwrap();
        accept(&mut node, now, id);
        assert_eq!(count(&node, "conn_evicted"), 1);
        assert!(matches!(node.poll(now, ids[1]), Some(Action::Close(_))));
        assert_eq!(node.poll(now, ids[0]), None, "it goes on");
    }
}

#[test]
fn entries_of_closing_connections_are_free_for_requests() {
    let mut node = with(|settings| settings.max_connections = 8);
    let ids: Vec<_> = (0..7).map(|tos| connect(&mut node, NOW, B, tos)).collect();
    for &id in &ids[..2] {
        let attempt = node.attempt(id).unwrap();
        node.failed(id, attempt, Failure::Lost);
    }
    for tos in 7..9 {
        connect(&mut node, NOW, B, tos);
    }
    assert_eq!(
        send_request(&mut node, NOW, B, 9),
        Err(BadRequest::Connections(9))
    );
    for &id in &ids[..2] {
        close(&mut node, NOW, id);
    }
    // Both entries are forgotten by the next request.
    lose(&mut node, NOW, ids[2]);
    connect(&mut node, NOW, B, 9);
    assert_eq!(node.connections().count(), 7);
}

#[test]
fn connection_limit_closes_the_longest_unused_connection() {
    let mut node = with(|settings| settings.max_connections = 8);
    let socket = bound(&mut node, A, 4000);
    let ids: Vec<_> = (0..7)
        .map(|unknown_peer| {
            connect(
                &mut node,
                seconds(unknown_peer.into()),
                host(unknown_peer),
                0,
            )
        })
        .collect();
    // The oldest connection has an unsent message.
    send(&mut node, socket, (host(0), 4000).into(), 1).unwrap();
    let id = send_request(&mut node, seconds(7), B, 0).unwrap();
    accept(&mut node, seconds(7), id);
    close(&mut node, seconds(7), ids[1]);
    assert!(!node.is_up(ids[1]) && node.is_up(ids[0]));
    // The closed peer redials at once, but its entry is for another peer.
    assert!(send_request(&mut node, seconds(7), host(1), 0).is_err());
    assert!(ids[2..].iter().all(|&id| node.is_up(id)), "one has yielded");
    assert!(node.connections().count() <= 8);
    let returned = send_request(&mut node, seconds(9), host(1), 0).unwrap();
    assert_eq!(node.connections().count(), 8, "within the limit");
    accept(&mut node, seconds(9), returned);
    assert_eq!(count(&node, "conn_refused"), 1);
}

#[test]
fn displaced_peer_reconnects_after_two_seconds() {
    let mut node = with(|settings| settings.max_receives = 16);
    let socket = bound(&mut node, A, 4000);
    let id = connect(&mut node, NOW, host(0), 0);
    let pending = send_request(&mut node, NOW, B, 0).unwrap();
    assert_eq!(node.poll(NOW, pending), None, "it is held");
    close(&mut node, NOW, id);
    let attempt = accept(&mut node, NOW, pending);
    node.failed(pending, attempt, Failure::Unreachable);
    close(&mut node, NOW, pending);
    assert!(send_request(&mut node, NOW, host(0), 0).is_err());
    // Local demand admits the peer at once; otherwise after 2 s.
    send(&mut node, socket, (host(0), 4000).into(), 1).unwrap();
    assert_eq!(send_request(&mut node, NOW, host(0), 0), Ok(id));
    let attempt = accept(&mut node, NOW, id);
    node.failed(id, attempt, Failure::Unreachable);
    node.cancel(socket, None).unwrap();
    close(&mut node, NOW, id);
    assert!(send_request(&mut node, seconds(1), host(0), 0).is_err());
    assert_eq!(send_request(&mut node, seconds(2), host(0), 0), Ok(id));
}

#[test]
fn receive_limit_reserves_an_eighth_for_local_programs() {
    let mut node = with(|settings| settings.max_receives = 8 * 16);
    let socket = bound(&mut node, A, 4000);
    for unknown_peer in 0..7 {
        connect(&mut node, NOW, host(unknown_peer), 0);
    }
    let pending = send_request(&mut node, NOW, host(7), 0).unwrap();
    assert_eq!(node.poll(NOW, pending), None, "it is held");
    send(&mut node, socket, (B, 4000).into(), 1).unwrap();
    let to_b = node.connections().last().unwrap();
    assert!(matches!(node.poll(NOW, to_b), Some(Action::Dial(_))));
}

#[test]
fn connection_limit_reserves_an_eighth_for_local_programs() {
    let mut node = with(|settings| settings.max_connections = 8);
    let socket = bound(&mut node, A, 4000);
    for peer in 0..7 {
        connect(&mut node, NOW, host(peer), 0);
        send(&mut node, socket, (host(peer), 4000).into(), 1).unwrap();
    }
    let refused = Err(BadRequest::Connections(7));
    assert_eq!(send_request(&mut node, NOW, host(7), 0), refused);
    assert_eq!(send(&mut node, socket, (B, 4000).into(), 1), Ok(()));
    let full = send(&mut node, socket, (host(9), 4000).into(), 1);
    assert_eq!(full, Err(SocketError::Connections(8)));
}

/// Connections of strangers yield to destinations of local programs.
#[test]
fn send_displaces_connection_at_the_limit() {
    let mut node = with(|settings| settings.max_connections = 8);
    let socket = bound(&mut node, A, 4000);
    let ids: Vec<_> = (0..7)
        .map(|peer| connect(&mut node, NOW, host(peer), 0))
        .collect();
    for peer in 100..108 {
        assert_eq!(
            send(&mut node, socket, (host(peer), 4000).into(), 1),
            Ok(())
        );
    }
    for &id in &ids {
        close(&mut node, NOW, id);
    }
    assert!(ids.iter().all(|&id| !node.is_up(id)));
    let full = send(&mut node, socket, (host(9), 4000).into(), 1);
    assert!(matches!(full, Err(SocketError::Connections(_))));
}

/// A kernel with memory of this host would drop lower sequence numbers as duplicates.
#[test]
fn sequence_continues_after_eviction() {
    let mut node = with(|settings| settings.max_connections = 1);
    let socket = bound(&mut node, A, 4000);
    for _ in 0..3 {
        send(&mut node, socket, (B, 4000).into(), 1).unwrap();
    }
    node.cancel(socket, None).unwrap();
    send(&mut node, socket, (host(0), 4000).into(), 1).unwrap();
    assert_eq!(node.connections().count(), 1, "the other is forgotten");
    node.cancel(socket, None).unwrap();
    let again = node.send(socket, Some((B, 4000).into()), Draft::new(0, vec![]));
    assert!(matches!(again, Ok(Dispatched::Queued(_, sequence)) if sequence > 3));
}

#[test]
fn receive_limit_delays_dialing() {
    let mut node = with(|settings| settings.max_receives = 2 * 16 + 4);
    let socket = bound(&mut node, A, 4000);
    let first = connect(&mut node, NOW, host(0), 0);
    connect(&mut node, NOW, host(1), 0);
    send(&mut node, socket, (B, 4000).into(), 1).unwrap();
    let to_b = node.connections().last().unwrap();
    assert_eq!(node.poll(seconds(1), to_b), None);
    let later = node.deadline(to_b).unwrap();
    assert!(later > seconds(1), "it is not asked again at once");
    assert_eq!(node.poll(later, to_b), None, "one connection yields");
    // The first connection yields.
    close(&mut node, later, first);
    assert!(!node.is_up(first));
    let at = node.deadline(to_b).unwrap();
    assert!(matches!(node.poll(at, to_b), Some(Action::Dial(_))));
}
