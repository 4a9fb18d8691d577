//! Admission of peers: limits and eviction.

use super::*;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Address of a possibly hostile host.
fn host(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a09_0100 + number).into()
}

fn send_request(
    node: &mut TestNode,
    now: Duration,
    peer: IpAddr,
    tos: u8,
) -> Result<ConnectionId, BadRequest> {
    let data = ConnectData::proposal(HostPair::new(peer, A).unwrap(), tos);
    node.request(now, (A, peer), &data.encode(), RequestId(0))
}

/// Accepts the attempt of a request.
fn accept(node: &mut TestNode, now: Duration, id: ConnectionId) -> crate::link::Attempt {
    match node.poll(now, id) {
        Some(Action::Accept(_, attempt)) => attempt,
        other => panic!("{other:?}"),
    }
}

/// Connects a peer by its own request.
fn connect(node: &mut TestNode, now: Duration, peer: IpAddr, tos: u8) -> ConnectionId {
    let id = send_request(node, now, peer, tos).unwrap();
    let attempt = accept(node, now, id);
    assert_eq!(node.established(now, id, attempt, None), Ok(true));
    id
}

/// Runs a closing connection until the link is down.
fn close(node: &mut TestNode, now: Duration, id: ConnectionId) {
    while let Some(action) = node.poll(now, id) {
        if let Action::Close(attempt) = action {
            node.closed(now, id, attempt);
        }
    }
}

/// Loses a connection.
fn lose(node: &mut TestNode, now: Duration, id: ConnectionId) {
    let attempt = node.attempt(id).unwrap();
    node.failed(id, attempt, Failure::Lost);
    close(node, now, id);
}

fn with(change: impl FnOnce(&mut Settings)) -> TestNode {
    let mut settings = Settings::new(NonZero::<u64>::MIN, 1);
    settings.connection.keepalive = None;
    change(&mut settings);
    TestNode::new(settings)
}

fn count(node: &TestNode, name: &str) -> u64 {
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
fn pending_requests_are_bounded_and_oldest_yields() {
    let mut node = with(|_| {});
    let mut attempts = Vec::new();
    for unknown_peer in 0..64 {
        let now = Duration::from_millis(unknown_peer.into());
        let id = send_request(&mut node, now, host(unknown_peer), 0).unwrap();
        attempts.push((id, accept(&mut node, now, id)));
    }
    // At the limit, with every attempt too young to yield.
    let refused = Err(BadRequest::Pending(64));
    assert_eq!(send_request(&mut node, seconds(1), B, 0), refused);
    assert_eq!(node.poll(seconds(1), attempts[0].0), None);
    assert_eq!(send_request(&mut node, seconds(2), B, 0), refused);
    assert_eq!(count(&node, "conn_refused"), 2);
    let (oldest, attempt) = attempts[0];
    assert_eq!(node.poll(seconds(2), oldest), Some(Action::Close(attempt)));
    node.closed(seconds(2), oldest, attempt);
    assert_eq!(node.poll(seconds(2), oldest), None);
    let id = send_request(&mut node, seconds(2), B, 0).unwrap();
    // The slot is reused with a new id.
    assert_ne!(id, oldest);
    assert_eq!(node.route(oldest), None);
    assert_eq!(node.connections().count(), 64);
}

#[test]
fn pending_requests_of_one_address_are_an_eighth() {
    let mut node = with(|_| {});
    for tos in 0..16 {
        let request = send_request(&mut node, NOW, B, tos);
        assert_eq!(request.is_ok(), tos < 8, "{request:?}");
        if let Ok(id) = request {
            accept(&mut node, NOW, id);
        }
    }
    assert_eq!(count(&node, "conn_refused"), 8);
    assert!(send_request(&mut node, NOW, host(0), 0).is_ok());
}

#[test]
fn pending_limit_does_not_apply_to_known_peers() {
    let mut node = with(|_| {});
    let known_peer = connect(&mut node, NOW, B, 0);
    lose(&mut node, NOW, known_peer);
    for unknown_peer in 0..64 {
        let id = send_request(&mut node, NOW, host(unknown_peer), 0).unwrap();
        accept(&mut node, NOW, id);
    }
    assert!(send_request(&mut node, NOW, host(64), 0).is_err());
    assert_eq!(send_request(&mut node, NOW, B, 0), Ok(known_peer));
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

#[test]
fn connection_limit_closes_idle_connection() {
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
    let refused = Err(BadRequest::Connections(7));
    assert_eq!(send_request(&mut node, seconds(30), B, 0), refused);
    close(&mut node, seconds(30), ids[1]);
    assert!(node.is_up(ids[1]), "it is not idle yet");
    assert_eq!(send_request(&mut node, seconds(31), B, 0), refused);
    close(&mut node, seconds(31), ids[1]);
    assert!(!node.is_up(ids[1]) && node.is_up(ids[0]));
    // The closed peer redials at once, but the place is for the new peer.
    assert!(send_request(&mut node, seconds(31), host(1), 0).is_err());
    assert!(send_request(&mut node, seconds(31), B, 0).is_ok());
    assert_eq!(node.route(ids[1]), None);
    assert_eq!(count(&node, "conn_refused"), 3);
}

#[test]
fn closed_idle_peer_reconnects_after_two_seconds() {
    let mut node = with(|settings| settings.max_links = 1);
    let socket = bound(&mut node, A, 4000);
    let id = connect(&mut node, NOW, host(0), 0);
    assert!(send_request(&mut node, seconds(30), B, 0).is_err());
    close(&mut node, seconds(30), id);
    assert!(send_request(&mut node, seconds(30), host(0), 0).is_err());
    // Local demand admits the peer at once; otherwise after 2 s.
    send(&mut node, socket, (host(0), 4000).into(), 1).unwrap();
    assert_eq!(send_request(&mut node, seconds(30), host(0), 0), Ok(id));
    let attempt = accept(&mut node, seconds(30), id);
    node.failed(id, attempt, Failure::Unreachable);
    node.cancel(socket, None).unwrap();
    close(&mut node, seconds(30), id);
    assert!(send_request(&mut node, seconds(31), host(0), 0).is_err());
    assert_eq!(send_request(&mut node, seconds(32), host(0), 0), Ok(id));
}

#[test]
fn link_limit_reserves_places_for_local_programs() {
    let mut node = with(|settings| settings.max_links = 8);
    let socket = bound(&mut node, A, 4000);
    for unknown_peer in 0..8 {
        let request = send_request(&mut node, NOW, host(unknown_peer), 0);
        assert_eq!(request.is_ok(), unknown_peer < 7, "{request:?}");
        if let Ok(id) = request {
            accept(&mut node, NOW, id);
        }
    }
    send(&mut node, socket, (B, 4000).into(), 1).unwrap();
    let to_b = node.connections().last().unwrap();
    assert!(matches!(node.poll(NOW, to_b), Some(Action::Dial(_))));
}

#[test]
fn connection_limit_reserves_places_for_local_programs() {
    let mut node = with(|settings| settings.max_connections = 8);
    let socket = bound(&mut node, A, 4000);
    for unknown_peer in 0..7 {
        connect(&mut node, NOW, host(unknown_peer), 0);
    }
    assert!(send_request(&mut node, NOW, host(7), 0).is_err());
    assert_eq!(send(&mut node, socket, (B, 4000).into(), 1), Ok(()));
    let full = send(&mut node, socket, (host(9), 4000).into(), 1);
    assert_eq!(full, Err(SocketError::Connections(8)));
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
    assert!(matches!(again, Ok(Sent::Queued(_, sequence)) if sequence > 3));
}

#[test]
fn link_limit_delays_dialing() {
    let mut node = with(|settings| settings.max_links = 2);
    let socket = bound(&mut node, A, 4000);
    let first = connect(&mut node, NOW, host(0), 0);
    connect(&mut node, NOW, host(1), 0);
    assert_eq!(
        send_request(&mut node, NOW, host(2), 0),
        Err(BadRequest::Links(2))
    );
    send(&mut node, socket, (B, 4000).into(), 1).unwrap();
    let to_b = node.connections().last().unwrap();
    assert_eq!(node.poll(seconds(1), to_b), None);
    let later = node.deadline(to_b).unwrap();
    assert!(later > seconds(1), "it is not asked again at once");
    // The first idle connection yields.
    assert_eq!(node.poll(seconds(30), to_b), None);
    close(&mut node, seconds(30), first);
    assert!(!node.is_up(first));
    let at = node.deadline(to_b).unwrap();
    assert!(matches!(node.poll(at, to_b), Some(Action::Dial(_))));
}
