//! A hostile peer: no frame reaches memory outside of a key's rights, or makes an engine panic.
//!
//! The shadow memory panics at an access outside of a registration. Contents prove the rest: pages without a right for
//! peers keep their bytes, and these bytes never leave the host.

use fastrand::Rng;
use proptest::prelude::*;
use softnic::{
    engine::{Access, Placement, QpAttributes, QpKind, QpNum, Remote, SendOp, State},
    wire::{
        Aeth, AtomicEth, Bth, Dceth, Deth, Extensions, Feth, Frame, Immediate, IpHeader, Nak,
        Opcode, Operation, Position, Reth, Syndrome, Transport,
    },
};

use crate::{
    pair::{DCT_KEY, MEMORY, Pair, SEND, attributes, request},
    shadow::BASE,
};

/// Memory whose bytes must not leave the host: the last page, outside of all regions, and two regions.
const SECRET: u8 = 0xe7;

/// Pages, at the end of memory.
const PAGE: u64 = 1024;

/// A connected pair whose second host is attacked, and the keys of the victim's pages by right.
struct Victim {
    pair: Pair,
    keys: Vec<u32>,
    unregistered: u64,
    private: u64,
    write_only: u64,
    read_only: u64,
    /// PSN expected next by the victim, as learned from its answers.
    expected: u32,
    /// Number of the connection to a target, another one after each refusal.
    session: u32,
}

/// Posts a request of each kind at the victim, with the memory at `offset`.
fn post_requests(pair: &mut Pair, offset: u64) {
    let sge = pair.hosts[1].sge(offset, 700);
    let remote = Remote {
        addr: BASE,
        rkey: 1,
    };
    pair.post(1, request(9, SendOp::Read(remote), &[sge]));
    pair.post(1, request(10, SEND, &[sge]));
    let sge = pair.hosts[1].sge(offset, 8);
    pair.post(1, request(11, SendOp::FetchAdd { remote, add: 1 }, &[sge]));
    let value = [1; 8];
    pair.post(1, request(12, SendOp::AtomicWrite { remote, value }, &[]));
    let op = SendOp::Flush {
        remote,
        len: 8,
        placement: Placement::GLOBAL,
        whole_region: false,
    };
    pair.post(1, request(13, op, &[]));
}

impl Victim {
    fn new(kind: QpKind) -> Self {
        let mut pair = match kind {
            QpKind::XrcRecv => Pair::xrc(),
            QpKind::Dct => Pair::dynamic(),
            _ => Pair::new(kind, false),
        };
        // The region of the whole memory is for receives of the other tests.
        let everything = pair.hosts[1].key;
        pair.hosts[1].engine.deregister(everything).unwrap();
        pair.hosts[1].memory.close(BASE);
        let end = BASE + MEMORY as u64;
        let [unregistered, private, write_only, read_only, receives] =
            [1, 2, 3, 4, 5].map(|page| end - page * PAGE);
        for page in [unregistered, private, write_only] {
            pair.hosts[1].memory.at(page, 1024).fill(SECRET);
        }
        let host = &mut pair.hosts[1];
        let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let keys = vec![
            host.register(private, PAGE, Access::LOCAL_WRITE),
            host.register(write_only, PAGE, Access::LOCAL_WRITE | Access::REMOTE_WRITE),
            host.register(read_only, PAGE, Access::REMOTE_READ),
            host.register(BASE, 4096, Access::LOCAL_WRITE | all),
        ];
        host.key = host.register(receives, PAGE, Access::LOCAL_WRITE);
        pair.connect(&attributes());
        let offset = receives - BASE;
        for id in 0..4 {
            let sge = pair.hosts[1].sge(offset, 700);
            pair.post_recv(1, id, &[sge]);
        }
        // Requests in flight, so that forged answers match a request.
        if kind == QpKind::Rc {
            post_requests(&mut pair, offset);
        }
        Self {
            pair,
            keys,
            unregistered,
            private,
            write_only,
            read_only,
            expected: attributes().sq_psn,
            session: 1,
        }
    }

    /// Learns the PSN expected by the victim from an answer.
    fn record_numbers(&mut self, answer: &Frame<'_>) {
        let connected = [Transport::Rc, Transport::Xrc, Transport::Dc];
        let parsed = answer.bth.opcode.parse();
        let Some((_, operation)) = parsed.filter(|(of, _)| connected.contains(of)) else {
            return;
        };
        let is_ack = answer
            .extensions
            .aeth
            .is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::Ack(_)));
        let is_refused = answer.extensions.aeth.is_some_and(
            |aeth| matches!(aeth.syndrome, Syndrome::Nak(nak) if nak != Nak::SequenceError),
        );
        if is_refused && parsed.is_some_and(|(of, _)| of == Transport::Dc) {
            self.session += 1;
            self.expected = attributes().sq_psn;
            return;
        }
        self.expected = match operation {
            Operation::Acknowledge if !is_ack => answer.bth.psn,
            Operation::Acknowledge | Operation::AtomicAcknowledge | Operation::ReadResponse(_) => {
                (answer.bth.psn + 1) & 0xff_ffff
            }
            _ => return,
        };
    }

    /// Delivers a frame, and checks all memory that is closed to the peer.
    fn attack(&mut self, frame: &[u8]) {
        self.pair.deliver(1, frame);
        while let Some(answer) = self.pair.transmit(1) {
            let answer = Frame::decode(&answer).unwrap();
            assert!(!answer.payload.contains(&SECRET), "{answer:?}");
            self.record_numbers(&answer);
        }
        for page in [self.unregistered, self.private] {
            let bytes = self.pair.hosts[1].memory.at(page, 1024);
            assert!(
                bytes.iter().all(|byte| *byte == SECRET),
                "{page:#x} was written"
            );
        }
        let bytes = self.pair.hosts[1].memory.at(self.read_only, 1024);
        assert!(
            bytes.iter().all(|byte| *byte == 0),
            "written without the right"
        );
    }

    fn reth(&self, rng: &mut Rng) -> Reth {
        let pages = [
            self.unregistered,
            self.private,
            self.write_only,
            self.read_only,
            BASE,
        ];
        let near = rng
            .choice(pages)
            .unwrap_or(BASE)
            .wrapping_add(rng.u64(..2048))
            - 1024;
        let key = rng.choice(&self.keys).copied().unwrap_or(0);
        Reth {
            addr: if rng.u8(..8) == 0 { rng.u64(..) } else { near },
            rkey: if rng.u8(..8) == 0 { rng.u32(..) } else { key },
            len: if rng.u8(..8) == 0 {
                rng.u32(..)
            } else {
                rng.u32(..2048)
            },
        }
    }

    /// A well-formed frame to the queue pair with arbitrary fields.
    fn frame(&self, kind: QpKind, rng: &mut Rng) -> Vec<u8> {
        let operation = operation(rng);
        let transport = match kind {
            QpKind::Rc => Transport::Rc,
            QpKind::Uc => Transport::Uc,
            QpKind::Ud => Transport::Ud,
            QpKind::Srd => Transport::Srd,
            QpKind::XrcSend | QpKind::XrcRecv => Transport::Xrc,
            QpKind::Dci | QpKind::Dct => Transport::Dc,
        };
        let only = single(kind);
        let opcode = Opcode::new(transport, operation)
            .or(Opcode::new(transport, only))
            .unwrap();
        let (_, operation) = opcode.parse().unwrap();
        let victim = &self.pair.hosts[1];
        let is_answer = matches!(
            operation,
            Operation::Acknowledge | Operation::AtomicAcknowledge | Operation::ReadResponse(_)
        );
        let psn = match rng.u8(..8) {
            0 => rng.u32(..0x100_0000),
            // Each packet has a number of its own.
            2 if kind == QpKind::Srd => rng.u32(..8),
            _ if kind == QpKind::Srd => rng.u32(..4096),
            1 => self.expected.wrapping_sub(rng.u32(..4)) & 0xff_ffff,
            // A PSN of a request in flight.
            _ if is_answer => attributes().rq_psn.wrapping_add(rng.u32(..10)) & 0xff_ffff,
            _ => self.expected,
        };
        let extensions = self.extensions(transport, operation, rng);
        let size = match extensions.reth {
            Some(reth) if reth.len <= 256 && rng.u8(..4) > 0 => reth.len as usize,
            _ => [0, 1, 8, 100, 255, 256, 257, 1024][rng.usize(..8)],
        };
        let requests_data = matches!(
            operation,
            Operation::ReadRequest
                | Operation::CompareSwap
                | Operation::FetchAdd
                | Operation::Flush
        );
        let size = if requests_data && rng.u8(..8) > 0 {
            0
        } else {
            size
        };
        let payload: Vec<u8> = (0..size).map(|_| rng.u8(..0x80)).collect();
        let frame = Frame {
            ip: IpHeader::new(self.pair.hosts[0].addr, victim.addr).unwrap(),
            src_port: 0xc000,
            udp_checksum: 0,
            bth: Bth {
                ack_request: rng.u8(..8) > 0,
                solicited: rng.bool(),
                ..Bth::new(opcode, victim.qp.0, psn)
            },
            extensions,
            payload: &payload,
        };
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).unwrap();
        bytes
    }

    fn extensions(&self, transport: Transport, operation: Operation, rng: &mut Rng) -> Extensions {
        let syndromes = [
            Syndrome::Ack(31),
            Syndrome::RnrNak(1),
            Syndrome::Nak(Nak::SequenceError),
            Syndrome::Nak(Nak::InvalidRequest),
            Syndrome::Reserved(0xff),
        ];
        let aeth = Aeth {
            syndrome: syndromes[rng.usize(..5)],
            msn: rng.u32(..0x100_0000),
        };
        let reth = self.reth(rng);
        let mut extensions = memory(operation, reth, rng);
        match operation {
            Operation::ReadResponse(position) => {
                extensions.aeth = (position != Position::Middle).then_some(aeth);
            }
            Operation::Acknowledge => extensions.aeth = Some(aeth),
            Operation::AtomicAcknowledge => {
                extensions.aeth = Some(aeth);
                extensions.atomic_ack = Some(7);
            }
            _ => {}
        }
        if let Operation::Send(_, immediate) | Operation::Write(_, immediate) = operation {
            extensions.imm = (immediate == Immediate::Data).then_some(7);
            let invalidates = immediate == Immediate::Invalidate;
            extensions.invalidate = invalidates.then_some(reth.rkey);
        }
        let is_answer =
            extensions.aeth.is_some() || operation == Operation::ReadResponse(Position::Middle);
        if transport == Transport::Xrc && !is_answer {
            let wrong = rng.u32(..8) == 0;
            extensions.xrc_srq = Some(self.pair.xrc_number() + u32::from(wrong));
        }
        if matches!(transport, Transport::Ud | Transport::Srd) {
            let qkey = attributes().qkey + u32::from(rng.u8(..8) == 0);
            extensions.deth = Some(Deth { qkey, src_qp: 17 });
        }
        if transport == Transport::Dc && !is_answer {
            extensions.dc = Some(Dceth {
                key: DCT_KEY + u64::from(rng.u8(..8) == 0),
                session: self.session,
                first: attributes().sq_psn,
                src_qp: 17,
            });
        }
        extensions
    }
}

/// Headers of a request for memory; none for other operations.
fn memory(operation: Operation, reth: Reth, rng: &mut Rng) -> Extensions {
    let mut extensions = Extensions::default();
    let aligned = Reth {
        addr: reth.addr & !7,
        ..reth
    };
    match operation {
        Operation::Write(position, _) => extensions.reth = position.begins().then_some(reth),
        Operation::ReadRequest => extensions.reth = Some(reth),
        Operation::Flush => {
            extensions.reth = Some(reth);
            extensions.feth = Some(Feth {
                placement: rng.u8(..16),
                selectivity: rng.u8(..4),
            });
        }
        Operation::AtomicWrite => {
            let Reth { addr, .. } = if rng.u8(..8) > 0 { aligned } else { reth };
            let len = if rng.u8(..8) > 0 { 8 } else { reth.len };
            extensions.reth = Some(Reth { addr, len, ..reth });
        }
        Operation::CompareSwap | Operation::FetchAdd => {
            let Reth { addr, rkey, .. } = if rng.bool() { aligned } else { reth };
            extensions.atomic = Some(AtomicEth {
                addr,
                rkey,
                swap_add: 1,
                compare: 0,
            });
        }
        _ => {}
    }
    extensions
}

/// An operation of one packet that the transport has.
fn single(kind: QpKind) -> Operation {
    match kind {
        QpKind::Srd => Operation::Write(Position::Only, Immediate::None),
        _ => Operation::Send(Position::Only, Immediate::None),
    }
}

fn operation(rng: &mut Rng) -> Operation {
    use Position::{First, Last, Middle, Only};
    let position = [First, Middle, Last, Only][rng.usize(..4)];
    let ends = position.ends();
    let immediate = match rng.u8(..4) {
        0 if ends => Immediate::Data,
        1 if ends => Immediate::Invalidate,
        _ => Immediate::None,
    };
    let plain = if immediate == Immediate::Data {
        immediate
    } else {
        Immediate::None
    };
    match rng.u8(..11) {
        0 => Operation::Send(position, immediate),
        1 | 2 => Operation::Write(position, plain),
        3 => Operation::ReadRequest,
        4 => Operation::ReadResponse(position),
        5 => Operation::Acknowledge,
        6 => Operation::AtomicAcknowledge,
        7 => Operation::CompareSwap,
        8 => Operation::Flush,
        9 => Operation::AtomicWrite,
        _ => Operation::FetchAdd,
    }
}

/// Replaces a victim whose queue pair has failed, so that later frames meet a live one.
fn revive(victim: &mut Victim, kind: QpKind) {
    if victim.pair.state(1) == State::Err {
        *victim = Victim::new(kind);
    }
}

fn attack_by_frames(kind: QpKind, seeds: std::ops::Range<u64>) -> u64 {
    let mut carried_out = 0;
    for seed in seeds {
        let mut rng = Rng::with_seed(seed);
        let mut victim = Victim::new(kind);
        for _ in 0..60 {
            let frame = victim.frame(kind, &mut rng);
            victim.attack(&frame);
            let page = victim.pair.hosts[1].memory.at(BASE, 4096);
            carried_out += u64::from(page.iter().any(|byte| *byte != 0));
            revive(&mut victim, kind);
        }
    }
    carried_out
}

#[test]
fn frames_reach_no_memory_that_their_key_does_not_open() {
    for kind in [
        QpKind::Rc,
        QpKind::Uc,
        QpKind::XrcRecv,
        QpKind::Srd,
        QpKind::Dct,
    ] {
        let carried_out = attack_by_frames(kind, 0..200);
        assert!(
            carried_out > 20,
            "the attack must also get through where it may: {carried_out}"
        );
    }
    attack_by_frames(QpKind::Ud, 0..100);
}

proptest! {
    /// Recorded traffic with flipped bits and recomputed checksums.
    #[test]
    fn flipped_bits_behind_right_checksums_are_harmless(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 0..8_u8), 1..6),
        seed: u64,
    ) {
        let mut rng = Rng::with_seed(seed);
        let mut victim = Victim::new(QpKind::Rc);
        for _ in 0..10 {
            let mut bytes = victim.frame(QpKind::Rc, &mut rng);
            let at_transport = 28;
            // With another opcode, the extension headers of the attacker are a payload.
            let headers = at_transport + Bth::LEN;
            for byte in bytes[headers..].iter_mut().filter(|byte| **byte == SECRET) {
                *byte = 0;
            }
            for (at, bit) in &flips {
                let at = at_transport + at.index(bytes.len() - at_transport);
                let flipped = bytes[at] ^ (1 << bit);
                // A payload of the attacker never has the secret: the victim may return the payload.
                if flipped != SECRET {
                    bytes[at] = flipped;
                }
            }
            seal(&mut bytes);
            victim.attack(&bytes);
            revive(&mut victim, QpKind::Rc);
        }
    }
}

/// Recomputes the ICRC of an IPv4 frame.
fn seal(bytes: &mut [u8]) {
    if let Err(softnic::wire::WireError::Icrc(icrc)) = Frame::decode(bytes) {
        let end = bytes.len() - 4;
        bytes[end..].copy_from_slice(&icrc.to_le_bytes());
        assert!(!matches!(
            Frame::decode(bytes),
            Err(softnic::wire::WireError::Icrc(_))
        ));
    }
}

#[test]
fn frames_of_other_hosts_and_to_other_queue_pairs_are_dropped() {
    let mut pair = Pair::connected(QpKind::Rc);
    let sge = pair.hosts[0].sge(0, 8);
    pair.post_recv(1, 1, &[sge]);
    pair.post(0, request(1, SEND, &[sge]));
    let frame = pair.transmit(0).unwrap();
    let decoded = Frame::decode(&frame).unwrap();
    let forged = |ip: IpHeader, dest_qp: u32, pkey: u16| {
        let mut bytes = Vec::new();
        let bth = Bth {
            dest_qp,
            pkey,
            ..decoded.bth
        };
        Frame { ip, bth, ..decoded }.encode(&mut bytes).unwrap();
        bytes
    };
    let (ip, qp) = (decoded.ip, decoded.bth.dest_qp);
    let addr = |text: &str| text.parse().unwrap();
    let unknown_peer = IpHeader::new(addr("10.9.0.7"), ip.dst()).unwrap();
    let foreign_ip = IpHeader::new(ip.src(), addr("10.9.0.7")).unwrap();
    for bytes in [
        forged(unknown_peer, qp, 0xffff),
        forged(foreign_ip, qp, 0xffff),
        forged(ip, qp + 1, 0xffff),
        forged(ip, qp, 0x8001),
    ] {
        pair.deliver(1, &bytes);
        assert_eq!(pair.transmit(1), None);
    }
    assert_eq!(
        pair.hosts[1].engine.dropped_frames(),
        3,
        "the stranger's is the queue pair's to drop"
    );
    pair.deliver(1, &frame);
    assert_eq!(pair.hosts[1].poll().len(), 1);
    let queried = pair.hosts[1].engine.query_qp(QpNum(qp));
    assert!(matches!(queried, Some((State::Rts, QpAttributes { .. }))));
}
