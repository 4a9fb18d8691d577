//! States of queue pairs: accepted requests, and transitions.

use softnic::engine::{
    Access, AttributeMask, EngineError, Event, MAX_RD_ATOMIC, QpAttributes, QpKind, State, Status,
};

use crate::pair::{Pair, SEND, attributes, request};

#[test]
fn illegal_transitions_and_missing_attributes_are_refused() {
    let mut pair = Pair::new(QpKind::Rc, false);
    let mut to = |state, mask| pair.modify(0, state, &attributes(), mask);
    let none = AttributeMask::default();
    let init = AttributeMask::PKEY_INDEX | AttributeMask::PORT | AttributeMask::ACCESS;
    let invalid = |what| Err(EngineError::Invalid(what));
    assert_eq!(to(State::Rts, none), invalid("the transition is illegal"));
    assert_eq!(
        to(State::Init, none),
        invalid("the transition needs more attributes")
    );
    let more = init | AttributeMask::TIMEOUT;
    assert_eq!(
        to(State::Init, more),
        invalid("the transition does not allow an attribute")
    );
    // The current state can be given only on the way to RTS.
    let more = init | AttributeMask::CUR_STATE;
    assert_eq!(
        to(State::Init, more),
        invalid("the transition does not allow an attribute")
    );
    assert_eq!(to(State::Init, init), Ok(()));
    assert_eq!(pair.state(0), State::Init);
}

/// A change of one attribute.
type Change = fn(&mut QpAttributes);

#[test]
fn attributes_out_of_range_are_refused() {
    let mut pair = Pair::connected(QpKind::Rc);
    pair.modify(0, State::Sqd, &attributes(), AttributeMask::STATE)
        .unwrap();
    let changes: [(AttributeMask, Change); 9] = [
        (AttributeMask::PORT, |bad| bad.port = 2),
        (AttributeMask::PKEY_INDEX, |bad| bad.pkey_index = 1),
        (AttributeMask::TIMEOUT, |bad| bad.timeout = 32),
        (AttributeMask::RETRY_COUNT, |bad| bad.retry_count = 8),
        (AttributeMask::MIN_RNR_TIMER, |bad| bad.min_rnr_timer = 32),
        (AttributeMask::MAX_RD_ATOMIC, |bad| {
            bad.max_rd_atomic = MAX_RD_ATOMIC + 1;
        }),
        (AttributeMask::MAX_DEST_RD_ATOMIC, |bad| {
            bad.max_dest_rd_atomic = MAX_RD_ATOMIC + 1;
        }),
        (AttributeMask::ACCESS, |bad| bad.access = Access(1 << 31)),
        // No path.
        (AttributeMask::PATH, |_| {}),
    ];
    for (mask, change) in changes {
        let mut bad = attributes();
        change(&mut bad);
        let refused = pair.modify(0, State::Sqd, &bad, mask);
        assert!(matches!(refused, Err(EngineError::Invalid(_))), "{mask:?}");
    }
}

#[test]
fn queue_pair_cannot_send_before_it_is_ready() {
    let mut pair = Pair::new(QpKind::Rc, false);
    let sge = pair.hosts[0].sge(0, 8);
    assert!(pair.try_post(0, request(1, SEND, &[sge])).is_err());
}

#[test]
fn send_queue_drain_finishes_started_requests_only() {
    let mut pair = Pair::connected(QpKind::Rc);
    let sge = pair.hosts[0].sge(0, 600);
    for id in 0..2 {
        pair.post_recv(1, id, &[sge]);
    }
    pair.post(0, request(0, SEND, &[sge]));
    let first = pair.transmit(0).unwrap();
    let notify = QpAttributes {
        sqd_notify: true,
        ..attributes()
    };
    pair.modify(0, State::Sqd, &notify, AttributeMask::SQD_NOTIFY)
        .unwrap();
    pair.post(0, request(1, SEND, &[sge]));
    assert_eq!(
        pair.hosts[0].events(),
        [],
        "the message is not acknowledged"
    );
    pair.deliver(1, &first);
    pair.run();
    let drained = Event::SendQueueDrained(pair.hosts[0].qp);
    assert_eq!(pair.hosts[0].events(), [drained]);
    assert_eq!(pair.hosts[0].poll().len(), 1, "the second waits");
    pair.modify(0, State::Rts, &attributes(), AttributeMask::STATE)
        .unwrap();
    pair.run();
    assert_eq!(pair.hosts[0].poll().len(), 1);
    assert_eq!(pair.hosts[0].events(), [], "once");
}

#[test]
fn empty_send_queue_is_drained_at_once() {
    let mut pair = Pair::connected(QpKind::Rc);
    let notify = QpAttributes {
        sqd_notify: true,
        ..attributes()
    };
    pair.modify(0, State::Sqd, &notify, AttributeMask::SQD_NOTIFY)
        .unwrap();
    let drained = Event::SendQueueDrained(pair.hosts[0].qp);
    assert_eq!(pair.hosts[0].events(), [drained]);
}

#[test]
fn reset_drops_everything_and_the_queue_pair_can_be_used_again() {
    let mut pair = Pair::connected(QpKind::Rc);
    let sge = pair.hosts[0].sge(0, 8);
    pair.is_cut = true;
    pair.post(0, request(1, SEND, &[sge]));
    pair.post_recv(0, 2, &[sge]);
    pair.run_until(|_| true);
    for side in [0, 1] {
        pair.modify(side, State::Reset, &attributes(), AttributeMask::STATE)
            .unwrap();
    }
    pair.is_cut = false;
    pair.run();
    assert_eq!(pair.hosts[0].poll(), []);
    pair.connect(&attributes());
    pair.post_recv(1, 4, &[sge]);
    pair.post(0, request(3, SEND, &[sge]));
    pair.run();
    let completions = pair.hosts[0].poll();
    assert_eq!(
        (completions[0].wr_id, completions[0].status),
        (3, Status::Success)
    );
}

#[test]
fn unreliable_send_queue_recovers_from_its_error_state() {
    let mut pair = Pair::connected(QpKind::Uc);
    let mut bad = pair.hosts[0].sge(0, 8);
    bad.lkey ^= 1;
    let good = pair.hosts[0].sge(0, 8);
    pair.post_recv(0, 9, &[good]);
    pair.post(0, request(1, SEND, &[bad]));
    pair.post(0, request(2, SEND, &[good]));
    pair.run();
    let completions = pair.hosts[0].poll();
    let found: Vec<_> = completions.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(found, [(1, Status::LocalProtection), (2, Status::Flushed)]);
    assert_eq!(pair.state(0), State::Sqe);
    pair.modify(0, State::Rts, &attributes(), AttributeMask::STATE)
        .unwrap();
    pair.post_recv(1, 3, &[good]);
    pair.post(0, request(3, SEND, &[good]));
    pair.run();
    assert_eq!(pair.hosts[1].poll().len(), 1);
}

#[test]
fn first_packet_before_sending_is_reported() {
    let mut pair = Pair::connected(QpKind::Rc);
    let sge = pair.hosts[0].sge(0, 8);
    pair.post_recv(1, 1, &[sge]);
    pair.post(0, request(1, SEND, &[sge]));
    let frame = pair.transmit(0).unwrap();
    pair.modify(1, State::Reset, &attributes(), AttributeMask::STATE)
        .unwrap();
    pair.bring_up_to_rtr(1);
    pair.deliver(1, &frame);
    pair.deliver(1, &frame);
    let established = Event::CommunicationEstablished(pair.hosts[1].qp);
    assert_eq!(pair.hosts[1].events(), [established], "once");
}

#[test]
fn batch_beyond_the_capacity_posts_nothing() {
    let mut pair = Pair::connected(QpKind::Rc);
    let sge = pair.hosts[0].sge(0, 8);
    let mut post = |count: u64| {
        let batch = (0..count).map(|id| request(id, SEND, &[sge])).collect();
        let host = &mut pair.hosts[0];
        host.engine
            .post_sends(host.qp, batch, pair.now, &mut host.memory)
    };
    // The capacity is 64.
    assert_eq!(post(65), Err(EngineError::Full("send requests")));
    assert_eq!(post(64), Ok(()));
    assert_eq!(post(1), Err(EngineError::Full("send requests")));
}
