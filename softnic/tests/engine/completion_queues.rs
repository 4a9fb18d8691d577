//! Completion queues of a device: overrun, notification and moderation.

use std::time::Duration;

use softnic::engine::{Armed, EngineError, Event, Moderation, QpKind, State};

use crate::pair::{Pair, SEND, request};

#[test]
fn overrun_fails_the_queue_and_its_queue_pairs() {
    let mut pair = Pair::connected(QpKind::Rc);
    let sge = pair.hosts[0].sge(0, 8);
    let (cq, qp) = (pair.hosts[1].cq, pair.hosts[1].qp);
    pair.hosts[1].engine.resize_cq(cq, 2).unwrap();
    for id in 0..3 {
        pair.post_recv(1, id, &[sge]);
        pair.post(0, request(id, SEND, &[sge]));
    }
    pair.run();
    assert_eq!(
        pair.hosts[1].events(),
        [Event::CqError(cq), Event::QpFatal(qp)]
    );
    assert_eq!(pair.state(1), State::Err);
    assert_eq!(pair.hosts[1].poll().len(), 2, "the third is lost");
}

#[test]
fn cq_armed_for_solicited_completions_notifies_once() {
    let mut pair = Pair::connected(QpKind::Rc);
    let sge = pair.hosts[0].sge(0, 8);
    let cq = pair.hosts[1].cq;
    pair.hosts[1].engine.arm_cq(cq, Armed::Solicited).unwrap();
    for (id, solicited) in [(0, false), (1, true), (2, true)] {
        pair.post_recv(1, id, &[sge]);
        let mut wr = request(id, SEND, &[sge]);
        wr.solicited = solicited;
        pair.post(0, wr);
        pair.run();
        let expected: &[_] = if id == 1 {
            &[Event::Completion(cq)]
        } else {
            &[]
        };
        assert_eq!(pair.hosts[1].events(), expected, "message {id}");
    }
}

#[test]
fn notification_that_is_held_back_comes_after_its_period() {
    let mut pair = Pair::connected(QpKind::Rc);
    let sge = pair.hosts[0].sge(0, 8);
    let cq = pair.hosts[1].cq;
    let period = Duration::from_micros(500);
    let moderation = Moderation { count: 2, period };
    pair.hosts[1].engine.moderate_cq(cq, moderation).unwrap();
    pair.hosts[1].engine.arm_cq(cq, Armed::Next).unwrap();
    pair.post_recv(1, 0, &[sge]);
    pair.post(0, request(0, SEND, &[sge]));
    pair.run_until(|pair| pair.now >= Duration::from_micros(2));
    assert_eq!(pair.hosts[1].events(), []);
    pair.run();
    assert_eq!(pair.hosts[1].events(), [Event::Completion(cq)]);
    assert!(pair.now >= period, "in virtual time");
}

#[test]
fn objects_in_use_are_not_destroyed() {
    let mut pair = Pair::new(QpKind::Rc, false);
    let host = &mut pair.hosts[0];
    let busy = |result| matches!(result, Err(EngineError::Busy(_)));
    assert!(busy(host.engine.destroy_cq(host.cq)));
    assert!(busy(host.engine.dealloc_pd(host.pd)));
    host.engine.destroy_qp(host.qp).unwrap();
    assert!(busy(host.engine.dealloc_pd(host.pd)), "a region is left");
    host.engine.deregister(host.key).unwrap();
    host.engine.destroy_cq(host.cq).unwrap();
    host.engine.dealloc_pd(host.pd).unwrap();
    assert!(host.engine.destroy_qp(host.qp).is_err(), "gone");
}
