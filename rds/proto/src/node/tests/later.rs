//! Deferred retiring of acknowledged messages, and the cached route.

use super::*;
use crate::wire::MAX_MESSAGE;

/// Transfers all frames without retiring messages.
fn carry_all(pair: &mut Pair) {
    let [at_a, at_b] = pair.ids;
    while carry(&mut pair.a, at_a, &mut pair.b, at_b).unwrap()
        | carry(&mut pair.b, at_b, &mut pair.a, at_a).unwrap()
    {}
}

/// Drains the lists of busy connections and woken sockets.
fn quieten(node: &mut TestNode) {
    while node.busy().is_some() {}
    while node.woken().is_some() {}
}

/// Sends a message and gets it acknowledged, without a send completion.
fn handled(pair: &mut Pair, from: SocketId) {
    send(&mut pair.a, from, (B, 5000).into(), 10).unwrap();
    let [at_a, at_b] = pair.ids;
    let work = pair.a.transmit(at_a, 10).unwrap();
    let Request::Frame { header, .. } = work.request else {
        panic!("it has no operation");
    };
    pair.b.received(NOW, at_b, &header, vec![0; 10]).unwrap();
    carry(&mut pair.b, at_b, &mut pair.a, at_a).unwrap();
}

#[test]
fn acked_messages_are_retired_in_batches() {
    let (mut pair, from, to) = pair();
    quieten(&mut pair.a);
    while pair.a.finished().is_some() {}
    for _ in 1..MAX_UNRETIRED {
        handled(&mut pair, from);
        quieten(&mut pair.a);
        assert!(!pair.a.retire_due() && pair.a.is_quiet());
        assert!(pair.a.finished().is_none(), "no waiter is concerned");
        assert_eq!(pair.a.info().unacknowledged, []);
    }
    handled(&mut pair, from);
    quieten(&mut pair.a);
    assert!(pair.a.retire_due() && !pair.a.is_quiet(), "they are many");
    pair.a.retire_acked();
    assert_eq!(pair.a.waiting(from), Ok((0, 0)));
    let finished = std::iter::from_fn(|| pair.a.finished()).count() as u64;
    assert_eq!(finished, MAX_UNRETIRED);
    assert_eq!(lens(&mut pair.b, to).len() as u64, MAX_UNRETIRED);
}

#[test]
fn send_buffer_room_is_found_after_ack() {
    let (mut pair, from, to) = pair();
    let dest = (B, 5000).into();
    pair.a.set_limits(from, 1000, 1000).unwrap();
    for _ in 0..10 {
        send(&mut pair.a, from, dest, 600).unwrap();
        send(&mut pair.a, from, dest, 400).unwrap();
        let full = send(&mut pair.a, from, dest, 1);
        assert_eq!(full, Err(SocketError::Full));
        // A blocked sender is woken, even for few messages.
        quieten(&mut pair.a);
        carry_all(&mut pair);
        assert!(pair.a.retire_due());
        pair.a.retire_acked();
        assert_eq!(pair.a.woken(), Some(from));
        assert_eq!(lens(&mut pair.b, to), [600, 400]);
        // A sender without a wake-up succeeds as well.
        send(&mut pair.a, from, dest, 1000).unwrap();
        carry_all(&mut pair);
        assert!(pair.a.readiness(from).unwrap().writable);
        lens(&mut pair.b, to);
    }
}

#[test]
fn readiness_without_room_wakes_the_socket_later() {
    let (mut pair, from, _) = pair();
    pair.a.set_limits(from, 1000, 1000).unwrap();
    send(&mut pair.a, from, (B, 5000).into(), 1000).unwrap();
    assert!(!pair.a.readiness(from).unwrap().writable);
    quieten(&mut pair.a);
    carry_all(&mut pair);
    assert!(pair.a.retire_due());
    pair.a.retire_acked();
    assert_eq!(pair.a.woken(), Some(from));
    assert!(pair.a.readiness(from).unwrap().writable);
}

#[test]
fn urgent_message_finishes_without_delay() {
    let (mut pair, from, _) = pair();
    while pair.a.finished().is_some() {}
    let urgent = Draft {
        urgent: true,
        ..Draft::new(3, vec![1; 3])
    };
    pair.a.send(from, Some((B, 5000).into()), urgent).unwrap();
    carry_all(&mut pair);
    assert!(pair.a.finished().is_some());
}

#[test]
fn acked_messages_are_not_retransmitted() {
    let (mut pair, from, to) = pair();
    let dest = (B, 5000).into();
    let [at_a, _] = pair.ids;
    send(&mut pair.a, from, dest, 10).unwrap();
    carry_all(&mut pair);
    let attempt = pair.a.attempt(at_a).unwrap();
    pair.a.failed(at_a, attempt, Failure::Lost);
    assert!(matches!(pair.a.poll(NOW, at_a), Some(Action::Close(_))));
    pair.a.closed(NOW, at_a, attempt);
    assert_eq!(pair.a.waiting(from), Ok((0, 0)));
    assert_eq!(pair.a.info().unacknowledged, []);
    assert_eq!(lens(&mut pair.b, to), [10]);
}

#[test]
fn cached_route_is_invalidated_by_changes() {
    let (mut pair, from, to) = pair();
    let dest = SocketAddr::from((B, 5000));
    for len in [1, 2] {
        send(&mut pair.a, from, dest, len).unwrap();
    }
    pair.run_until_idle().unwrap();
    assert_eq!(lens(&mut pair.b, to), [1, 2]);
    // An IPv4-mapped address, and the reserved port.
    send(
        &mut pair.a,
        from,
        "[::ffff:10.9.0.2]:5000".parse().unwrap(),
        3,
    )
    .unwrap();
    send(&mut pair.a, from, (B, 1).into(), 4).unwrap_err();
    // No default destination.
    let refused = pair.a.send(from, None, Draft::new(0, vec![]));
    assert_eq!(refused.unwrap_err().error, SocketError::NotConnected);
    // A message too long, and a congested port.
    let long = MAX_MESSAGE + 1;
    assert_eq!(
        send(&mut pair.a, from, dest, long),
        Err(SocketError::TooLong(long))
    );
    let mut map = CongestionMap::default();
    map.set(5000, true);
    pair.a.peer_maps.insert(B.into(), map);
    assert_eq!(
        send(&mut pair.a, from, dest, 5),
        Err(SocketError::Congested(dest))
    );
    pair.a.peer_maps.clear();
    send(&mut pair.a, from, dest, 6).unwrap();
    pair.run_until_idle().unwrap();
    assert_eq!(lens(&mut pair.b, to), [3, 6]);
    // The destination becomes local.
    let here = bound(&mut pair.a, B, 5000);
    send(&mut pair.a, from, dest, 0).unwrap();
    let local = pair.a.send(from, Some(dest), Draft::new(7, vec![0; 7]));
    assert!(matches!(local, Ok(Dispatched::Local(_))));
    pair.a.close(here).unwrap();
    send(&mut pair.a, from, dest, 8).unwrap();
    pair.run_until_idle().unwrap();
    assert_eq!(lens(&mut pair.b, to), [8]);
}
