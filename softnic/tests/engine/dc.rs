//! The dynamically connected transport: each request executed once, by the connection of its initiator.

use std::time::Duration;

use softnic::{
    engine::{
        Access, AttributeMask, Destination, Path, QpInit, QpKind, QpNum, Remote, SendOp,
        SendRequest, State, Status,
    },
    wire::{Frame, Nak, Syndrome},
};

use crate::{
    pair::{DCT_KEY, Faults, Pair, SEND, attributes, init, request},
    shadow::BASE,
};

fn connected() -> Pair {
    let mut pair = Pair::dynamic();
    pair.connect(&attributes());
    pair
}

/// A request to a target of the second host.
fn to(pair: &Pair, target: QpNum, (wr_id, op, len): (u64, SendOp, u32)) -> SendRequest {
    let mut wr = request(wr_id, op, &[pair.hosts[0].sge(0, len)]);
    wr.destination = Some(Destination {
        path: Path::new(pair.hosts[0].addr, pair.hosts[1].addr),
        qp: target.0,
        key: DCT_KEY,
    });
    wr
}

fn to_peer(pair: &Pair, wr_id: u64, op: SendOp, len: u32) -> SendRequest {
    to(pair, pair.hosts[1].qp, (wr_id, op, len))
}

fn post_recvs(pair: &mut Pair, count: u64) {
    let sge = pair.hosts[1].sge(0x1000, 4096);
    for id in 0..count {
        pair.post_recv(1, id, &[sge]);
    }
}

fn statuses(pair: &mut Pair, side: usize) -> Vec<Status> {
    let completions = pair.hosts[side].poll();
    completions.iter().map(|wc| wc.status).collect()
}

/// Resets the initiator, and brings it up again.
fn restart(pair: &mut Pair) {
    let none = AttributeMask::default();
    pair.modify(0, State::Reset, &attributes(), none).unwrap();
    pair.connect_side(0);
}

/// Carries the frames of the first host to the second one, and none back; returns these.
fn forward(pair: &mut Pair) -> Vec<Vec<u8>> {
    let frames: Vec<_> = std::iter::from_fn(|| pair.transmit(0)).collect();
    for frame in &frames {
        pair.deliver(1, frame);
    }
    frames
}

fn syndromes(pair: &mut Pair) -> Vec<Syndrome> {
    let frames = std::iter::from_fn(|| pair.transmit(1));
    let syndromes = frames.filter_map(|frame| {
        let frame = Frame::decode(&frame).unwrap();
        frame.extensions.aeth.map(|aeth| aeth.syndrome)
    });
    syndromes.collect()
}

#[test]
fn requests_of_every_operation_arrive_once_on_a_bad_network() {
    for seed in 0..8 {
        let mut pair = connected();
        pair.rng = fastrand::Rng::with_seed(seed);
        pair.faults = Faults {
            loss: 0.1,
            duplication: 0.1,
            corruption: 0.02,
            delay: Duration::from_micros(200),
        };
        post_recvs(&mut pair, 32);
        let remote = Remote {
            addr: BASE + 0x8000,
            rkey: pair.hosts[1].key,
        };
        let write = SendOp::Write {
            remote,
            imm: Some(9),
        };
        let add = SendOp::FetchAdd { remote, add: 1 };
        for id in 0..10 {
            for (op, len) in [
                (SEND, 1000),
                (write, 700),
                (add, 8),
                (SendOp::Read(remote), 600),
            ] {
                let wr = to_peer(&pair, id, op, len);
                pair.post(0, wr);
            }
            pair.run();
        }
        let sent = statuses(&mut pair, 0);
        assert_eq!(sent, [Status::Success; 40], "{seed}");
        let received = pair.hosts[1].poll();
        assert_eq!(received.len(), 20, "{seed}");
        let QpNum(initiator) = pair.hosts[0].qp;
        assert!(received.iter().all(|wc| wc.src_qp == initiator));
    }
}

#[test]
fn packet_of_an_earlier_connection_is_not_executed() {
    let mut pair = connected();
    post_recvs(&mut pair, 4);
    let wr = to_peer(&pair, 1, SEND, 8);
    pair.post(0, wr);
    let late = forward(&mut pair);
    pair.run();
    let wr = to_peer(&pair, 2, SEND, 8);
    pair.post(0, wr);
    pair.run();
    assert_eq!(pair.hosts[1].poll().len(), 2);
    for frame in late {
        pair.deliver(1, &frame);
    }
    assert!(syndromes(&mut pair).is_empty());
    assert!(pair.hosts[1].poll().is_empty());
}

#[test]
fn wrong_key_ends_the_initiator_and_no_other() {
    let mut pair = connected();
    post_recvs(&mut pair, 2);
    let mut wr = to_peer(&pair, 1, SEND, 8);
    if let Some(destination) = &mut wr.destination {
        destination.key ^= 1 << 63;
    }
    pair.post(0, wr);
    let wr = to_peer(&pair, 2, SEND, 8);
    pair.post(0, wr);
    pair.run();
    assert_eq!(
        statuses(&mut pair, 0),
        [Status::RemoteAccess, Status::Flushed]
    );
    assert_eq!((pair.state(0), pair.state(1)), (State::Err, State::Rtr));
    assert!(pair.hosts[1].poll().is_empty());
    restart(&mut pair);
    let wr = to_peer(&pair, 3, SEND, 8);
    pair.post(0, wr);
    pair.run();
    assert_eq!(statuses(&mut pair, 0), [Status::Success]);
    assert_eq!(statuses(&mut pair, 1), [Status::Success]);
}

#[test]
fn lost_refusal_is_repeated() {
    let mut pair = connected();
    post_recvs(&mut pair, 2);
    let wr = to_peer(&pair, 1, SEND, 5000);
    pair.post(0, wr);
    forward(&mut pair);
    let refused = Syndrome::Nak(Nak::InvalidRequest);
    assert!(syndromes(&mut pair).contains(&refused), "and lost");
    pair.run();
    assert_eq!(statuses(&mut pair, 0), [Status::RemoteInvalidRequest]);
    assert_eq!(
        statuses(&mut pair, 1),
        [Status::LocalLength],
        "one receive is used"
    );
    restart(&mut pair);
    let wr = to_peer(&pair, 2, SEND, 8);
    pair.post(0, wr);
    pair.run();
    assert_eq!(statuses(&mut pair, 1), [Status::Success]);
}

#[test]
fn receive_of_an_unfinished_message_is_used_by_the_next_connection() {
    let mut pair = connected();
    post_recvs(&mut pair, 1);
    let wr = to_peer(&pair, 1, SEND, 1000);
    pair.post(0, wr);
    let first = pair.transmit(0).unwrap();
    pair.deliver(1, &first);
    restart(&mut pair);
    let wr = to_peer(&pair, 2, SEND, 8);
    pair.post(0, wr);
    pair.run();
    let received = pair.hosts[1].poll();
    assert_eq!(received.len(), 1);
    assert_eq!(
        (received[0].status, received[0].byte_len),
        (Status::Success, 8)
    );
}

#[test]
fn initiator_waits_for_one_target_before_the_next() {
    let mut pair = connected();
    let host = &mut pair.hosts[1];
    let first = host.qp;
    let srq = host.engine.qp_srq(first);
    let second = QpInit {
        dct_key: DCT_KEY,
        ..init(QpKind::Dct, host.pd, host.cq, srq)
    };
    host.qp = host.engine.create_qp(second).unwrap();
    pair.connect_side(1);
    let second = pair.hosts[1].qp;
    for (id, target) in (0..4).zip([first, second, second, first]) {
        let wr = to(&pair, target, (id, SEND, 8));
        pair.post(0, wr);
    }
    let targets = |frames: Vec<Vec<u8>>| -> Vec<QpNum> {
        let decoded = frames.iter().map(|frame| Frame::decode(frame).unwrap());
        decoded.map(|frame| QpNum(frame.bth.dest_qp)).collect()
    };
    post_recvs(&mut pair, 4);
    for expected in [vec![first], vec![second, second], vec![first]] {
        assert_eq!(targets(forward(&mut pair)), expected);
        while let Some(answer) = pair.transmit(1) {
            pair.deliver(0, &answer);
        }
    }
    assert_eq!(statuses(&mut pair, 0), [Status::Success; 4]);
}

#[test]
fn rights_of_a_target_and_of_its_region_are_checked() {
    for (access, status) in [
        (Access::default(), Status::RemoteInvalidRequest),
        (Access::REMOTE_WRITE, Status::RemoteAccess),
    ] {
        let mut pair = Pair::dynamic();
        let mut rights = attributes();
        rights.access = access;
        pair.connect(&rights);
        let key = pair.hosts[1].register(BASE, 4096, Access::REMOTE_READ);
        let remote = Remote {
            addr: BASE,
            rkey: key,
        };
        let wr = to_peer(&pair, 1, SendOp::Write { remote, imm: None }, 8);
        pair.post(0, wr);
        pair.run();
        assert_eq!(statuses(&mut pair, 0), [status]);
        assert_eq!(pair.state(1), State::Rtr, "the target serves others");
    }
}

#[test]
fn objects_and_requests_of_others_are_refused() {
    let mut pair = connected();
    let mut wr = to_peer(&pair, 1, SEND, 8);
    wr.destination = None;
    assert!(pair.try_post(0, wr).is_err(), "without a destination");
    let wr = to_peer(&pair, 1, SEND, 8);
    assert!(pair.try_post(1, wr).is_err(), "a target sends nothing");
    let host = &mut pair.hosts[1];
    let without_srq = init(QpKind::Dct, host.pd, host.cq, None);
    assert!(host.engine.create_qp(without_srq).is_err());
    let with_receives = init(QpKind::Dci, host.pd, host.cq, None);
    assert!(host.engine.create_qp(with_receives).is_err());
}
