//! Lost, late and repeated messages.

use std::time::Duration;

use fastrand::Rng;
use softnic::{
    cm::{IdNum, Message, Occurrence, PortSpace, Reject},
    engine::State,
};

use crate::wire::{Wire, param};

/// Number of schedules of a plain test run.
const SEEDS: u64 = 300;

fn is_request(message: &Message) -> bool {
    matches!(message, Message::Request(_))
}

#[test]
fn unanswered_request_is_sent_sixteen_times() {
    let mut wire = Wire::new();
    wire.loss = 1.0;
    wire.asking();
    let start = wire.now;
    let failed = wire.next(0).what;
    assert!(matches!(
        failed,
        Occurrence::Unreachable { status: -110, .. }
    ));
    assert_eq!(wire.count(0, is_request), 16);
    // 4.096 µs · 2^16 each.
    assert_eq!(wire.now - start, 16 * Duration::from_nanos(4096 << 16));
}

#[test]
fn reply_is_sent_again_until_the_peer_is_ready() {
    let mut wire = Wire::new();
    wire.listen(PortSpace::Tcp, 8);
    wire.asking();
    let (passive, ..) = wire.request();
    wire.accept(passive);
    wire.loss = 1.0;
    let failed = wire.next(1).what;
    assert!(matches!(
        failed,
        Occurrence::Unreachable { status: -110, .. }
    ));
    assert_eq!(
        wire.count(1, |message| matches!(message, Message::Reply(_))),
        16
    );
}

#[test]
fn unanswered_reply_is_rejected_and_ends_the_peers_connection() {
    let mut wire = Wire::new();
    wire.listen(PortSpace::Tcp, 8);
    let active = wire.asking();
    let (passive, ..) = wire.request();
    wire.accept(passive);
    wire.next(0);
    let start = wire.now;
    wire.loss = 1.0;
    wire.managers[0].establish(active).unwrap();
    // The last of the 16 replies has been sent, and is not answered.
    wire.run_to(start + Duration::from_nanos(4096 << 16) * 31 / 2);
    wire.loss = 0.0;
    assert!(matches!(
        wire.next(1).what,
        Occurrence::Unreachable { status: -110, .. }
    ));
    let rejected = wire.next(0).what;
    assert!(
        matches!(rejected, Occurrence::Rejected { reason, .. } if reason == Reject::TIMEOUT),
        "{rejected:?}"
    );
    // Neither end has a connection: nothing is sent any more.
    wire.run();
    for (manager, num) in [(0, active), (1, passive)] {
        assert!(
            wire.managers[manager]
                .qp_attributes(num, State::Rts)
                .is_err()
        );
    }
}

#[test]
fn lost_rtu_is_retransmitted_or_replaced_by_data() {
    let mut wire = Wire::new();
    wire.listen(PortSpace::Tcp, 8);
    let active = wire.asking();
    let (passive, ..) = wire.request();
    wire.accept(passive);
    wire.next(0);
    wire.loss = 1.0;
    wire.managers[0].establish(active).unwrap();
    wire.step();
    wire.loss = 0.0;
    assert_eq!(wire.next(1).what, Occurrence::Established);
    assert_eq!(
        wire.count(0, |message| matches!(message, Message::Ready(_))),
        2
    );
    let late = wire.managers[1].note_established(passive);
    assert_eq!(late, Err(softnic::cm::CmError::IsConnected));

    // The peer's data arrive before the RTU.
    let active = wire.asking();
    let (passive, ..) = wire.request();
    wire.accept(passive);
    wire.next(0);
    wire.managers[1].note_established(passive).unwrap();
    assert_eq!(wire.next(1).what, Occurrence::Established);
    wire.managers[0].establish(active).unwrap();
    wire.run();
    assert!(wire.events[1].is_empty(), "once");
}

#[test]
fn slow_program_extends_the_timeout() {
    let mut wire = Wire::new();
    wire.listen(PortSpace::Tcp, 8);
    wire.asking();
    let (passive, ..) = wire.request();
    // The request is retransmitted once, and the listener's host asks for time.
    wire.run_to(wire.now + Duration::from_secs(60));
    assert!(wire.events[0].is_empty());
    assert_eq!(wire.count(0, is_request), 2);
    assert_eq!(
        wire.count(1, |message| matches!(message, Message::Mra(_))),
        1
    );
    wire.accept(passive);
    let response = wire.next(0).what;
    assert!(matches!(response, Occurrence::ConnectResponse { .. }));
}

#[test]
fn lost_rtu_of_slow_program_is_sent_again_within_seconds() {
    let mut wire = Wire::new();
    wire.listen(PortSpace::Tcp, 8);
    let active = wire.asking();
    let (passive, ..) = wire.request();
    wire.accept(passive);
    wire.next(0);
    // The reply is retransmitted, and the active side asks for time.
    wire.run_to(wire.now + Duration::from_secs(1));
    assert_eq!(
        wire.count(0, |message| matches!(message, Message::Mra(_))),
        1
    );
    wire.loss = 1.0;
    wire.managers[0].establish(active).unwrap();
    wire.step();
    wire.loss = 0.0;
    let start = wire.now;
    assert_eq!(wire.next(1).what, Occurrence::Established);
    let waited = wire.now - start;
    assert!(waited < Duration::from_secs(5), "{waited:?}");
}

#[test]
fn full_backlog_drops_requests_until_there_is_room() {
    let mut wire = Wire::new();
    wire.listen(PortSpace::Tcp, 2);
    for _ in 0..3 {
        wire.asking();
    }
    wire.run_to(wire.now);
    assert_eq!(wire.events[1].len(), 2, "two requests have room");
    // No request is accepted, so the backlog drops the third one.
    wire.run_to(wire.now + Duration::from_secs(4));
    assert_eq!(wire.events[1].len(), 2);
    assert!(wire.count(0, is_request) > 10);
}

#[test]
fn room_in_the_backlog_lets_a_repeated_request_in() {
    let mut wire = Wire::new();
    wire.listen(PortSpace::Tcp, 1);
    let (first, second) = (wire.asking(), wire.asking());
    wire.run_to(wire.now);
    let (child, ..) = wire.request();
    let (other, ..) = wire.request();
    assert_ne!(child, other);
    assert_ne!(first, second);
    assert_eq!(
        wire.count(0, is_request),
        4,
        "each is repeated: one is answered by a receipt, the other was dropped"
    );
}

#[test]
fn disconnect_without_answer_times_out() {
    let mut wire = Wire::new();
    let (active, _passive) = wire.connected();
    wire.loss = 1.0;
    wire.disconnect(0, active);
    assert_eq!(wire.next(0).what, Occurrence::Disconnected(-110));
    assert_eq!(wire.next(0).what, Occurrence::TimewaitExit);
}

/// Makes and ends a connection over a faulty wire: each end is established once and disconnected once.
fn exchange(seed: u64) {
    let mut wire = Wire::new();
    wire.rng = Rng::with_seed(seed);
    wire.loss = 0.2;
    wire.duplication = 0.2;
    wire.delay = Duration::from_millis(400);
    wire.listen(PortSpace::Tcp, 8);
    let active = wire.asking();
    let mut passive: Option<IdNum> = None;
    let (mut responses, mut established, mut ended) = (0, 0, [0, 0]);
    while ended != [1, 1] {
        assert!(
            wire.step(),
            "seed {seed}: {responses} {established} {ended:?}"
        );
        for (host, event) in wire.take_events() {
            let now = wire.now;
            match event.what {
                Occurrence::ConnectRequest { child, .. } => {
                    assert_eq!(passive, None, "seed {seed}: one request");
                    passive = Some(child);
                    assert!(wire.managers[1].take_request(child));
                    wire.managers[1].accept(child, param(18), b"", now).unwrap();
                }
                Occurrence::ConnectResponse { .. } => {
                    responses += 1;
                    wire.managers[0].establish(active).unwrap();
                    if seed.is_multiple_of(2) {
                        wire.disconnect(0, active);
                    }
                }
                Occurrence::Established => {
                    established += 1;
                    wire.disconnect(1, passive.unwrap());
                }
                Occurrence::Disconnected(status) => {
                    assert_eq!(status, 0, "seed {seed}");
                    ended[host] += 1;
                    let id = [Some(active), passive][host].unwrap();
                    wire.disconnect(host, id);
                }
                Occurrence::TimewaitExit => {}
                other => unreachable!("seed {seed}: {other:?}"),
            }
        }
    }
    assert_eq!(responses, 1, "seed {seed}");
    assert!(established <= 1, "seed {seed}");
    wire.run();
    let late = |event: &softnic::cm::CmEvent| event.what != Occurrence::TimewaitExit;
    assert!(
        !wire.events.iter().flatten().any(late),
        "seed {seed}: {:?}",
        wire.events
    );
}

#[test]
fn connections_are_made_and_ended_once_over_a_bad_wire() {
    for seed in 0..SEEDS {
        exchange(seed);
    }
}

#[test]
fn receipt_of_another_message_postpones_nothing() {
    let mut wire = Wire::new();
    wire.listen(PortSpace::Tcp, 8);
    wire.asking();
    let (passive, ..) = wire.request();
    wire.accept(passive);
    wire.next(0);
    // The reply is retransmitted on time, although the request was received.
    let ids = wire.sent.iter().find_map(|(_, message)| match message {
        Message::Reply(reply) => Some(reply.ids),
        _ => None,
    });
    let ids = ids.unwrap();
    let ids = softnic::cm::CommIds {
        local: ids.remote,
        remote: ids.local,
    };
    let receipt = |about| {
        Message::Mra(softnic::cm::Mra {
            ids,
            about,
            service_timeout: 24,
        })
    };
    let is_reply = |message: &Message| matches!(message, Message::Reply(_));
    let take = |wire: &mut Wire, about| {
        let (from, to) = (crate::wire::ADDRS[0].into(), crate::wire::ADDRS[1].into());
        let now = wire.now;
        wire.loss = 1.0;
        wire.managers[1].handle_message(from, to, &receipt(about).encode(1), now);
        let before = wire.count(1, is_reply);
        wire.run_to(now + Duration::from_secs(1));
        wire.count(1, is_reply) - before
    };
    assert_eq!(take(&mut wire, softnic::cm::Rejected::Request), 3);
    assert_eq!(take(&mut wire, softnic::cm::Rejected::Reply), 0);
}
