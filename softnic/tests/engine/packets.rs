//! Packets of a connection: their order, their lengths, and answers that do not match the request.

use std::time::Duration;

use softnic::{
    engine::{CompletionOp, Event, QpAttributes, QpKind, Remote, SendOp, State, Status},
    wire::{Aeth, Bth, Extensions, Frame, Immediate, IpHeader, Nak, Opcode, Operation, Position},
    wire::{Reth, Syndrome, Transport},
};

use crate::{
    pair::{Pair, SEND, attributes, init, request},
    shadow::BASE,
};

const FIRST: Operation = Operation::Send(Position::First, Immediate::None);
const MIDDLE: Operation = Operation::Send(Position::Middle, Immediate::None);
const LAST: Operation = Operation::Send(Position::Last, Immediate::None);
const ONLY: Operation = Operation::Send(Position::Only, Immediate::None);
const WRITE_FIRST: Operation = Operation::Write(Position::First, Immediate::None);
const WRITE_LAST: Operation = Operation::Write(Position::Last, Immediate::None);
const WRITE_ONLY: Operation = Operation::Write(Position::Only, Immediate::None);

/// A packet of the first host to the second: operation, number after the expected one, and length of the payload.
type Packet = (Operation, u32, usize);

/// Delivers packets to the second host, with a write or read of `len` bytes of its memory.
fn deliver(pair: &mut Pair, transport: Transport, packets: &[Packet], len: u32) {
    for &(operation, number, size) in packets {
        let [from, to] = &pair.hosts;
        let reth = Reth {
            addr: BASE,
            rkey: to.key,
            len,
        };
        let has_reth = match operation {
            Operation::Write(position, _) => position.begins(),
            operation => operation == Operation::ReadRequest,
        };
        let psn = attributes().sq_psn + number;
        let opcode = Opcode::new(transport, operation).unwrap();
        let frame = Frame {
            ip: IpHeader::new(from.addr, to.addr).unwrap(),
            src_port: 0xc000,
            udp_checksum: 0,
            bth: Bth::new(opcode, to.qp.0, psn),
            extensions: Extensions {
                reth: has_reth.then_some(reth),
                ..Extensions::default()
            },
            payload: &vec![1; size],
        };
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).unwrap();
        pair.deliver(1, &bytes);
    }
}

/// Syndromes of the second host's answers.
fn syndromes(pair: &mut Pair) -> Vec<Syndrome> {
    let frames = std::iter::from_fn(|| pair.transmit(1));
    let aeth = |bytes: Vec<u8>| Frame::decode(&bytes).unwrap().extensions.aeth;
    frames.filter_map(aeth).map(|aeth| aeth.syndrome).collect()
}

/// Packets of a reliable connection are an invalid request.
fn assert_invalid(packets: &[Packet], len: u32) {
    let mut pair = Pair::connected(QpKind::Rc);
    for id in 0..2 {
        let sge = pair.hosts[1].sge(8192, 1024);
        pair.post_recv(1, id, &[sge]);
    }
    let (last, before) = packets.split_last().unwrap();
    deliver(&mut pair, Transport::Rc, before, len);
    assert_eq!(pair.state(1), State::Rts, "{packets:?}");
    deliver(&mut pair, Transport::Rc, &[*last], len);
    let invalid = Syndrome::Nak(Nak::InvalidRequest);
    assert_eq!(syndromes(&mut pair), [invalid], "{packets:?}");
    let events = pair.hosts[1].events();
    assert!(events.contains(&Event::QpRequestError(pair.hosts[1].qp)));
    assert_eq!(pair.state(1), State::Err);
}

#[test]
fn packets_out_of_their_place_are_invalid() {
    for packet in [MIDDLE, LAST, WRITE_LAST] {
        assert_invalid(&[(packet, 0, 256)], 512);
    }
    for packet in [FIRST, ONLY, WRITE_ONLY, WRITE_LAST, WRITE_FIRST] {
        assert_invalid(&[(FIRST, 0, 256), (packet, 1, 256)], 512);
    }
    assert_invalid(&[(FIRST, 0, 256), (Operation::ReadRequest, 1, 0)], 8);
    assert_invalid(&[(WRITE_FIRST, 0, 256), (LAST, 1, 256)], 512);
}

#[test]
fn packets_with_the_length_of_another_place_are_invalid() {
    assert_invalid(&[(FIRST, 0, 255)], 0);
    assert_invalid(&[(FIRST, 0, 256), (MIDDLE, 1, 252)], 0);
    assert_invalid(&[(FIRST, 0, 256), (LAST, 1, 0)], 0);
    assert_invalid(&[(ONLY, 0, 257)], 0);
    assert_invalid(&[(Operation::ReadRequest, 0, 4)], 8);
}

#[test]
fn write_with_another_length_than_its_header_is_invalid() {
    assert_invalid(&[(WRITE_ONLY, 0, 100)], 101);
    assert_invalid(&[(WRITE_ONLY, 0, 100)], 99);
    assert_invalid(&[(WRITE_FIRST, 0, 256), (WRITE_LAST, 1, 256)], 500);
    assert_invalid(&[(WRITE_FIRST, 0, 256), (WRITE_LAST, 1, 100)], 500);
}

#[test]
fn empty_reads_and_writes_need_no_key() {
    let mut pair = Pair::connected(QpKind::Rc);
    let remote = Remote { addr: 0, rkey: 0 };
    let write = SendOp::Write { remote, imm: None };
    pair.post(0, request(1, write, &[]));
    pair.post(0, request(2, SendOp::Read(remote), &[]));
    pair.run();
    let completions = pair.hosts[0].poll();
    assert!(completions.iter().all(|wc| wc.status == Status::Success));
    assert_eq!(completions.len(), 2);
}

#[test]
fn write_with_immediate_takes_a_receive_but_not_its_memory() {
    for kind in [QpKind::Rc, QpKind::Uc] {
        let mut pair = Pair::connected(kind);
        pair.post_recv(1, 5, &[]);
        let remote = Remote {
            addr: BASE,
            rkey: pair.hosts[1].key,
        };
        let imm = Some(0x0102_0304);
        let sge = pair.hosts[0].sge(64, 300);
        pair.hosts[0].memory.at(BASE + 64, 300).fill(3);
        pair.post(0, request(1, SendOp::Write { remote, imm }, &[sge]));
        pair.run();
        let done = pair.hosts[1].poll().pop().unwrap();
        assert_eq!((done.wr_id, done.op), (5, CompletionOp::ReceiveWrite));
        assert_eq!((done.byte_len, done.imm), (300, imm));
        assert_eq!(pair.hosts[1].memory.at(BASE, 300), [3; 300]);
    }
}

#[test]
fn receive_without_its_memory_is_a_failure_of_the_responder() {
    let mut pair = Pair::connected(QpKind::Rc);
    let sge = pair.hosts[1].sge(0, 64);
    pair.post_recv(1, 5, &[sge]);
    let key = pair.hosts[1].key;
    pair.hosts[1].engine.deregister(key).unwrap();
    let sge = pair.hosts[0].sge(0, 8);
    pair.post(0, request(1, SEND, &[sge]));
    pair.run();
    let sent = pair.hosts[0].poll();
    assert_eq!(sent[0].status, Status::RemoteOperation);
    let received = pair.hosts[1].poll();
    assert_eq!(received[0].status, Status::LocalProtection);
}

#[test]
fn fenced_request_waits_for_earlier_reads() {
    let mut pair = Pair::connected(QpKind::Rc);
    let remote = Remote {
        addr: BASE,
        rkey: pair.hosts[1].key,
    };
    let sge = pair.hosts[0].sge(64, 8);
    pair.post(0, request(1, SendOp::Read(remote), &[sge]));
    let mut fenced = request(2, SendOp::Write { remote, imm: None }, &[sge]);
    fenced.fence = true;
    pair.post(0, fenced);
    let read = pair.transmit(0).unwrap();
    assert_eq!(pair.transmit(0), None, "the write waits");
    pair.deliver(1, &read);
    let response = pair.transmit(1).unwrap();
    pair.deliver(0, &response);
    let write = pair.transmit(0).unwrap();
    let (_, operation) = Frame::decode(&write).unwrap().bth.opcode.parse().unwrap();
    assert_eq!(operation, WRITE_ONLY);
}

/// The first host's outcome of a read whose response is changed.
fn outcome_of_read(change: impl Fn(&mut Frame<'_>)) -> Vec<Status> {
    let mut pair = Pair::connected(QpKind::Rc);
    let remote = Remote {
        addr: BASE,
        rkey: pair.hosts[1].key,
    };
    let sge = pair.hosts[0].sge(64, 300);
    pair.post(0, request(1, SendOp::Read(remote), &[sge]));
    let read = pair.transmit(0).unwrap();
    pair.deliver(1, &read);
    while let Some(response) = pair.transmit(1) {
        let mut frame = Frame::decode(&response).unwrap();
        change(&mut frame);
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).unwrap();
        pair.deliver(0, &bytes);
    }
    pair.hosts[0].poll().iter().map(|wc| wc.status).collect()
}

#[test]
fn response_that_does_not_match_its_read_fails_the_read() {
    assert_eq!(outcome_of_read(|_| {}), [Status::Success]);
    let short = outcome_of_read(|frame| frame.payload = &frame.payload[1..]);
    assert_eq!(short, [Status::BadResponse]);
    let ends_early = outcome_of_read(|frame| {
        let only = Operation::ReadResponse(Position::Only);
        frame.bth.opcode = Opcode::new(Transport::Rc, only).unwrap();
        frame.extensions.aeth = Some(Aeth::ack(0));
    });
    assert_eq!(ends_early, [Status::BadResponse]);
    let atomic = outcome_of_read(|frame| {
        frame.bth.opcode = Opcode::RC_ATOMIC_ACKNOWLEDGE;
        frame.extensions.aeth = Some(Aeth::ack(0));
        frame.extensions.atomic_ack = Some(7);
        frame.payload = &[];
    });
    assert_eq!(atomic, [Status::BadResponse]);
}

#[test]
fn answers_outside_of_the_requests_in_flight_are_dropped() {
    let mut pair = Pair::connected(QpKind::Rc);
    let sge = pair.hosts[0].sge(0, 8);
    pair.post_recv(1, 5, &[sge]);
    pair.post(0, request(1, SEND, &[sge]));
    let send = pair.transmit(0).unwrap();
    pair.deliver(1, &send);
    let answer = pair.transmit(1).unwrap();
    let frame = Frame::decode(&answer).unwrap();
    for distance in [1, 2, 0xff_ffff] {
        let mut forged = frame;
        forged.bth.psn = frame.bth.psn.wrapping_add(distance) & 0xff_ffff;
        for syndrome in [Aeth::ack(1).syndrome, Syndrome::Nak(Nak::RemoteAccess)] {
            forged.extensions.aeth = Some(Aeth { syndrome, msn: 1 });
            let mut bytes = Vec::new();
            forged.encode(&mut bytes).unwrap();
            pair.deliver(0, &bytes);
            assert_eq!(pair.hosts[0].poll(), []);
        }
    }
    pair.deliver(0, &answer);
    assert_eq!(pair.hosts[0].poll()[0].status, Status::Success);
}

#[test]
fn acknowledgement_timer_of_zero_never_expires() {
    let mut pair = Pair::new(QpKind::Rc, false);
    pair.connect(&QpAttributes {
        timeout: 0,
        ..attributes()
    });
    pair.is_cut = true;
    let sge = pair.hosts[0].sge(0, 8);
    pair.post(0, request(1, SEND, &[sge]));
    pair.run();
    assert_eq!((pair.hosts[0].poll(), pair.now), (vec![], Duration::ZERO));
}

#[test]
fn unreliable_writes_without_the_right_are_dropped() {
    let mut pair = Pair::new(QpKind::Uc, false);
    pair.connect(&QpAttributes {
        access: softnic::engine::Access::default(),
        ..attributes()
    });
    deliver(&mut pair, Transport::Uc, &[(WRITE_ONLY, 0, 8)], 8);
    assert_eq!(pair.hosts[1].memory.at(BASE, 8), [0; 8]);
    assert_eq!((pair.transmit(1), pair.state(1)), (None, State::Rts));
}

#[test]
fn unreliable_message_longer_than_its_receive_is_dropped() {
    let mut pair = Pair::connected(QpKind::Uc);
    let sge = pair.hosts[1].sge(0, 300);
    pair.post_recv(1, 5, &[sge]);
    let packets = [(FIRST, 0, 256), (LAST, 1, 256), (ONLY, 2, 8)];
    deliver(&mut pair, Transport::Uc, &packets, 0);
    let completions = pair.hosts[1].poll();
    let completions: Vec<_> = completions.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(completions, [(5, Status::Success)], "of the second message");
    assert_eq!((pair.transmit(1), pair.state(1)), (None, State::Rts));
}

#[test]
fn queue_pair_that_cannot_receive_drops_packets() {
    let mut pair = Pair::new(QpKind::Rc, false);
    deliver(&mut pair, Transport::Rc, &[(ONLY, 0, 8)], 0);
    assert_eq!(syndromes(&mut pair), []);
}

#[test]
fn packets_in_flight_are_bounded_until_one_is_acknowledged() {
    // Less than the interval of acknowledgements would wait for ever.
    for (maximum, expected) in [(None, 256), (Some(100), 100), (Some(1), 32)] {
        let mut pair = Pair::new(QpKind::Rc, false);
        let host = &mut pair.hosts[0];
        if let Some(maximum) = maximum {
            host.engine.set_max_in_flight(maximum);
        }
        let init = init(QpKind::Rc, host.pd, host.cq, None);
        host.qp = host.engine.create_qp(init).unwrap();
        pair.connect(&attributes());
        let len = 300 * attributes().mtu;
        let write = SendOp::Write {
            remote: Remote {
                addr: BASE,
                rkey: pair.hosts[1].key,
            },
            imm: None,
        };
        let sge = pair.hosts[0].sge(0, len);
        pair.post(0, request(1, write, &[sge]));
        let frames: Vec<_> = std::iter::from_fn(|| pair.transmit(0)).collect();
        assert_eq!(frames.len(), expected);
        for frame in &frames {
            pair.deliver(1, frame);
        }
        let acknowledgement = pair.transmit(1).unwrap();
        pair.deliver(0, &acknowledgement);
        assert!(pair.transmit(0).is_some());
    }
}
