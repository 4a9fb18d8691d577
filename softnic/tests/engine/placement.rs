//! Flushes and atomic writes: rights, bounds, frames, and duplicates.

use softnic::{
    engine::{
        Access, Binding, CompletionOp, EngineError, Event, Placement, QpAttributes, QpKind, Remote,
        SendOp, Status, WindowKind,
    },
    wire::{Feth, Frame, Opcode, Reth},
};

use crate::{
    pair::{ALL, EVERYTHING, Pair, attributes, request},
    shadow::BASE,
};

const FLUSH: Opcode = Opcode(0x1c);
const ATOMIC_WRITE: Opcode = Opcode(0x1d);
const READ_RESPONSE_ONLY: Opcode = Opcode(0x10);

/// Address and length of the region for flushes.
const PAGE: u64 = BASE + (1 << 20) - 4096;
const LEN: u64 = 64;

/// A pair whose queue pairs grant `qp`, and the key of a region of the second host that grants `region`.
fn pair_with(qp: Access, region: Access) -> (Pair, u32) {
    let mut pair = Pair::new(QpKind::Rc, false);
    pair.connect(&QpAttributes {
        access: qp,
        ..attributes()
    });
    let rkey = pair.hosts[1].register(PAGE, LEN, region);
    (pair, rkey)
}

fn flush(rkey: u32, addr: u64, len: u32, placement: Placement) -> SendOp {
    SendOp::Flush {
        remote: Remote { addr, rkey },
        len,
        placement,
        whole_region: false,
    }
}

fn atomic_write(rkey: u32, addr: u64) -> SendOp {
    SendOp::AtomicWrite {
        remote: Remote { addr, rkey },
        value: *b"at once!",
    }
}

/// Executes a request of the first host, and returns the outcome and the events of the second host.
fn outcome(pair: &mut Pair, op: SendOp) -> (Status, Vec<Event>) {
    pair.post(0, request(1, op, &[]));
    pair.run();
    (pair.hosts[0].poll()[0].status, pair.hosts[1].events())
}

#[test]
fn flush_is_a_frame_of_its_own_and_answered_by_an_empty_read_response() {
    let (mut pair, rkey) = pair_with(EVERYTHING, EVERYTHING);
    let both = Placement(3);
    pair.post(0, request(1, flush(rkey, PAGE + 8, 56, both), &[]));
    let bytes = pair.transmit(0).unwrap();
    let frame = Frame::decode(&bytes).unwrap();
    assert_eq!((frame.bth.opcode, frame.payload.len()), (FLUSH, 0));
    let (feth, reth) = (frame.extensions.feth, frame.extensions.reth);
    let expected = Feth {
        placement: 3,
        selectivity: 0,
    };
    assert_eq!(feth, Some(expected));
    let (addr, len) = (PAGE + 8, 56);
    assert_eq!(reth, Some(Reth { addr, rkey, len }));
    // IPv4, UDP and BTH take 40 bytes; the FETH's last byte has selectivity and placement.
    assert_eq!(bytes[40..44], [0, 0, 0, 3]);
    pair.deliver(1, &bytes);
    let reply = pair.transmit(1).unwrap();
    let frame = Frame::decode(&reply).unwrap();
    assert_eq!(
        (frame.bth.opcode, frame.payload),
        (READ_RESPONSE_ONLY, &[][..])
    );
    pair.deliver(0, &reply);
    let done = pair.hosts[0].poll()[0];
    assert_eq!(
        (done.op, done.status, done.byte_len),
        (CompletionOp::Flush, Status::Success, 0)
    );
}

#[test]
fn flush_without_the_right_of_queue_pair_or_region_is_refused() {
    let global = Access(ALL.0 | Access::FLUSH_GLOBAL.0);
    let persistent = Access(ALL.0 | Access::FLUSH_PERSISTENT.0);
    for (placement, missing) in [
        (Placement::GLOBAL, persistent),
        (Placement::PERSISTENT, global),
        (Placement(3), global),
        (Placement(3), persistent),
    ] {
        let (mut pair, rkey) = pair_with(missing, EVERYTHING);
        let (status, events) = outcome(&mut pair, flush(rkey, PAGE, 8, placement));
        assert_eq!(status, Status::RemoteInvalidRequest, "{placement:?}");
        assert!(matches!(events[..], [Event::QpRequestError(_)]));
        let (mut pair, rkey) = pair_with(EVERYTHING, missing);
        let (status, events) = outcome(&mut pair, flush(rkey, PAGE, 8, placement));
        assert_eq!(status, Status::RemoteAccess, "{placement:?}");
        assert!(matches!(events[..], [Event::QpAccessError(_)]));
    }
}

#[test]
fn flush_beyond_the_region_is_refused_but_not_of_the_whole_region() {
    let range = |addr, len| {
        let (mut pair, rkey) = pair_with(EVERYTHING, EVERYTHING);
        let op = flush(rkey, addr, len, Placement::GLOBAL);
        outcome(&mut pair, op).0
    };
    assert_eq!(range(PAGE, 64), Status::Success);
    assert_eq!(range(PAGE + 1, 64), Status::RemoteAccess);
    assert_eq!(range(PAGE - 1, 1), Status::RemoteAccess);
    assert_eq!(range(u64::MAX, 2), Status::RemoteAccess);
    let write_region = |wrong_key| {
        let (mut pair, rkey) = pair_with(EVERYTHING, EVERYTHING);
        let op = SendOp::Flush {
            remote: Remote {
                addr: 0,
                rkey: rkey ^ wrong_key,
            },
            len: 0,
            placement: Placement::PERSISTENT,
            whole_region: true,
        };
        outcome(&mut pair, op).0
    };
    assert_eq!(write_region(0), Status::Success);
    assert_eq!(write_region(1), Status::RemoteAccess);
}

#[test]
fn flush_through_a_window_needs_the_right_of_the_window() {
    for (access, expected) in [
        (Access::FLUSH_GLOBAL, Status::Success),
        (Access::REMOTE_WRITE, Status::RemoteAccess),
    ] {
        for whole_region in [false, true] {
            let (mut pair, region) = pair_with(EVERYTHING, ALL);
            let host = &mut pair.hosts[1];
            let rkey = host
                .engine
                .alloc_window(host.pd, WindowKind::Type2)
                .unwrap();
            let binding = Binding {
                region,
                addr: PAGE,
                len: 16,
                access,
            };
            let op = SendOp::Bind {
                rkey,
                new_rkey: rkey,
                binding,
            };
            pair.post(1, request(1, op, &[]));
            let op = SendOp::Flush {
                remote: Remote { addr: PAGE, rkey },
                len: 16,
                placement: Placement::GLOBAL,
                whole_region,
            };
            pair.run();
            assert_eq!(outcome(&mut pair, op).0, expected, "{access:?}");
        }
    }
}

#[test]
fn flush_without_a_placement_or_with_a_payload_is_not_posted() {
    let (mut pair, rkey) = pair_with(EVERYTHING, EVERYTHING);
    for placement in [0, 4, 7] {
        let op = flush(rkey, PAGE, 8, Placement(placement));
        let refused = pair.try_post(0, request(1, op, &[]));
        assert!(
            matches!(refused, Err(EngineError::Invalid(_))),
            "{placement}"
        );
    }
    let sge = pair.hosts[0].sge(0, 8);
    for op in [
        flush(rkey, PAGE, 8, Placement::GLOBAL),
        atomic_write(rkey, PAGE),
    ] {
        let refused = pair.try_post(0, request(1, op, &[sge]));
        assert!(matches!(refused, Err(EngineError::Invalid(_))));
        let mut unreliable = Pair::connected(QpKind::Uc);
        let refused = unreliable.try_post(0, request(1, op, &[]));
        assert!(matches!(refused, Err(EngineError::Invalid(_))));
    }
}

#[test]
fn atomic_write_stores_eight_aligned_bytes_with_the_right_to_write() {
    let (mut pair, rkey) = pair_with(ALL, ALL);
    pair.post(0, request(1, atomic_write(rkey, PAGE + 56), &[]));
    let bytes = pair.transmit(0).unwrap();
    let frame = Frame::decode(&bytes).unwrap();
    assert_eq!(
        (frame.bth.opcode, frame.payload),
        (ATOMIC_WRITE, &b"at once!"[..])
    );
    assert_eq!(frame.extensions.reth.unwrap().len, 8);
    pair.deliver(1, &bytes);
    pair.run();
    let done = pair.hosts[0].poll()[0];
    assert_eq!(
        (done.op, done.status),
        (CompletionOp::AtomicWrite, Status::Success)
    );
    assert_eq!(pair.hosts[1].memory.at(PAGE + 56, 8), b"at once!");

    let status = |qp, region, addr| {
        let (mut pair, rkey) = pair_with(qp, region);
        let status = outcome(&mut pair, atomic_write(rkey, addr)).0;
        assert_eq!(pair.hosts[1].memory.at(PAGE, 72), [0; 72]);
        status
    };
    let reads = Access(Access::REMOTE_READ.0 | Access::REMOTE_ATOMIC.0 | Access::LOCAL_WRITE.0);
    assert_eq!(status(reads, ALL, PAGE), Status::RemoteInvalidRequest);
    assert_eq!(status(ALL, reads, PAGE), Status::RemoteAccess);
    assert_eq!(status(ALL, ALL, PAGE + 4), Status::RemoteInvalidRequest);
    assert_eq!(status(ALL, ALL, PAGE + 64), Status::RemoteAccess);
}

#[test]
fn duplicates_of_an_atomic_write_are_answered_and_not_executed_again() {
    let (mut pair, rkey) = pair_with(EVERYTHING, EVERYTHING);
    pair.post(0, request(1, atomic_write(rkey, PAGE), &[]));
    let op = flush(rkey, PAGE, 8, Placement::GLOBAL);
    pair.post(0, request(2, op, &[]));
    let frames = [pair.transmit(0).unwrap(), pair.transmit(0).unwrap()];
    let mut replies = [Vec::new(), Vec::new()];
    for (frame, reply) in frames.iter().zip(&mut replies) {
        pair.deliver(1, frame);
        *reply = pair.transmit(1).unwrap();
    }
    pair.hosts[1]
        .memory
        .at(PAGE, 8)
        .copy_from_slice(b"changed!");
    for (frame, reply) in frames.iter().zip(&replies) {
        pair.deliver(1, frame);
        let again = pair.transmit(1).map(|frame| psn(&frame));
        assert_eq!(again, Some(psn(reply)));
    }
    assert_eq!(pair.hosts[1].memory.at(PAGE, 8), b"changed!");
    // Both replies to the first request complete it once.
    for reply in [&replies[0], &replies[0], &replies[1]] {
        pair.deliver(0, reply);
    }
    let done: Vec<_> = pair.hosts[0].poll().iter().map(|wc| wc.wr_id).collect();
    assert_eq!(done, [1, 2]);
}

fn psn(frame: &[u8]) -> (Opcode, u32) {
    let bth = Frame::decode(frame).unwrap().bth;
    (bth.opcode, bth.psn)
}

#[test]
fn flushes_and_atomic_writes_count_as_reads_in_flight() {
    let (mut pair, rkey) = pair_with(EVERYTHING, EVERYTHING);
    // The depth is four.
    for id in 0..5 {
        let op = if id % 2 == 0 {
            atomic_write(rkey, PAGE)
        } else {
            flush(rkey, PAGE, 8, Placement::GLOBAL)
        };
        pair.post(0, request(id, op, &[]));
    }
    let frames: Vec<_> = std::iter::from_fn(|| pair.transmit(0)).collect();
    assert_eq!(frames.len(), 4);
    pair.deliver(1, &frames[0]);
    let reply = pair.transmit(1).unwrap();
    pair.deliver(0, &reply);
    assert!(pair.transmit(0).is_some());
}
