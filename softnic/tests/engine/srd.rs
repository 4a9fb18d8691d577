//! Reliable datagrams: each executed once, with bounded state for made-up senders.

use std::net::IpAddr;

use softnic::{
    engine::{Destination, Path, QpKind, QpNum, Remote, SendOp, SendRequest, Status},
    wire::{
        Bth, Deth, Extensions, Frame, Immediate, IpHeader, Nak, Opcode, Operation, Position, Reth,
        Syndrome, Transport,
    },
};

use crate::{
    pair::{Pair, SEND, attributes, request},
    shadow::BASE,
};

/// Packets in flight from a queue pair at most.
const WINDOW: u32 = 8192;

const SEND_ONLY: Operation = Operation::Send(Position::Only, Immediate::None);
const WRITE_ONLY: Operation = Operation::Write(Position::Only, Immediate::None);

fn to_peer(pair: &Pair, wr_id: u64, op: SendOp, len: u32) -> SendRequest {
    let mut wr = request(wr_id, op, &[pair.hosts[0].sge(0, len)]);
    let peer = &pair.hosts[1];
    wr.destination = Some(Destination {
        path: Path::new(pair.hosts[0].addr, peer.addr),
        qp: peer.qp.0,
        key: attributes().qkey.into(),
    });
    wr
}

/// A packet without bytes to the second host, from a made-up queue pair.
fn forged(
    pair: &Pair,
    (from, src_qp): (IpAddr, u32),
    to: QpNum,
    operation: Operation,
) -> Frame<'static> {
    let opcode = Opcode::new(Transport::Srd, operation).unwrap();
    let writes = matches!(operation, Operation::Write(..));
    Frame {
        ip: IpHeader::new(from, pair.hosts[1].addr).unwrap(),
        src_port: 0xc000,
        udp_checksum: 0,
        bth: Bth::new(opcode, to.0, 9),
        extensions: Extensions {
            deth: Some(Deth {
                qkey: attributes().qkey,
                src_qp,
            }),
            reth: writes.then_some(Reth {
                addr: 0,
                rkey: 0,
                len: 0,
            }),
            ..Extensions::default()
        },
        payload: &[],
    }
}

fn deliver(pair: &mut Pair, frame: &Frame<'_>) {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes).unwrap();
    pair.deliver(1, &bytes);
}

/// The syndromes of all answers of the second host.
fn answers(pair: &mut Pair) -> Vec<Syndrome> {
    let frames = std::iter::from_fn(|| pair.transmit(1));
    let syndromes = frames.filter_map(|frame| {
        let frame = Frame::decode(&frame).unwrap();
        frame.extensions.aeth.map(|aeth| aeth.syndrome)
    });
    syndromes.collect()
}

/// Sends a message, and checks that it arrives.
fn assert_arrives(pair: &mut Pair) {
    let sge = pair.hosts[1].sge(0, 64);
    pair.post_recv(1, 5, &[sge]);
    pair.post(0, to_peer(pair, 1, SEND, 4));
    pair.run();
    let received = pair.hosts[1].poll();
    assert_eq!(received.len(), 1, "the message arrives");
    let received = received[0];
    assert_eq!((received.wr_id, received.status), (5, Status::Success));
}

#[test]
fn answers_of_a_flood_are_bounded() {
    let mut pair = Pair::connected(QpKind::Srd);
    let (from, qp) = (pair.hosts[0].addr, pair.hosts[1].qp);
    for operation in [WRITE_ONLY, Operation::ReadRequest] {
        let mut frame = forged(&pair, (from, 17), qp, operation);
        frame.extensions.reth = Some(Reth {
            addr: 0,
            rkey: 0,
            len: 0,
        });
        for psn in 0..5000 {
            frame.bth.psn = psn;
            deliver(&mut pair, &frame);
        }
    }
    let count = answers(&mut pair).len();
    assert!((1..=1024).contains(&count), "{count}");
    assert_arrives(&mut pair);
}

#[test]
fn refusals_of_a_flood_are_bounded() {
    let mut pair = Pair::connected(QpKind::Srd);
    let (from, QpNum(qp)) = (pair.hosts[0].addr, pair.hosts[1].qp);
    let frame = forged(&pair, (from, 17), QpNum(qp ^ 1), SEND_ONLY);
    for _ in 0..5000 {
        deliver(&mut pair, &frame);
    }
    let refusals = answers(&mut pair);
    let refused = Syndrome::Nak(Nak::RemoteOperation);
    assert!(refusals.iter().all(|syndrome| *syndrome == refused));
    assert!((1..=64).contains(&refusals.len()), "{}", refusals.len());
}

#[test]
fn packets_without_an_effect_occupy_nothing() {
    let mut pair = Pair::connected(QpKind::Srd);
    let (from, qp) = (pair.hosts[0].addr, pair.hosts[1].qp);
    for number in 0..5000 {
        // Without a receive, nothing is executed.
        let frame = forged(&pair, (from, 0x1_0000 + number), qp, SEND_ONLY);
        deliver(&mut pair, &frame);
        answers(&mut pair);
    }
    assert_arrives(&mut pair);
}

#[test]
fn forged_numbers_of_an_address_exclude_no_other_address() {
    let mut pair = Pair::connected(QpKind::Srd);
    let qp = pair.hosts[1].qp;
    let mut executed = 0;
    for number in 0..5000 {
        let from = "10.9.0.77".parse().unwrap();
        let frame = forged(&pair, (from, number), qp, WRITE_ONLY);
        deliver(&mut pair, &frame);
        executed += answers(&mut pair).len();
    }
    assert!((1..5000).contains(&executed), "{executed}");
    assert_arrives(&mut pair);
}

#[test]
fn late_packet_without_a_record_is_not_answered() {
    let mut pair = Pair::connected(QpKind::Srd);
    let (from, qp) = (pair.hosts[0].addr, pair.hosts[1].qp);
    let mut frame = forged(&pair, (from, 17), qp, WRITE_ONLY);
    let newest = 3 * WINDOW;
    for (psn, count) in [
        (newest, 1),
        (newest, 1),
        (newest + 1 - WINDOW, 1),
        (newest - WINDOW, 0),
        (newest, 1),
    ] {
        frame.bth.psn = psn;
        deliver(&mut pair, &frame);
        assert_eq!(answers(&mut pair).len(), count, "{psn}");
    }
}

#[test]
fn failed_receive_is_consumed_once() {
    let mut pair = Pair::connected(QpKind::Srd);
    for (wr_id, len) in [(1, 3), (2, 64)] {
        let sge = pair.hosts[1].sge(0, len);
        pair.post_recv(1, wr_id, &[sge]);
    }
    pair.post(0, to_peer(&pair, 7, SEND, 4));
    let message = pair.transmit(0).unwrap();
    pair.deliver(1, &message);
    let lost = pair.transmit(1);
    assert!(lost.is_some(), "the first answer is lost");
    pair.run();
    let failed: Vec<_> = pair.hosts[1].poll();
    let failed: Vec<_> = failed.iter().map(|it| (it.wr_id, it.status)).collect();
    assert_eq!(failed, [(1, Status::LocalLength)]);
    let sent = pair.hosts[0].poll();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].status, Status::RemoteInvalidRequest);
}

#[test]
fn immediate_data_come_with_the_length_of_the_whole_write() {
    let mut pair = Pair::connected(QpKind::Srd);
    pair.post_recv(1, 5, &[]);
    let key = pair.hosts[1].key;
    let remote = Remote {
        addr: BASE + 16384,
        rkey: key,
    };
    let bytes: Vec<u8> = (0..2500_u32).flat_map(u32::to_le_bytes).collect();
    pair.hosts[0]
        .memory
        .at(BASE, 10_000)
        .copy_from_slice(&bytes);
    let imm = Some(9);
    pair.post(0, to_peer(&pair, 7, SendOp::Write { remote, imm }, 10_000));
    pair.run();
    let received = pair.hosts[1].poll()[0];
    assert_eq!((received.imm, received.byte_len), (imm, 10_000));
    assert_eq!(pair.hosts[1].memory.at(BASE + 16384, 10_000), &bytes[..]);
    assert_eq!(pair.hosts[0].poll()[0].status, Status::Success);
}

#[test]
fn immediate_data_of_a_longer_write_than_the_region_are_refused() {
    let mut pair = Pair::connected(QpKind::Srd);
    pair.post_recv(1, 5, &[]);
    let (from, qp) = (pair.hosts[0].addr, pair.hosts[1].qp);
    let operation = Operation::Write(Position::Only, Immediate::Data);
    let mut frame = forged(&pair, (from, 17), qp, operation);
    frame.extensions.imm = Some(9);
    for (addr, len, nak) in [
        (BASE - 8, 16, Nak::RemoteAccess),
        (BASE, (1 << 20) + 1, Nak::InvalidRequest),
    ] {
        let rkey = pair.hosts[1].key;
        frame.extensions.reth = Some(Reth { addr, rkey, len });
        deliver(&mut pair, &frame);
        assert_eq!(answers(&mut pair), [Syndrome::Nak(nak)]);
    }
    assert!(pair.hosts[1].poll().is_empty());
}
