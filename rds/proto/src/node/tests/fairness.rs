//! Fairness between addresses at the limits.

use super::{
    admission::{accept, close, connect, host, lose, seconds, send_request, with},
    *,
};

/// Receives until a peer has proven itself.
const INITIAL: u64 = 16;

/// Receives a message for a port.
fn deliver(node: &mut TestNode, now: Duration, id: ConnectionId, sequence: u64, port: u16) {
    let header = Header {
        sequence,
        from: 77,
        to: port,
        ..Header::default()
    };
    node.received(now, id, &header.encode(), vec![]).unwrap();
}

/// Connections to seven hosts.
fn seven_connections(node: &mut TestNode) -> Vec<ConnectionId> {
    (0..7)
        .map(|peer| connect(node, NOW, host(peer), 0))
        .collect()
}

/// Whether the connections that are to close do so, and the held request is accepted then.
fn gets_in(node: &mut TestNode, now: Duration, id: ConnectionId, idle: &[ConnectionId]) -> bool {
    let action = node.poll(now, id);
    let mut accepted = matches!(action, Some(Action::Accept(..)));
    for &other in idle {
        close(node, now, other);
    }
    accepted |= matches!(node.poll(now, id), Some(Action::Accept(..)));
    accepted
}

/// The answers to pings are never acknowledged. They are no messages of a local program, so the connection is not in use.
#[test]
fn connection_with_unacknowledged_pongs_yields_and_is_forgotten() {
    let mut node = with(|settings| settings.max_receives = 8 * INITIAL);
    let _socket = bound(&mut node, A, 4000);
    let ids = seven_connections(&mut node);
    for &id in &ids {
        deliver(&mut node, NOW, id, 1, 0);
    }
    let newcomer = send_request(&mut node, NOW, B, 0).unwrap();
    assert!(gets_in(&mut node, NOW, newcomer, &ids));
    // The one that has yielded waits for its turn, and this host does not dial.
    let yielded = ids.iter().copied().find(|&id| !node.is_up(id)).unwrap();
    let peer = node.route(yielded).unwrap().peer;
    assert!(send_request(&mut node, seconds(1), peer, 0).is_err());
    assert_eq!(node.deadline(yielded), None);
    // A lost one is dialed once, as any other, and its entry is free afterwards.
    let mut node = with(|settings| settings.max_connections = 2);
    let _socket = bound(&mut node, A, 4000);
    let id = connect(&mut node, NOW, host(0), 0);
    deliver(&mut node, NOW, id, 1, 0);
    lose(&mut node, NOW, id);
    let now = seconds(1);
    let dialed = node.poll(now, id);
    let Some(Action::Dial(attempt)) = dialed else {
        panic!("{dialed:?}");
    };
    node.failed(id, attempt, Failure::Unreachable);
    close(&mut node, now, id);
    assert_eq!(node.deadline(id), None, "it is not dialed again");
    connect(&mut node, now, host(1), 0);
    connect(&mut node, now, host(2), 0);
    assert_eq!(node.route(id), None);
}

/// Nineteen addresses with sixteen types of service each, and a ping on each connection every second,
/// do not keep another address out.
#[test]
fn newcomer_displaces_connection_of_largest_address() {
    let mut node = with(|settings| settings.max_receives = 336 * INITIAL);
    let mut evil = Vec::new();
    for peer in 0..19 {
        for tos in 0..16 {
            if let Ok(id) = send_request(&mut node, NOW, host(peer), tos)
                && let Some(Action::Accept(_, attempt)) = node.poll(NOW, id)
            {
                assert_eq!(node.established(NOW, id, attempt, None), Ok(true));
                evil.push(id);
            }
        }
    }
    assert!(evil.len() >= 294, "{} connections", evil.len());
    for now in 1..100 {
        for &id in &evil {
            if node.is_up(id) {
                deliver(&mut node, seconds(now), id, now, 0);
            }
        }
    }
    let up = |node: &TestNode| evil.iter().filter(|&&id| node.is_up(id)).count();
    let before = up(&node);
    let now = seconds(100);
    let id = send_request(&mut node, now, B, 0).unwrap();
    assert!(gets_in(&mut node, now, id, &evil));
    let attempt = node.attempt(id).unwrap();
    assert_eq!(node.established(now, id, attempt, None), Ok(true));
    // One connection has yielded, and no address can displace the newcomer.
    assert_eq!(up(&node), before - 1);
    for peer in 0..19 {
        // Displaces at most a connection of another of these addresses.
        let _: Result<_, _> = send_request(&mut node, seconds(200), host(peer), 15);
    }
    assert!(node.is_up(id), "the newcomer stays");
}

/// Requests of eight addresses that never complete do not keep another address out.
#[test]
fn newcomer_gets_in_during_flood_of_half_open_requests() {
    let mut node = with(|_| {});
    let mut evil: Vec<ConnectionId> = Vec::new();
    for tick in 0..2000_u32 {
        // 40 requests a second.
        let now = Duration::from_millis(25) * tick;
        let (peer, tos) = (host(tick % 8), u8::try_from(tick / 8 % 16).unwrap());
        if let Ok(id) = send_request(&mut node, now, peer, tos) {
            evil.push(id);
        }
        for &id in &evil {
            close(&mut node, now, id);
        }
        evil.retain(|&id| node.route(id).is_some());
        if tick % 40 == 39 {
            let newcomer = host(1000 + tick);
            let id = send_request(&mut node, now, newcomer, 0).unwrap();
            assert!(gets_in(&mut node, now, id, &evil), "at {now:?}");
            let attempt = node.attempt(id).unwrap();
            assert_eq!(node.established(now, id, attempt, None), Ok(true));
        }
    }
    assert!(evil.len() <= 64, "{} pending", evil.len());
}

#[test]
fn connections_yield_in_order_of_use() {
    let mut node = with(|settings| settings.max_receives = 8 * INITIAL);
    let socket = bound(&mut node, A, 4000);
    let ids = seven_connections(&mut node);
    // The last three have delivered: the fifth last.
    for (peer, at) in [(4, 3), (5, 1), (6, 2)] {
        deliver(&mut node, seconds(at), ids[peer], 1, 4000);
    }
    // Pings and messages without a socket do not count.
    deliver(&mut node, seconds(4), ids[0], 1, 0);
    deliver(&mut node, seconds(4), ids[0], 2, 4001);
    // The first has a message in progress.
    send(&mut node, socket, (host(0), 4000).into(), 1).unwrap();
    let mut order = Vec::new();
    for newcomer in 100..106 {
        let id = send_request(&mut node, seconds(5), host(newcomer), 0).unwrap();
        assert!(gets_in(&mut node, seconds(5), id, &ids));
        let attempt = node.attempt(id).unwrap();
        assert_eq!(node.established(seconds(5), id, attempt, None), Ok(true));
        deliver(&mut node, seconds(5), id, 1, 4000);
        let down = ids.iter().filter(|&&id| !node.is_up(id));
        let new = down.copied().find(|id| !order.contains(id));
        order.extend(new);
    }
    let expected = [1, 2, 3, 5, 6, 4].map(|peer| ids[peer]);
    assert_eq!(order, expected);
    assert!(node.is_up(ids[0]), "its message is in progress");
}

/// A peer that never acknowledges does not keep its connection.
/// Acknowledges the messages up to a sequence number.
fn acknowledge(node: &mut TestNode, now: Duration, id: ConnectionId, ack: u64) {
    let header = Header {
        ack,
        ..Header::default()
    };
    node.received(now, id, &header.encode(), vec![]).unwrap();
}

/// A connection with a message in progress, posted. Returns its sequence number.
fn post(node: &mut TestNode, now: Duration, socket: SocketId, id: ConnectionId) -> u64 {
    send(node, socket, (host(0), 4000).into(), 1).unwrap();
    node.poll(now, id);
    // The congestion map comes first.
    while let Some(work) = node.transmit(id, 1) {
        if let Request::Frame {
            header,
            body: Body::Message { .. },
            ..
        } = work.request
        {
            return Header::decode(&header, false).unwrap().sequence;
        }
    }
    panic!("the message is not posted");
}

#[test]
fn connection_without_progress_yields_after_idle_time() {
    let mut node = with(|settings| settings.max_receives = INITIAL);
    let socket = bound(&mut node, A, 4000);
    let id = connect(&mut node, NOW, host(0), 0);
    let sequence = post(&mut node, NOW, socket, id);
    acknowledge(&mut node, NOW, id, sequence);
    node.retire_acked();
    send(&mut node, socket, (host(0), 4000).into(), 1).unwrap();
    node.poll(seconds(20), id);
    // A message of the peer is no progress.
    deliver(&mut node, seconds(45), id, 1, 4000);
    assert!(send_request(&mut node, seconds(49), B, 0).is_err());
    let newcomer = send_request(&mut node, seconds(50), B, 0).unwrap();
    assert!(gets_in(&mut node, seconds(50), newcomer, &[id]));
}

/// Deliveries of the peer and new connections do not extend the time.
#[test]
fn connection_without_any_acknowledgement_yields_after_two_seconds() {
    let mut node = with(|settings| settings.max_receives = INITIAL);
    let socket = bound(&mut node, A, 4000);
    let id = connect(&mut node, NOW, host(0), 0);
    post(&mut node, NOW, socket, id);
    assert!(send_request(&mut node, seconds(1), B, 0).is_err());
    lose(&mut node, seconds(1), id);
    let id = connect(&mut node, seconds(1), host(0), 0);
    deliver(&mut node, seconds(2), id, 1, 4000);
    let newcomer = send_request(&mut node, seconds(2), B, 0).unwrap();
    assert!(gets_in(&mut node, seconds(2), newcomer, &[id]));
}

#[test]
fn address_with_two_connections_more_yields_even_if_busy() {
    let mut node = with(|settings| settings.max_receives = 3 * INITIAL);
    let socket = bound(&mut node, A, 4000);
    let ids = [0, 1].map(|tos| connect(&mut node, NOW, host(0), tos));
    send(&mut node, socket, (host(0), 4000).into(), 1).unwrap();
    let newcomer = send_request(&mut node, NOW, B, 0).unwrap();
    assert!(gets_in(&mut node, NOW, newcomer, &ids));
    assert!(node.is_up(ids[0]) && !node.is_up(ids[1]), "the unused one");
}

/// More connections come before less use.
#[test]
fn address_with_most_connections_yields_before_those_with_unused_ones() {
    let mut node = with(|settings| settings.max_receives = 8 * INITIAL);
    let _socket = bound(&mut node, A, 4000);
    let three = [0, 1, 2].map(|tos| connect(&mut node, NOW, host(0), tos));
    let four = [0, 1, 2, 3].map(|tos| connect(&mut node, NOW, host(1), tos));
    for id in four {
        deliver(&mut node, NOW, id, 1, 4000);
    }
    let newcomer = send_request(&mut node, NOW, B, 0).unwrap();
    assert!(gets_in(&mut node, NOW, newcomer, &four));
    let up = |ids: &[ConnectionId]| ids.iter().filter(|&&id| node.is_up(id)).count();
    assert_eq!((up(&three), up(&four)), (3, 3));
}

#[test]
fn request_without_resources_waits_for_the_end_of_another() {
    let mut node = with(|_| {});
    let id = connect(&mut node, NOW, host(0), 0);
    let request = |node: &mut TestNode, peer| {
        let id = send_request(node, NOW, peer, 0).unwrap();
        let attempt = accept(node, NOW, id);
        assert!(node.exhausted(NOW, id, attempt, Some(RequestId(0))));
        id
    };
    let newcomer = request(&mut node, B);
    assert_eq!(node.poll(NOW, newcomer), None, "it is held");
    close(&mut node, NOW, id);
    let attempt = accept(&mut node, NOW, newcomer);
    // A second failure of the same request displaces no other connection.
    let other = connect(&mut node, NOW, host(1), 0);
    assert!(node.exhausted(NOW, newcomer, attempt, Some(RequestId(0))));
    let refused = node.poll(NOW, newcomer);
    assert_eq!(refused, Some(Action::Reject(RequestId(0))));
    assert_eq!(node.poll(NOW, newcomer), None);
    assert_eq!(node.route(newcomer), None, "it leaves no state");
    assert_eq!(node.poll(NOW, other), None);
    assert!(node.is_up(other));
    // Without another connection of a larger address, the request is rejected.
    lose(&mut node, NOW, other);
    let single = request(&mut node, B);
    assert_eq!(node.poll(NOW, single), Some(Action::Reject(RequestId(0))));
}

/// The engine polls only busy connections.
#[test]
fn end_of_a_connection_makes_held_requests_busy() {
    let mut node = with(|settings| settings.max_receives = INITIAL);
    let id = connect(&mut node, NOW, host(0), 0);
    let newcomer = send_request(&mut node, NOW, B, 0).unwrap();
    assert_eq!(node.poll(NOW, newcomer), None, "it is held");
    while node.busy().is_some() {}
    close(&mut node, NOW, id);
    let mut busy = std::iter::from_fn(|| node.busy());
    assert!(busy.any(|id| id == newcomer));
    accept(&mut node, NOW, newcomer);
}

#[test]
fn held_request_is_rejected_after_one_second() {
    let mut node = with(|settings| settings.max_receives = INITIAL);
    connect(&mut node, NOW, host(0), 0);
    let newcomer = send_request(&mut node, NOW, B, 0).unwrap();
    assert_eq!(node.poll(NOW, newcomer), None);
    assert_eq!(node.deadline(newcomer), Some(seconds(1)));
    let rejected = node.poll(seconds(1), newcomer);
    assert_eq!(rejected, Some(Action::Reject(RequestId(0))));
    assert_eq!(node.poll(seconds(1), newcomer), None);
    assert_eq!(node.route(newcomer), None);
}

/// Strangers have most receives. A peer that proves itself takes half of the rest, and one stranger yields to a newcomer.
#[test]
fn growth_takes_no_receives_of_other_connections() {
    let mut node = with(|settings| {
        settings.max_receives = 1008;
        settings.receives = 768;
    });
    let _socket = bound(&mut node, A, 4000);
    let mut ids: Vec<_> = (0..50)
        .map(|peer| connect(&mut node, NOW, host(peer), 0))
        .collect();
    deliver(&mut node, NOW, ids[0], 1, 4000);
    // An eighth is for local programs.
    assert_eq!(node.grow(ids[0]), (1008 * 7 / 8 - 50 * 16) / 2);
    for peer in 50..52 {
        ids.push(connect(&mut node, NOW, host(peer), 0));
    }
    let newcomer = send_request(&mut node, NOW, B, 0).unwrap();
    assert!(gets_in(&mut node, NOW, newcomer, &ids));
    assert!(node.is_up(ids[0]));
}

#[test]
fn receives_grow_by_half_of_the_free_ones() {
    let mut node = with(|settings| settings.max_receives = 1008);
    bound(&mut node, A, 4000);
    let grown: Vec<u32> = (0..8)
        .map(|peer| {
            let id = connect(&mut node, NOW, host(peer), 0);
            assert!(!node.is_proven(id));
            deliver(&mut node, NOW, id, 1, 4000);
            assert!(node.is_proven(id));
            node.grow(id)
        })
        .collect();
    // Three quarters of the receives are for growth.
    assert_eq!(grown, [378, 189, 94, 47, 24, 0, 0, 0]);
    // The rest is for initial receives of seven more peers, less the reserve of local programs.
    let id = node.connections().next().unwrap();
    lose(&mut node, NOW, id);
    assert_eq!(node.grow(id), 0, "it is down");
    let id = connect(&mut node, seconds(9), host(0), 0);
    assert!(!node.is_proven(id), "over this link");
}

/// A peer that begins a message and then only keeps its connection alive loses the connection.
#[test]
fn stalled_connection_is_closed() {
    let mut node = with(|_| {});
    bound(&mut node, A, 4000);
    let id = connect(&mut node, NOW, B, 0);
    let attempt = node.attempt(id).unwrap();
    let header = Header {
        sequence: 1,
        len: 8192,
        from: 77,
        to: 4000,
        ..Header::default()
    };
    node.received(NOW, id, &header.encode(), vec![0; 4096])
        .unwrap();
    assert_eq!(node.deadline(id), Some(seconds(60)));
    assert_eq!(node.poll(seconds(59), id), None);
    let acknowledgement = Header::default().encode();
    node.received(seconds(59), id, &acknowledgement, vec![])
        .unwrap();
    assert_eq!(node.poll(seconds(60), id), Some(Action::Close(attempt)));
}
