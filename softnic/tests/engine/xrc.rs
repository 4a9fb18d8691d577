//! Extended reliable connections: queues named by requests, domains, and shared receiving ends.

use std::time::Duration;

use softnic::{
    engine::{
        CompletionOp, CqId, EngineError, Event, Placement, QpAttributes, QpInit, QpKind,
        RecvRequest, Remote, SendOp, SendRequest, SrqId, State, Status, XrcdId,
    },
    wire::{Frame, Opcode, Transport},
};

use crate::{
    pair::{Faults, Pair, SEND, attributes, init, request},
    shadow::BASE,
};

/// A second shared receive queue of the second host, in a protection domain and a completion queue of its own.
struct Other {
    cq: CqId,
    srq: SrqId,
    number: u32,
}

impl Other {
    fn new(pair: &mut Pair, xrcd: XrcdId) -> Self {
        let engine = &mut pair.hosts[1].engine;
        let (pd, cq) = (engine.alloc_pd(), engine.create_cq(64));
        let srq = engine.create_xrc_srq(pd, (xrcd, cq), 64, 4).unwrap();
        let number = engine.srq_number(srq).unwrap();
        Self { cq, srq, number }
    }
}

/// A connected pair: the first host sends, the second one receives.
fn connected() -> Pair {
    let mut pair = Pair::xrc();
    pair.connect(&attributes());
    pair
}

/// A signaled request to a shared receive queue.
fn to_srq(pair: &Pair, number: u32, wr_id: u64, op: SendOp, len: u32) -> SendRequest {
    let sge = pair.hosts[0].sge(wr_id * 4096, len);
    let list = if len > 0 { &[sge][..] } else { &[] };
    SendRequest {
        xrc_srq: Some(number),
        ..request(wr_id, op, list)
    }
}

fn post_srq_recv(pair: &mut Pair, wr_id: u64, len: u32) {
    let sge = pair.hosts[1].sge(wr_id * 4096, len);
    let sges = vec![sge];
    let host = &mut pair.hosts[1];
    let (srq, _) = host.xrc.unwrap();
    let posted = host.engine.post_srq_recv(srq, RecvRequest { wr_id, sges });
    posted.unwrap();
}

#[test]
fn xrc_message_takes_a_receive_of_the_named_queue() {
    let mut pair = connected();
    let number = pair.xrc_number();
    pair.hosts[0].memory.at(BASE + 4096, 700).fill(7);
    post_srq_recv(&mut pair, 5, 1000);
    let op = SendOp::Send {
        imm: Some(9),
        invalidate: None,
    };
    let wr = to_srq(&pair, number, 1, op, 700);
    pair.post(0, wr);
    let frames: Vec<_> = std::iter::from_fn(|| pair.transmit(0)).collect();
    assert_eq!(frames.len(), 3);
    for bytes in &frames {
        let frame = Frame::decode(bytes).unwrap();
        let (transport, _) = frame.bth.opcode.parse().unwrap();
        assert_eq!(transport, Transport::Xrc);
        assert_eq!(frame.extensions.xrc_srq, Some(number));
        pair.deliver(1, bytes);
    }
    let ack = pair.transmit(1).unwrap();
    assert_eq!(Frame::decode(&ack).unwrap().bth.opcode, Opcode(0xb1));
    pair.deliver(0, &ack);
    let sent = pair.hosts[0].poll()[0];
    assert_eq!(
        (sent.op, sent.status),
        (CompletionOp::Send, Status::Success)
    );
    let received = pair.hosts[1].poll()[0];
    assert_eq!(
        (received.wr_id, received.status, received.byte_len),
        (5, Status::Success, 700)
    );
    assert_eq!((received.imm, received.qp), (Some(9), pair.hosts[1].qp.0));
    assert_eq!(pair.hosts[1].memory.at(BASE + 5 * 4096, 700), [7; 700]);
}

#[test]
fn xrc_overrun_fails_the_queue_and_the_receiving_ends_of_its_domain() {
    let mut pair = connected();
    let number = pair.xrc_number();
    let (cq, qp) = (pair.hosts[1].cq, pair.hosts[1].qp);
    pair.hosts[1].engine.resize_cq(cq, 2).unwrap();
    for id in 0..3 {
        post_srq_recv(&mut pair, id, 8);
        let wr = to_srq(&pair, number, id, SEND, 8);
        pair.post(0, wr);
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
fn xrc_memory_is_checked_in_the_domain_of_the_named_queue() {
    let operations = |rkey| {
        let remote = Remote {
            addr: BASE + 0x8_0000,
            rkey,
        };
        let flush = SendOp::Flush {
            remote,
            len: 8,
            placement: Placement::GLOBAL,
            whole_region: false,
        };
        let value = [1; 8];
        [
            (SendOp::Write { remote, imm: None }, 300),
            (SendOp::Read(remote), 300),
            (SendOp::FetchAdd { remote, add: 1 }, 8),
            (flush, 0),
            (SendOp::AtomicWrite { remote, value }, 0),
        ]
    };
    for index in 0..5 {
        let mut pair = connected();
        let (xrcd, number) = (pair.hosts[1].xrc.unwrap().1, pair.xrc_number());
        let other = Other::new(&mut pair, xrcd);
        let (op, len) = operations(pair.hosts[1].key)[index];
        for (to, expected) in [
            (number, Status::Success),
            (other.number, Status::RemoteAccess),
        ] {
            let wr = to_srq(&pair, to, 1, op, len);
            pair.post(0, wr);
            pair.run();
            assert_eq!(pair.hosts[0].poll()[0].status, expected, "{op:?}");
        }
        assert!(matches!(
            pair.hosts[1].events()[..],
            [Event::QpAccessError(_)]
        ));
    }
}

#[test]
fn xrc_request_for_a_queue_outside_of_the_domain_is_invalid() {
    let mut strange = Pair::xrc();
    let host = &mut strange.hosts[1];
    let xrcd = host.engine.open_xrcd();
    let outside = Other::new(&mut strange, xrcd).number;
    let unknown = outside + 1;
    for number in [outside, unknown] {
        for op in [SEND, SendOp::Read(Remote { addr: 0, rkey: 0 })] {
            let mut pair = connected();
            let xrcd = pair.hosts[1].engine.open_xrcd();
            assert_eq!(Other::new(&mut pair, xrcd).number, outside);
            let wr = to_srq(&pair, number, 1, op, 0);
            pair.post(0, wr);
            pair.run();
            let status = pair.hosts[0].poll()[0].status;
            assert_eq!(status, Status::RemoteInvalidRequest);
            assert!(matches!(
                pair.hosts[1].events()[..],
                [Event::QpRequestError(_)]
            ));
            assert_eq!(pair.state(1), State::Err);
        }
    }
}

#[test]
fn xrc_message_to_an_empty_queue_waits_for_a_receive() {
    let mut pair = connected();
    let wr = to_srq(&pair, pair.xrc_number(), 1, SEND, 8);
    pair.post(0, wr);
    pair.run_until(|pair| pair.now > Duration::from_millis(1));
    assert_eq!(pair.hosts[0].poll(), []);
    let (srq, _) = pair.hosts[1].xrc.unwrap();
    pair.hosts[1].engine.arm_srq(srq, 1).unwrap();
    post_srq_recv(&mut pair, 1, 8);
    pair.run();
    assert_eq!(pair.hosts[0].poll()[0].status, Status::Success);
    assert_eq!(pair.hosts[1].poll()[0].status, Status::Success);
    assert_eq!(pair.hosts[1].events(), [Event::SrqLimit(srq)]);
}

#[test]
fn xrc_message_that_changes_its_queue_fails_both_ends() {
    let mut pair = connected();
    let (xrcd, number) = (pair.hosts[1].xrc.unwrap().1, pair.xrc_number());
    let other = Other::new(&mut pair, xrcd);
    post_srq_recv(&mut pair, 1, 1000);
    let sges = Vec::new();
    let recv = RecvRequest { wr_id: 2, sges };
    pair.hosts[1].engine.post_srq_recv(other.srq, recv).unwrap();
    let wr = to_srq(&pair, number, 1, SEND, 700);
    pair.post(0, wr);
    let first = pair.transmit(0).unwrap();
    pair.deliver(1, &first);
    let second = pair.transmit(0).unwrap();
    let mut forged = Vec::new();
    let mut frame = Frame::decode(&second).unwrap();
    frame.extensions.xrc_srq = Some(other.number);
    frame.encode(&mut forged).unwrap();
    pair.deliver(1, &forged);
    let flushed = pair.hosts[1].poll()[0];
    assert_eq!((flushed.wr_id, flushed.status), (1, Status::Flushed));
    assert_eq!(pair.hosts[1].engine.poll_cq(other.cq), None);
    while let Some(reply) = pair.transmit(1) {
        pair.deliver(0, &reply);
    }
    let status = pair.hosts[0].poll()[0].status;
    assert_eq!(status, Status::RemoteInvalidRequest);
}

#[test]
fn xrc_objects_in_use_are_not_destroyed() {
    let mut pair = Pair::xrc();
    let host = &mut pair.hosts[1];
    let (srq, xrcd) = host.xrc.unwrap();
    let busy = |result| matches!(result, Err(EngineError::Busy(_)));
    assert!(busy(host.engine.close_xrcd(xrcd)));
    assert!(busy(host.engine.destroy_cq(host.cq)));
    // The receiving end lives until its last owner gives it up.
    host.engine.open_qp(xrcd, host.qp).unwrap();
    host.engine.destroy_qp(host.qp).unwrap();
    assert_eq!(host.engine.query_qp(host.qp).unwrap().0, State::Reset);
    host.engine.destroy_qp(host.qp).unwrap();
    assert_eq!(host.engine.query_qp(host.qp), None);
    assert!(host.engine.open_qp(xrcd, host.qp).is_err());
    assert!(busy(host.engine.close_xrcd(xrcd)), "a queue is left");
    host.engine.destroy_srq(srq).unwrap();
    host.engine.destroy_cq(host.cq).unwrap();
    host.engine.close_xrcd(xrcd).unwrap();
    assert!(host.engine.close_xrcd(xrcd).is_err());
}

#[test]
fn xrc_receiver_is_opened_only_in_its_domain() {
    let mut pair = Pair::xrc();
    let sender = pair.hosts[0].qp;
    let host = &mut pair.hosts[1];
    let other = host.engine.open_xrcd();
    let opened = host.engine.open_qp(other, host.qp);
    assert!(matches!(opened, Err(EngineError::NotFound(..))));
    let host = &mut pair.hosts[0];
    let xrcd = host.engine.open_xrcd();
    assert!(host.engine.open_qp(xrcd, sender).is_err());
}

#[test]
fn xrc_queue_pairs_refuse_requests_and_objects_of_other_transports() {
    let mut pair = connected();
    let wr = to_srq(&pair, 1 << 24, 1, SEND, 8);
    let invalid = |result| matches!(result, Err(EngineError::Invalid(_)));
    assert!(invalid(pair.try_post(0, wr)), "25 bits");
    assert!(invalid(pair.try_post(0, request(1, SEND, &[]))), "no queue");
    let wr = to_srq(&pair, pair.xrc_number(), 1, SEND, 8);
    assert!(invalid(pair.try_post(1, wr)), "the receiving end");
    let host = &mut pair.hosts[1];
    let recv = RecvRequest {
        wr_id: 1,
        sges: Vec::new(),
    };
    let posted = host
        .engine
        .post_recv(host.qp, recv, pair.now, &mut host.memory);
    assert!(invalid(posted));
    let (srq, xrcd) = host.xrc.unwrap();
    let rc = init(QpKind::Rc, host.pd, host.cq, None);
    let refused = [
        QpInit {
            kind: QpKind::XrcSend,
            ..rc
        },
        QpInit {
            kind: QpKind::XrcRecv,
            xrcd: Some(xrcd),
            ..rc
        },
        QpInit {
            xrcd: Some(xrcd),
            ..rc
        },
        QpInit { pd: None, ..rc },
        QpInit {
            srq: Some(srq),
            recv_cq: None,
            kind: QpKind::XrcSend,
            ..rc
        },
    ];
    for init in refused {
        let created = host.engine.create_qp(init);
        assert!(matches!(created, Err(EngineError::Invalid(_))), "{init:?}");
    }
    let created = host.engine.create_qp(QpInit {
        srq: Some(srq),
        ..rc
    });
    assert!(created.is_err(), "an RC queue pair with an XRC queue");
}

#[test]
fn xrc_messages_arrive_once_and_in_order_over_a_lossy_wire() {
    for seed in 0..50 {
        let mut pair = Pair::xrc();
        pair.rng = fastrand::Rng::with_seed(seed);
        pair.faults = Faults {
            loss: 0.05,
            duplication: 0.1,
            corruption: 0.02,
            delay: Duration::from_micros(80),
        };
        pair.connect(&QpAttributes {
            sq_psn: 0xff_fff0,
            ..attributes()
        });
        let number = pair.xrc_number();
        for id in 0..30_u64 {
            let len = pair.rng.usize(1..3000);
            let fill = u8::try_from(id).unwrap();
            pair.hosts[0].memory.at(BASE + id * 4096, len).fill(fill);
            pair.hosts[1].memory.at(BASE + id * 4096, 4096).fill(0xff);
            post_srq_recv(&mut pair, id, 4096);
            let wr = to_srq(&pair, number, id, SEND, u32::try_from(len).unwrap());
            pair.post(0, wr);
        }
        pair.run();
        let order = |completions: Vec<softnic::engine::Completion>| -> Vec<_> {
            let ok = |wc: &softnic::engine::Completion| (wc.wr_id, wc.status);
            completions.iter().map(ok).collect()
        };
        let expected: Vec<_> = (0..30).map(|id| (id, Status::Success)).collect();
        assert_eq!(order(pair.hosts[0].poll()), expected, "seed {seed}");
        let received = pair.hosts[1].poll();
        for wc in &received {
            let at = BASE + wc.wr_id * 4096;
            let bytes = pair.hosts[1].memory.at(at, wc.byte_len as usize);
            assert!(bytes.iter().all(|byte| u64::from(*byte) == wc.wr_id));
        }
        assert_eq!(order(received), expected, "seed {seed}");
    }
}
