//! Seeded schedules of two engines: each message arrives exactly once and in order, and memory ends as without faults.

use std::{collections::VecDeque, time::Duration};

use fastrand::Rng;
use softnic::engine::{
    CompletionOp, Event, Payload, Placement, QpAttributes, QpKind, Remote, SendOp, SendRequest,
    State, Status,
};

use crate::{
    pair::{Faults, Pair, SEND, attributes, request},
    shadow::BASE,
};

/// Number of schedules of a plain test run.
const SEEDS: u64 = 100;

/// Number of requests of each side.
const REQUESTS: u64 = 40;

/// Longest message in bytes.
const MAX_LEN: usize = 4000;

/// Bytes of memory for each request of a side, and offsets of the areas for receives and for the peer's RDMA.
const SLOT: u64 = 4096;
const RECEIVES: u64 = 0x4_0000;
const RDMA: u64 = 0x8_0000;
const RDMA_LEN: usize = 16 * 1024;

/// Expected outcome of a request.
enum Expected {
    Sent,
    /// Bytes returned by a read or an atomic operation.
    Brought(Vec<u8>),
}

/// One direction: requests of a side, and their expected effects.
struct Side {
    posted: u64,
    completed: u64,
    expected: VecDeque<(u64, Expected)>,
    /// Messages expected by the peer: bytes, immediate data, and whether the message is an RDMA write.
    messages: VecDeque<(Vec<u8>, Option<u32>, bool)>,
    receives_posted: u64,
    received: u64,
    /// Expected contents of the peer's RDMA memory.
    remote: Vec<u8>,
}

impl Side {
    fn new() -> Self {
        Self {
            posted: 0,
            completed: 0,
            expected: VecDeque::new(),
            messages: VecDeque::new(),
            receives_posted: 0,
            received: 0,
            remote: vec![0; RDMA_LEN],
        }
    }

    /// A send, and the message expected by the peer.
    fn send(&mut self, bytes: &[u8], imm: Option<u32>) -> SendOp {
        self.messages.push_back((bytes.to_vec(), imm, false));
        SendOp::Send {
            imm,
            invalidate: None,
        }
    }

    /// A write to `at` in the peer's RDMA memory, and its effect.
    fn write(&mut self, at: usize, bytes: &[u8], remote: Remote, imm: Option<u32>) -> SendOp {
        self.remote[at..at + bytes.len()].copy_from_slice(bytes);
        if imm.is_some() {
            self.messages.push_back((bytes.to_vec(), imm, true));
        }
        SendOp::Write { remote, imm }
    }

    /// A random request, and its effect on the peer.
    fn next(&mut self, pair: &mut Pair, side: usize) -> SendRequest {
        let (rng, id) = (&mut pair.rng, self.posted);
        let len = random_len(rng);
        let at = rng.usize(..RDMA_LEN - MAX_LEN) / 8 * 8;
        let bytes: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
        let kind = rng.u8(..9);
        let imm = rng.bool().then(|| rng.u32(..));
        let inline = len <= 256 && rng.bool();
        let numbers = (rng.u64(..), rng.bool());
        let remote = Remote {
            addr: BASE + RDMA + at as u64,
            rkey: pair.hosts[1 - side].key,
        };
        let offset = id * SLOT;
        let host = &mut pair.hosts[side];
        let short = u32::try_from(len).unwrap();
        let mut sges = vec![
            host.sge(offset, short / 3),
            host.sge(offset + u64::from(short / 3), short - short / 3),
        ];
        host.memory.at(BASE + offset, len).copy_from_slice(&bytes);
        let mut expected = Expected::Sent;
        let op = match kind {
            7 => {
                sges.clear();
                let value = numbers.0.to_ne_bytes();
                self.remote[at..at + 8].copy_from_slice(&value);
                SendOp::AtomicWrite { remote, value }
            }
            8 => {
                sges.clear();
                SendOp::Flush {
                    remote,
                    len: short,
                    placement: Placement::GLOBAL,
                    whole_region: numbers.1,
                }
            }
            0..=2 => self.send(&bytes, imm),
            3 | 4 => self.write(at, &bytes, remote, imm),
            5 => {
                expected = Expected::Brought(self.remote[at..at + len].to_vec());
                SendOp::Read(remote)
            }
            _ => {
                sges = vec![host.sge(offset, 8)];
                let word = &mut self.remote[at..at + 8];
                expected = Expected::Brought(word.to_vec());
                atomic(word, remote, numbers)
            }
        };
        self.expected.push_back((id, expected));
        self.posted += 1;
        let mut wr = request(id, op, &sges);
        // A repeated read must not see later writes.
        wr.fence = kind >= 3;
        if inline && kind <= 4 {
            wr.payload = Payload::Inline(bytes);
        }
        wr
    }
}

/// A compare and swap, or a fetch and add, of the number, and its effect on the memory `word`.
fn atomic(word: &mut [u8], remote: Remote, (number, compares): (u64, bool)) -> SendOp {
    let old = u64::from_ne_bytes((&*word).try_into().unwrap());
    let new = if compares {
        number
    } else {
        old.wrapping_add(number)
    };
    word.copy_from_slice(&new.to_ne_bytes());
    if compares {
        SendOp::CompareSwap {
            remote,
            compare: old,
            swap: number,
        }
    } else {
        SendOp::FetchAdd {
            remote,
            add: number,
        }
    }
}

fn random_len(rng: &mut Rng) -> usize {
    match rng.u8(..4) {
        0 => rng.usize(..10),
        1 => 256 * rng.usize(..4),
        _ => rng.usize(..MAX_LEN),
    }
}

/// Posts requests while the queues have room, and checks completions. Returns whether all requests are done.
fn drive(pair: &mut Pair, sides: &mut [Side; 2]) -> bool {
    for side in [0, 1] {
        assert_eq!(pair.state(side), State::Rts);
        for completion in pair.hosts[side].poll() {
            assert_eq!(completion.status, Status::Success, "{completion:?}");
            match completion.op {
                CompletionOp::Receive | CompletionOp::ReceiveWrite => {
                    let (bytes, imm, is_write) = sides[1 - side].messages.pop_front().unwrap();
                    assert_eq!(completion.wr_id, sides[side].received, "in order");
                    assert_eq!(completion.op == CompletionOp::ReceiveWrite, is_write);
                    assert_eq!(
                        (completion.byte_len as usize, completion.imm),
                        (bytes.len(), imm)
                    );
                    if !is_write {
                        let at = BASE + RECEIVES + completion.wr_id * SLOT;
                        assert_eq!(pair.hosts[side].memory.at(at, bytes.len()), bytes);
                    }
                    sides[side].received += 1;
                }
                _ => {
                    let (id, expected) = sides[side].expected.pop_front().unwrap();
                    assert_eq!(completion.wr_id, id, "in order, and once");
                    if let Expected::Brought(bytes) = expected {
                        let at = BASE + id * SLOT;
                        assert_eq!(pair.hosts[side].memory.at(at, bytes.len()), bytes);
                    }
                    sides[side].completed += 1;
                }
            }
        }
        // Receives are posted seldom, so that the peer sometimes finds none.
        let state = &mut sides[side];
        if state.receives_posted < REQUESTS && pair.rng.u8(..4) == 0 {
            let sge = pair.hosts[side].sge(RECEIVES + state.receives_posted * SLOT, 4096);
            pair.post_recv(side, state.receives_posted, &[sge]);
            state.receives_posted += 1;
        }
        if sides[side].posted < REQUESTS && pair.rng.bool() {
            let wr = sides[side].next(pair, side);
            pair.post(side, wr);
        }
    }
    sides
        .iter()
        .all(|side| side.completed == REQUESTS && side.messages.is_empty())
}

fn random_attributes(rng: &mut Rng) -> QpAttributes {
    QpAttributes {
        mtu: 256 << rng.u8(..5),
        sq_psn: rng.u32(0xff_ff00..0x100_0000),
        rq_psn: rng.u32(..0x100_0000),
        max_rd_atomic: rng.u8(1..5),
        min_rnr_timer: rng.u8(1..14),
        ..attributes()
    }
}

fn simulate(seed: u64, faults: Faults) -> Pair {
    let mut pair = Pair::new(QpKind::Rc, false);
    pair.rng = Rng::with_seed(seed);
    pair.faults = faults;
    let attributes = random_attributes(&mut pair.rng);
    pair.connect(&attributes);
    let mut sides = [Side::new(), Side::new()];
    let mut idle = 0;
    // A run without frames and timers left, but with unfinished requests, is a stall; too many stalls fail the test.
    while !pair.run_until(|pair| drive(pair, &mut sides)) {
        idle += 1;
        assert!(idle < 10_000, "seed {seed}: stuck");
    }
    pair.run();
    for side in [0, 1] {
        let memory = pair.hosts[1 - side].memory.at(BASE + RDMA, RDMA_LEN);
        assert!(memory == sides[side].remote, "seed {seed}: memory differs");
        let unexpected = |event: &Event| !matches!(event, Event::CommunicationEstablished(_));
        assert!(!pair.hosts[side].events().iter().any(unexpected));
    }
    pair
}

#[test]
fn messages_arrive_once_and_in_order_over_a_perfect_wire() {
    for seed in 0..SEEDS / 3 {
        simulate(seed, Faults::default());
    }
}

#[test]
fn messages_arrive_once_and_in_order_over_a_lossy_wire() {
    let faults = Faults {
        loss: 0.05,
        duplication: 0.05,
        corruption: 0.02,
        delay: Duration::ZERO,
    };
    for seed in 0..SEEDS {
        simulate(seed, faults);
    }
}

#[test]
fn messages_arrive_once_and_in_order_over_a_reordering_wire() {
    let faults = Faults {
        loss: 0.02,
        duplication: 0.1,
        corruption: 0.01,
        delay: Duration::from_micros(80),
    };
    for seed in 0..SEEDS {
        simulate(seed, faults);
    }
}

#[test]
fn same_seed_gives_the_same_run() {
    let faults = Faults {
        loss: 0.05,
        delay: Duration::from_micros(20),
        ..Faults::default()
    };
    assert_eq!(simulate(7, faults).now, simulate(7, faults).now);
    assert_ne!(simulate(7, faults).now, simulate(8, faults).now);
}

#[test]
fn messages_over_an_unreliable_connection_are_whole_or_missing() {
    for seed in 0..SEEDS {
        let mut pair = Pair::connected(QpKind::Uc);
        pair.rng = Rng::with_seed(seed);
        pair.faults.loss = 0.05;
        for id in 0..32 {
            let sge = pair.hosts[1].sge(RECEIVES + id * SLOT, 4096);
            pair.post_recv(1, id, &[sge]);
            let len = pair.rng.u32(1..2000);
            let byte = u8::try_from(id).unwrap();
            pair.hosts[0]
                .memory
                .at(BASE + id * SLOT, len as usize)
                .fill(byte);
            let sge = pair.hosts[0].sge(id * SLOT, len);
            pair.post(0, request(id, SEND, &[sge]));
            pair.run();
        }
        let mut last = None;
        for (receive, completion) in pair.hosts[1].poll().into_iter().enumerate() {
            assert_eq!(
                completion.wr_id, receive as u64,
                "a dropped message costs no receive"
            );
            let at = BASE + RECEIVES + completion.wr_id * SLOT;
            let bytes = pair.hosts[1].memory.at(at, completion.byte_len as usize);
            let message = bytes[0];
            assert!(bytes.iter().all(|byte| *byte == message), "of one message");
            assert!(last < Some(message), "in order, and once");
            last = Some(message);
        }
        assert_eq!(pair.hosts[0].poll().len(), 32);
    }
}
