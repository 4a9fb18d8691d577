//! Reliable connections: one test for each rule.

use std::time::Duration;

use softnic::{
    engine::{
        Access, CompletionOp, EngineError, Event, QpAttributes, QpKind, Remote, SendOp, State,
        Status,
    },
    wire::{Aeth, Frame, Opcode, Operation, Syndrome},
};

use crate::{
    pair::{Pair, SEND, attributes, request},
    shadow::BASE,
};

fn statuses(pair: &mut Pair, side: usize) -> Vec<(u64, Status)> {
    let completions = pair.hosts[side].poll();
    completions.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

fn write(rkey: u32, addr: u64) -> SendOp {
    SendOp::Write {
        remote: Remote { addr, rkey },
        imm: None,
    }
}

/// Writes 16 bytes with a key made by the peer, and returns the outcome.
fn outcome_of_write(access: Access, addr: u64) -> (Vec<(u64, Status)>, Vec<Event>) {
    let mut pair = Pair::connected(QpKind::Rc);
    let page = BASE + (1 << 20) - 4096;
    let rkey = pair.hosts[1].register(page, 64, access);
    let op = write(rkey, page + addr);
    let sge = pair.hosts[0].sge(0, 16);
    pair.post(0, request(1, op, &[sge]));
    pair.run();
    (statuses(&mut pair, 0), pair.hosts[1].events())
}

#[test]
fn write_needs_the_right_and_the_bounds_of_its_key() {
    let may_write = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
    let (statuses, events) = outcome_of_write(may_write, 48);
    assert_eq!((statuses, events), (vec![(1, Status::Success)], vec![]));
    for (access, addr) in [
        (may_write, 49),
        (Access::REMOTE_READ, 0),
        (may_write, u64::MAX / 2),
    ] {
        let (statuses, events) = outcome_of_write(access, addr);
        assert_eq!(statuses, [(1, Status::RemoteAccess)]);
        assert!(
            matches!(events[..], [Event::QpAccessError(_)]),
            "{events:?}"
        );
    }
}

#[test]
fn operations_that_the_queue_pair_does_not_grant_are_invalid() {
    let mut pair = Pair::new(QpKind::Rc, false);
    pair.connect(&QpAttributes {
        access: Access::REMOTE_WRITE,
        ..attributes()
    });
    let remote = Remote {
        addr: BASE,
        rkey: pair.hosts[1].key,
    };
    let sge = pair.hosts[0].sge(0, 8);
    pair.post(0, request(1, SendOp::Read(remote), &[sge]));
    pair.run();
    assert_eq!(statuses(&mut pair, 0), [(1, Status::RemoteInvalidRequest)]);
    assert!(matches!(
        pair.hosts[1].events()[..],
        [Event::QpRequestError(_)]
    ));
    assert_eq!((pair.state(0), pair.state(1)), (State::Err, State::Err));
}

#[test]
fn read_without_an_agreed_number_of_reads_fails() {
    let mut pair = Pair::new(QpKind::Rc, false);
    pair.connect(&QpAttributes {
        max_rd_atomic: 0,
        ..attributes()
    });
    let remote = Remote {
        addr: BASE,
        rkey: pair.hosts[1].key,
    };
    let sge = pair.hosts[0].sge(0, 8);
    pair.post_recv(1, 7, &[sge]);
    pair.post(0, request(1, SEND, &[sge]));
    pair.post(0, request(2, SendOp::Read(remote), &[sge]));
    pair.post(0, request(3, SEND, &[sge]));
    pair.run();
    let expected = [
        (1, Status::Success),
        (2, Status::LocalOperation),
        (3, Status::Flushed),
    ];
    assert_eq!(statuses(&mut pair, 0), expected);
}

#[test]
fn send_without_receive_exhausts_rnr_retries() {
    let mut pair = Pair::new(QpKind::Rc, false);
    pair.connect(&QpAttributes {
        rnr_retry: 2,
        min_rnr_timer: 12,
        ..attributes()
    });
    let sge = pair.hosts[0].sge(0, 8);
    pair.post(0, request(1, SEND, &[sge]));
    pair.post(0, request(2, SEND, &[sge]));
    pair.run();
    let expected = [(1, Status::RnrRetryExceeded), (2, Status::Flushed)];
    assert_eq!(statuses(&mut pair, 0), expected);
    let waits = Duration::from_micros(2 * 640);
    assert!(
        pair.now >= waits,
        "two waits of 0.64 ms, in virtual time: {:?}",
        pair.now
    );
}

#[test]
fn missing_receive_is_reported_before_a_wrong_key() {
    let mut pair = Pair::new(QpKind::Rc, false);
    pair.connect(&QpAttributes {
        rnr_retry: 2,
        ..attributes()
    });
    let op = SendOp::Write {
        remote: Remote { addr: 0, rkey: 1 },
        imm: Some(7),
    };
    let sge = pair.hosts[0].sge(0, 16);
    pair.post(0, request(1, op, &[sge]));
    pair.run();
    assert_eq!(statuses(&mut pair, 0), [(1, Status::RnrRetryExceeded)]);

    // With a receive posted, the key is checked, and the receive is left for the flush.
    let mut pair = Pair::connected(QpKind::Rc);
    let sge = pair.hosts[1].sge(0, 16);
    pair.post_recv(1, 9, &[sge]);
    let sge = pair.hosts[0].sge(0, 16);
    pair.post(0, request(1, op, &[sge]));
    pair.run();
    assert_eq!(statuses(&mut pair, 0), [(1, Status::RemoteAccess)]);
    assert_eq!(statuses(&mut pair, 1), [(9, Status::Flushed)]);
}

#[test]
fn send_with_unlimited_rnr_retries_succeeds() {
    let mut pair = Pair::connected(QpKind::Rc);
    let sge = pair.hosts[0].sge(0, 8);
    pair.post(0, request(1, SEND, &[sge]));
    let waited = pair.run_until(|pair| pair.now > Duration::from_millis(1));
    assert!(waited && pair.hosts[0].poll().is_empty());
    pair.post_recv(1, 9, &[]);
    let sge = pair.hosts[1].sge(0, 8);
    pair.post_recv(1, 10, &[sge]);
    pair.run();
    assert_eq!(
        statuses(&mut pair, 1)[0],
        (9, Status::LocalLength),
        "too short"
    );
}

#[test]
fn send_without_acknowledgement_exhausts_retries() {
    let mut pair = Pair::connected(QpKind::Rc);
    pair.is_cut = true;
    let sge = pair.hosts[0].sge(0, 8);
    pair.post(0, request(1, SEND, &[sge]));
    pair.post_recv(0, 2, &[sge]);
    pair.run();
    let expected = [(1, Status::RetryExceeded), (2, Status::Flushed)];
    assert_eq!(statuses(&mut pair, 0), expected);
    // The first attempt and seven more, 4.096 µs · 2^14 each.
    assert_eq!(pair.now, Duration::from_nanos(8 * (4096 << 14)));
}

#[test]
fn message_longer_than_its_receive_fails_both_sides() {
    let mut pair = Pair::connected(QpKind::Rc);
    let (long, short) = (pair.hosts[0].sge(0, 600), pair.hosts[1].sge(0, 599));
    pair.post_recv(1, 5, &[short]);
    pair.post(0, request(1, SEND, &[long]));
    pair.run();
    assert_eq!(statuses(&mut pair, 0), [(1, Status::RemoteInvalidRequest)]);
    assert_eq!(statuses(&mut pair, 1), [(5, Status::LocalLength)]);
}

#[test]
fn everything_is_flushed_in_order_sends_first() {
    let mut pair = Pair::connected(QpKind::Rc);
    pair.is_cut = true;
    let sge = pair.hosts[0].sge(0, 8);
    for id in 1..=3 {
        pair.post_recv(0, 10 + id, &[sge]);
        pair.post(0, request(id, SEND, &[sge]));
    }
    pair.modify(
        0,
        State::Err,
        &attributes(),
        softnic::engine::AttributeMask::STATE,
    )
    .unwrap();
    let flushed = |id| (id, Status::Flushed);
    assert_eq!(statuses(&mut pair, 0), [1, 2, 3, 11, 12, 13].map(flushed));
    pair.post(0, request(4, SEND, &[sge]));
    pair.post_recv(0, 14, &[sge]);
    assert_eq!(statuses(&mut pair, 0), [4, 14].map(flushed));
}

#[test]
fn acknowledgements_are_coalesced() {
    let mut pair = Pair::connected(QpKind::Rc);
    let sge = pair.hosts[0].sge(0, 8);
    for id in 0..10 {
        pair.post_recv(1, id, &[sge]);
        pair.post(0, request(id, SEND, &[sge]));
    }
    while let Some(frame) = pair.transmit(0) {
        pair.deliver(1, &frame);
    }
    let ack = pair.transmit(1).unwrap();
    assert_eq!(pair.transmit(1), None, "one for all");
    let frame = Frame::decode(&ack).unwrap();
    assert_eq!(frame.bth.opcode, Opcode::RC_ACKNOWLEDGE);
    assert_eq!(frame.extensions.aeth, Some(Aeth::ack(10)));
    pair.deliver(0, &ack);
    assert_eq!(pair.hosts[0].poll().len(), 10);
}

#[test]
fn reads_in_flight_are_limited() {
    let mut pair = Pair::new(QpKind::Rc, false);
    pair.connect(&QpAttributes {
        max_rd_atomic: 2,
        ..attributes()
    });
    let remote = Remote {
        addr: BASE,
        rkey: pair.hosts[1].key,
    };
    let sge = pair.hosts[0].sge(0, 8);
    for id in 0..5 {
        pair.post(0, request(id, SendOp::Read(remote), &[sge]));
    }
    let requests: Vec<_> = std::iter::from_fn(|| pair.transmit(0)).collect();
    assert_eq!(requests.len(), 2);
    for request in &requests {
        pair.deliver(1, request);
    }
    pair.run();
    assert_eq!(pair.hosts[0].poll().len(), 5);
}

#[test]
fn peer_with_more_reads_than_agreed_is_refused() {
    let mut pair = Pair::new(QpKind::Rc, false);
    pair.connect(&QpAttributes {
        max_rd_atomic: 3,
        max_dest_rd_atomic: 2,
        ..attributes()
    });
    let remote = Remote {
        addr: BASE,
        rkey: pair.hosts[1].key,
    };
    let sge = pair.hosts[0].sge(0, 8);
    for id in 0..3 {
        pair.post(0, request(id, SendOp::Read(remote), &[sge]));
    }
    while let Some(request) = pair.transmit(0) {
        pair.deliver(1, &request);
    }
    pair.run();
    let last = statuses(&mut pair, 0).pop();
    assert_eq!(last, Some((2, Status::RemoteInvalidRequest)));
}

#[test]
fn duplicate_atomic_is_answered_and_not_repeated() {
    let mut pair = Pair::connected(QpKind::Rc);
    let remote = Remote {
        addr: BASE + 64,
        rkey: pair.hosts[1].key,
    };
    let sge = pair.hosts[0].sge(0, 8);
    pair.post(0, request(1, SendOp::FetchAdd { remote, add: 5 }, &[sge]));
    let frame = pair.transmit(0).unwrap();
    pair.deliver(1, &frame);
    let first = pair.transmit(1).unwrap();
    pair.deliver(1, &frame);
    assert_eq!(pair.transmit(1), Some(first.clone()), "the same answer");
    assert_eq!(pair.hosts[1].memory.at(BASE + 64, 8), 5_u64.to_ne_bytes());
    pair.deliver(0, &first);
    pair.deliver(0, &first);
    assert_eq!(statuses(&mut pair, 0), [(1, Status::Success)]);
}

#[test]
fn unaligned_atomics_are_invalid() {
    let mut pair = Pair::connected(QpKind::Rc);
    let remote = Remote {
        addr: BASE + 4,
        rkey: pair.hosts[1].key,
    };
    let sge = pair.hosts[0].sge(0, 8);
    pair.post(0, request(1, SendOp::FetchAdd { remote, add: 5 }, &[sge]));
    pair.run();
    assert_eq!(statuses(&mut pair, 0), [(1, Status::RemoteInvalidRequest)]);
}

#[test]
fn missing_packet_is_named_once() {
    let mut pair = Pair::connected(QpKind::Rc);
    let sge = pair.hosts[0].sge(0, 8);
    for id in 0..4 {
        pair.post_recv(1, id, &[sge]);
        pair.post(0, request(id, SEND, &[sge]));
    }
    let lost = pair.transmit(0).unwrap();
    while let Some(frame) = pair.transmit(0) {
        pair.deliver(1, &frame);
    }
    let nak = pair.transmit(1).unwrap();
    assert_eq!(pair.transmit(1), None, "once");
    let frame = Frame::decode(&nak).unwrap();
    let syndrome = frame.extensions.aeth.unwrap().syndrome;
    assert_eq!(syndrome, Syndrome::Nak(softnic::wire::Nak::SequenceError));
    assert_eq!(frame.bth.psn, Frame::decode(&lost).unwrap().bth.psn);
    pair.deliver(0, &nak);
    let mut acknowledged = 0;
    let done = pair.run_until(|pair| {
        acknowledged += pair.hosts[0].poll().len();
        acknowledged == 4
    });
    assert!(done && pair.hosts[1].poll().len() == 4);
    assert_eq!(
        pair.now,
        Duration::from_micros(2),
        "no timer was needed, in virtual time"
    );
}

#[test]
fn messages_are_cut_by_the_mtu() {
    let mut pair = Pair::connected(QpKind::Rc);
    let sge = pair.hosts[0].sge(0, 600);
    let op = write(pair.hosts[1].key, BASE);
    pair.post(0, request(1, op, &[sge]));
    let frames: Vec<_> = std::iter::from_fn(|| pair.transmit(0)).collect();
    let shape = |frame: &Vec<u8>| {
        let frame = Frame::decode(frame).unwrap();
        let (_, operation) = frame.bth.opcode.parse().unwrap();
        let Operation::Write(position, _) = operation else {
            unreachable!()
        };
        (position, frame.payload.len(), frame.bth.ack_request)
    };
    use softnic::wire::Position::{First, Last, Middle};
    let expected = [(First, 256, false), (Middle, 256, false), (Last, 88, true)];
    assert_eq!(frames.iter().map(shape).collect::<Vec<_>>(), expected);
}

#[test]
fn memory_is_checked_when_it_is_used_and_not_before() {
    let mut pair = Pair::connected(QpKind::Rc);
    let page = BASE + (1 << 20) - 4096;
    let key = pair.hosts[0].register(page, 4096, Access::default());
    let sge = softnic::engine::Sge {
        addr: page,
        len: 8,
        lkey: key,
    };
    pair.post(0, request(1, SEND, &[sge]));
    pair.hosts[0].engine.deregister(key).unwrap();
    pair.hosts[0].memory.close(page);
    pair.run();
    assert_eq!(statuses(&mut pair, 0), [(1, Status::LocalProtection)]);
}

#[test]
fn memory_that_goes_while_a_read_is_answered_is_not_read() {
    let mut pair = Pair::connected(QpKind::Rc);
    let page = BASE + (1 << 20) - 4096;
    let rkey = pair.hosts[1].register(page, 4096, Access::REMOTE_READ);
    let op = SendOp::Read(Remote { addr: page, rkey });
    let sge = pair.hosts[0].sge(0, 4096);
    pair.post(0, request(1, op, &[sge]));
    let frame = pair.transmit(0).unwrap();
    pair.deliver(1, &frame);
    let begun = pair.transmit(1).unwrap();
    pair.hosts[1].engine.deregister(rkey).unwrap();
    pair.hosts[1].memory.close(page);
    pair.deliver(0, &begun);
    pair.run();
    assert_eq!(statuses(&mut pair, 0), [(1, Status::RemoteAccess)]);
}

#[test]
fn full_send_queue_takes_no_more() {
    let mut pair = Pair::connected(QpKind::Rc);
    let sge = pair.hosts[0].sge(0, 8);
    for id in 0..64 {
        pair.post(0, request(id, SEND, &[sge]));
    }
    let refused = pair.try_post(0, request(64, SEND, &[sge]));
    assert_eq!(refused, Err(EngineError::Full("send requests")));
    let refused = pair.try_post(0, request(64, SEND, &[sge; 5]));
    assert!(refused.is_err());
}

#[test]
fn unsignaled_requests_complete_silently_unless_they_fail() {
    let mut pair = Pair::connected(QpKind::Rc);
    let sge = pair.hosts[0].sge(0, 8);
    let mut wr = request(1, SEND, &[sge]);
    wr.signaled = false;
    pair.post_recv(1, 0, &[sge]);
    pair.post(0, wr.clone());
    pair.run();
    assert_eq!(statuses(&mut pair, 0), []);
    assert_eq!(pair.hosts[1].poll()[0].op, CompletionOp::Receive);
    pair.is_cut = true;
    pair.post(0, wr);
    pair.run();
    assert_eq!(statuses(&mut pair, 0), [(1, Status::RetryExceeded)]);
}

#[test]
fn shared_receives_raise_their_limit_once_and_the_last_event() {
    let mut pair = Pair::new(QpKind::Rc, true);
    pair.connect(&attributes());
    let sge = pair.hosts[1].sge(0, 64);
    let srq = pair.hosts[1].engine.qp_srq(pair.hosts[1].qp).unwrap();
    for id in 0..3 {
        let recv = softnic::engine::RecvRequest {
            wr_id: id,
            sges: vec![sge],
        };
        pair.hosts[1].engine.post_srq_recv(srq, recv).unwrap();
    }
    pair.hosts[1].engine.arm_srq(srq, 2).unwrap();
    let from = pair.hosts[0].sge(0, 8);
    for id in 0..3 {
        pair.post(0, request(id, SEND, &[from]));
    }
    pair.run();
    assert_eq!(statuses(&mut pair, 1).len(), 3);
    assert_eq!(pair.hosts[1].events(), [Event::SrqLimit(srq)], "once");
    assert_eq!(pair.hosts[1].engine.srq_limit(srq), Some(0));
    let mask = softnic::engine::AttributeMask::STATE;
    pair.modify(1, State::Err, &attributes(), mask).unwrap();
    let last = Event::LastWqeReached(pair.hosts[1].qp);
    assert_eq!(pair.hosts[1].events(), [last]);
    assert!(pair.hosts[1].engine.destroy_srq(srq).is_err(), "in use");
}

/// The receives of a shared queue name regions of the queue's domain, not of the queue pair's.
#[test]
fn shared_receive_uses_the_domain_of_its_queue() {
    for is_of_queue in [true, false] {
        let mut pair = Pair::new(QpKind::Rc, false);
        let host = &mut pair.hosts[1];
        let of_queue = host.engine.alloc_pd();
        let srq = host.engine.create_srq(of_queue, 4, 1).unwrap();
        let init = crate::pair::init(QpKind::Rc, host.pd, host.cq, Some(srq));
        host.qp = host.engine.create_qp(init).unwrap();
        if is_of_queue {
            host.pd = of_queue;
            host.key = host.register(BASE, 64, crate::pair::ALL);
        }
        let sges = vec![host.sge(0, 64)];
        let recv = softnic::engine::RecvRequest { wr_id: 7, sges };
        host.engine.post_srq_recv(srq, recv).unwrap();
        pair.connect(&attributes());
        let from = pair.hosts[0].sge(0, 8);
        pair.post(0, request(1, SEND, &[from]));
        pair.run();
        let expected = match is_of_queue {
            true => Status::Success,
            false => Status::LocalProtection,
        };
        assert_eq!(statuses(&mut pair, 1), [(7, expected)]);
    }
}
