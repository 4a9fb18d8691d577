//! An engine beside Linux's rxe: requests as rxe has sent them, and answers as rxe gives them. Two engines of one source
//! agree on a misread flag, so these tests take the frames of the recording, with the addresses of an engine of their own.

use softnic::{
    engine::{Placement, QpKind, Remote, SendOp, SendRequest, State, Status},
    wire::{Aeth, Frame, Opcode, Operation, Position, Syndrome, Transport},
};

use crate::{
    pair::{Pair, SEND, attributes, request},
    shadow::BASE,
    vectors::recorded,
};

const FIRST: Operation = Operation::ReadResponse(Position::First);
const MIDDLE: Operation = Operation::ReadResponse(Position::Middle);
const LAST: Operation = Operation::ReadResponse(Position::Last);
const ONLY: Operation = Operation::ReadResponse(Position::Only);

/// A recorded request for the second host of a pair: the flags are rxe's, the numbers and keys are the pair's.
fn readdressed(pair: &Pair, name: &str, psn: u32) -> Vec<u8> {
    let recorded = recorded();
    let mut frame = Frame::decode(&recorded[&*format!("IPv4, RC {name}")]).unwrap();
    let peer = &pair.hosts[1];
    frame.bth.dest_qp = peer.qp.0;
    frame.bth.psn = psn;
    if let Some(reth) = &mut frame.extensions.reth {
        (reth.addr, reth.rkey) = (BASE, peer.key);
    }
    if let Some(atomic) = &mut frame.extensions.atomic {
        (atomic.addr, atomic.rkey) = (BASE, peer.key);
    }
    let mut bytes = Vec::new();
    frame.encode(&mut bytes).unwrap();
    bytes
}

/// Operations and sequence numbers of the second host's answers.
fn answers(pair: &mut Pair) -> Vec<(Operation, u32)> {
    let frames = std::iter::from_fn(|| pair.transmit(1));
    let parts = frames.map(|bytes| {
        let bth = Frame::decode(&bytes).unwrap().bth;
        let (_, operation) = bth.opcode.parse().unwrap();
        (operation, bth.psn)
    });
    parts.collect()
}

#[test]
fn requests_with_a_response_get_no_acknowledgement_as_well() {
    let psn = attributes().sq_psn;
    let expected = [
        (
            "RDMA READ Request",
            vec![(FIRST, psn), (MIDDLE, psn + 1), (LAST, psn + 2)],
        ),
        ("CmpSwap", vec![(Operation::AtomicAcknowledge, psn)]),
        ("FetchAdd", vec![(Operation::AtomicAcknowledge, psn)]),
        ("ATOMIC WRITE", vec![(ONLY, psn)]),
    ];
    for (name, expected) in expected {
        let mut pair = Pair::connected(QpKind::Rc);
        let frame = readdressed(&pair, name, psn);
        assert!(Frame::decode(&frame).unwrap().bth.ack_request, "{name}");
        pair.deliver(1, &frame);
        assert_eq!(answers(&mut pair), expected, "{name}");
        // Nor does a copy.
        pair.deliver(1, &frame);
        assert_eq!(answers(&mut pair), expected, "{name}");
    }
    // A flush, which the recording lacks.
    let mut pair = Pair::connected(QpKind::Rc);
    let frame = readdressed(&pair, "RDMA READ Request", psn);
    let mut frame = Frame::decode(&frame).unwrap();
    frame.bth.opcode = Opcode::new(Transport::Rc, Operation::Flush).unwrap();
    frame.extensions.feth = Some(softnic::wire::Feth {
        placement: Placement::GLOBAL.0,
        selectivity: 0,
    });
    let mut bytes = Vec::new();
    frame.encode(&mut bytes).unwrap();
    pair.deliver(1, &bytes);
    assert_eq!(answers(&mut pair), [(ONLY, psn)]);
}

#[test]
fn acknowledged_sends_are_those_of_the_recording() {
    let mut pair = Pair::connected(QpKind::Rc);
    let sge = pair.hosts[1].sge(0, 600);
    pair.post_recv(1, 5, &[sge]);
    let psn = attributes().sq_psn;
    for (index, name) in ["SEND First", "SEND Middle", "SEND Last"]
        .iter()
        .enumerate()
    {
        let frame = readdressed(&pair, name, psn + u32::try_from(index).unwrap());
        pair.deliver(1, &frame);
    }
    assert_eq!(
        answers(&mut pair),
        [(Operation::Acknowledge, psn + 2)],
        "the last packet alone asks"
    );
}

/// A request of the first host with the flags of the recorded one.
fn assert_flags(post: impl Fn(&mut Pair) -> SendRequest, name: &str) {
    let mut pair = Pair::connected(QpKind::Rc);
    let request = post(&mut pair);
    pair.post(0, request);
    let sent = pair.transmit(0).unwrap();
    let sent = Frame::decode(&sent).unwrap().bth;
    let recorded = recorded();
    let expected = Frame::decode(&recorded[&*format!("IPv4, RC {name}")]).unwrap();
    assert_eq!(sent.opcode, expected.bth.opcode);
    let flags = |bth: &softnic::wire::Bth| (bth.ack_request, bth.solicited, bth.pkey);
    assert_eq!(flags(&sent), flags(&expected.bth), "{name}");
}

#[test]
fn requests_have_the_flags_of_the_recording() {
    let remote = |pair: &Pair| Remote {
        addr: BASE,
        rkey: pair.hosts[1].key,
    };
    let sge = |pair: &Pair, len| pair.hosts[0].sge(64, len);
    let of = |op, pair: &Pair, len| request(1, op, &[sge(pair, len)]);
    assert_flags(
        |pair| of(SendOp::Read(remote(pair)), pair, 600),
        "RDMA READ Request",
    );
    assert_flags(
        |pair| {
            let remote = remote(pair);
            let op = SendOp::CompareSwap {
                remote,
                compare: 1,
                swap: 2,
            };
            of(op, pair, 8)
        },
        "CmpSwap",
    );
    assert_flags(
        |pair| {
            let remote = remote(pair);
            of(SendOp::FetchAdd { remote, add: 3 }, pair, 8)
        },
        "FetchAdd",
    );
    assert_flags(
        |pair| {
            let (remote, value) = (remote(pair), *b"at once!");
            request(1, SendOp::AtomicWrite { remote, value }, &[])
        },
        "ATOMIC WRITE",
    );
    assert_flags(|pair| of(SEND, pair, 5), "SEND Only");
    assert_flags(|pair| of(SEND, pair, 600), "SEND First");
    // The recorded write was not solicited, and rxe drops the flag of a write without a completion at the peer.
    assert_flags(
        |pair| {
            let remote = remote(pair);
            let mut write = of(SendOp::Write { remote, imm: None }, pair, 5);
            write.solicited = true;
            write
        },
        "RDMA WRITE Only",
    );
}

#[test]
fn acknowledgement_alone_completes_no_read() {
    let mut pair = Pair::connected(QpKind::Rc);
    let remote = Remote {
        addr: BASE,
        rkey: pair.hosts[1].key,
    };
    let sge = pair.hosts[0].sge(64, 600);
    pair.post(0, request(1, SendOp::Read(remote), &[sge]));
    let read = pair.transmit(0).unwrap();
    let answer = recorded()["IPv4, RC Acknowledge"].clone();
    let mut answer = Frame::decode(&answer).unwrap();
    let [a, b] = &pair.hosts;
    answer.ip = softnic::wire::IpHeader::new(b.addr, a.addr).unwrap();
    answer.bth.dest_qp = a.qp.0;
    answer.bth.psn = Frame::decode(&read).unwrap().bth.psn;
    let mut bytes = Vec::new();
    answer.encode(&mut bytes).unwrap();
    pair.deliver(0, &bytes);
    assert_eq!(pair.hosts[0].poll(), []);
    pair.run();
    assert_eq!(pair.hosts[0].poll()[0].status, Status::Success);
}

#[test]
fn copy_of_a_flush_beyond_the_kept_replies_is_answered() {
    let mut pair = Pair::connected(QpKind::Rc);
    let remote = Remote {
        addr: BASE,
        rkey: pair.hosts[1].key,
    };
    let flush = SendOp::Flush {
        remote,
        len: 8,
        placement: Placement::GLOBAL,
        whole_region: false,
    };
    pair.post(0, request(1, flush, &[]));
    let first = pair.transmit(0).unwrap();
    let psn = attributes().sq_psn;
    // More flushes than agreed, as rxe may have in flight: it does not count them.
    let depth = u32::from(attributes().max_dest_rd_atomic);
    for number in 0..=depth {
        let mut frame = Frame::decode(&first).unwrap();
        frame.bth.psn = psn + number;
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).unwrap();
        pair.deliver(1, &bytes);
    }
    assert_eq!(answers(&mut pair).len(), depth as usize + 1);
    pair.deliver(1, &first);
    assert_eq!(answers(&mut pair), [(ONLY, psn)]);
    assert_eq!(pair.state(1), State::Rts);
}

#[test]
fn recorded_rnr_nak_is_a_syndrome_of_its_own() {
    let bytes = &recorded()["IPv4, RC Acknowledge, RNR NAK"];
    let aeth: Option<Aeth> = Frame::decode(bytes).unwrap().extensions.aeth;
    assert_eq!(aeth.map(|aeth| aeth.syndrome), Some(Syndrome::RnrNak(12)));
}
