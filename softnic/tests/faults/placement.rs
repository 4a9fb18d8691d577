//! Rules about the time at which a device accesses memory, and about failures: a program that relies on kindness, and the
//! corrected one.

use std::collections::BTreeSet;

use ibverbs_sys::{self as ffi, ibv_send_flags, ibv_wc_status};
use softnic::Rule;

use crate::{
    raw::{
        ALL_RIGHTS, Bytes, End, Pair, READ, SEND, Sizes, WRITE, c, element_of, remote_request,
        request,
    },
    rules::{ROUNDS, pair, pair_of, shown_by},
};

/// `IBV_ACCESS_RELAXED_ORDERING`.
const RELAXED: u32 = 1 << 20;

/// A connection with memory for messages at both ends.
struct Messages {
    pair: Pair,
    from: Bytes,
    to: Bytes,
    from_mr: *mut ffi::ibv_mr,
    to_mr: *mut ffi::ibv_mr,
}

impl Messages {
    fn new(rule: Option<Rule>, len: usize, access: u32) -> Self {
        Self::of(pair(rule, Sizes::default()), len, access)
    }

    fn of(pair: Pair, len: usize, access: u32) -> Self {
        let (from, to) = (Bytes::new(len, 0), Bytes::new(len, 0));
        let from_mr = pair.a.register(&from, ALL_RIGHTS);
        let to_mr = pair.b.register(&to, access);
        assert!(!to_mr.is_null());
        Self {
            pair,
            from,
            to,
            from_mr,
            to_mr,
        }
    }

    fn fill(&self, value: u8) {
        (0..self.from.len()).for_each(|at| self.from.set(at, value));
    }

    /// Posts a write of `len` bytes at an offset of both memories.
    fn write(&self, at: usize, len: u32) {
        let mut sge = element_of(self.from_mr);
        (sge.addr, sge.length) = (sge.addr + at as u64, len);
        let mut wr = remote_request(WRITE, 1, &mut sge, self.to_mr);
        let addr = self.to.addr() + at as u64;
        wr.wr.rdma.remote_addr = addr;
        assert_eq!(self.pair.a.send(&mut wr), 0);
    }

    /// Sends an empty message, and waits until the peer has received it: its completion makes all earlier bytes visible.
    fn notify(&self) {
        let mut none = element_of(self.to_mr);
        none.length = 0;
        assert_eq!(self.pair.b.recv(2, &mut none), 0);
        let mut none = element_of(self.from_mr);
        none.length = 0;
        assert_eq!(self.pair.a.send(&mut request(SEND, 2, &mut none)), 0);
        assert_eq!(self.pair.b.wait().wr_id, 2);
    }

    fn wait(&self, count: usize) {
        for _ in 0..count {
            assert_eq!(self.pair.a.wait().status, ibv_wc_status::IBV_WC_SUCCESS);
        }
    }
}

/// Rounds numbered from 1, as bytes.
fn rounds() -> impl Iterator<Item = u8> {
    (1..=ROUNDS).map(|round| u8::try_from(round).unwrap())
}

#[test]
fn last_byte_of_a_write_comes_before_the_first() {
    shown_by(Rule::Placement, |rule| {
        let messages = Messages::new(rule, 64, ALL_RIGHTS);
        let early = rounds().filter(|round| {
            messages.fill(*round);
            messages.write(0, 64);
            // The program polls the last byte.
            let is_early = messages.to.get(63) == *round && messages.to.get(0) != *round;
            // The corrected program waits for a completion.
            messages.notify();
            assert!((0..64).all(|at| messages.to.get(at) == *round));
            messages.wait(2);
            is_early
        });
        early.count() as u64
    });
}

/// Rounds in which a second write, the flag, is visible before the first.
fn early_flags(rule: Option<Rule>, access: u32) -> u64 {
    let messages = Messages::new(rule, 16, access);
    let early = rounds().filter(|round| {
        messages.fill(*round);
        messages.write(0, 8);
        messages.write(8, 8);
        let is_early = messages.to.get(8) == *round && messages.to.get(0) != *round;
        messages.notify();
        assert!((0..16).all(|at| messages.to.get(at) == *round));
        messages.wait(3);
        is_early
    });
    early.count() as u64
}

#[test]
fn flag_of_a_second_write_comes_first() {
    shown_by(Rule::Relaxed, |rule| {
        early_flags(rule, ALL_RIGHTS | RELAXED)
    });
    // Without the right, writes of a queue pair are ordered.
    assert_eq!(early_flags(Some(Rule::Relaxed), ALL_RIGHTS), 0);
}

#[test]
fn write_is_not_visible_at_its_completion() {
    shown_by(Rule::NotVisible, |rule| {
        let messages = Messages::new(rule, 8, ALL_RIGHTS);
        let late = rounds().filter(|round| {
            messages.fill(*round);
            messages.write(0, 8);
            messages.wait(1);
            // The program notifies the peer by another path, such as TCP.
            let is_late = messages.to.get(0) != *round;
            messages.notify();
            assert_eq!(messages.to.get(0), *round);
            messages.wait(1);
            is_late
        });
        late.count() as u64
    });
}

/// Posts an addition of 1 to the peer's number, and returns the result's completion later.
fn add(end: &End, sge: &mut ffi::ibv_sge, to: *mut ffi::ibv_mr) {
    let mut wr = request(ffi::ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, 1, sge);
    wr.wr.atomic.remote_addr = c!((*to).addr).expose_provenance() as u64;
    wr.wr.atomic.rkey = c!((*to).rkey);
    wr.wr.atomic.compare_add = 1;
    assert_eq!(end.send(&mut wr), 0);
}

#[test]
fn addition_of_the_processor_is_lost() {
    shown_by(Rule::Torn, |rule| {
        let messages = aligned(rule);
        let mut sge = element_of(messages.from_mr);
        let lost = rounds().filter(|_| {
            messages.to.set(0, 0);
            add(&messages.pair.a, &mut sge, messages.to_mr);
            let before = messages.to.get(0);
            messages.to.set(0, before + 100);
            messages.wait(1);
            messages.to.get(0) != 101
        });
        lost.count() as u64
    });
    let mut attr = ffi::ibv_device_attr::zeroed();
    let messages = aligned(Some(Rule::Torn));
    let ctx = messages.pair.a.ctx;
    assert_eq!(c!(ffi::ibv_query_device(ctx, &raw mut attr)), 0);
    assert_eq!(attr.atomic_cap, ffi::ibv_atomic_cap::IBV_ATOMIC_HCA);
    // The corrected program adds by the device alone.
    let mut sge = element_of(messages.from_mr);
    for round in rounds() {
        add(&messages.pair.a, &mut sge, messages.to_mr);
        messages.wait(1);
        assert_eq!(messages.to.get(0), round);
    }
}

/// Memory of one aligned number at both ends.
fn aligned(rule: Option<Rule>) -> Messages {
    let messages = Messages::new(rule, 8, ALL_RIGHTS);
    assert_eq!((messages.from.addr() | messages.to.addr()) % 8, 0);
    messages
}

#[test]
fn message_is_in_memory_only_once_polled() {
    shown_by(Rule::PollWrites, |rule| {
        let messages = Messages::new(rule, 8, ALL_RIGHTS);
        let (a, b) = (&messages.pair.a, &messages.pair.b);
        let late = rounds().filter(|round| {
            messages.fill(*round);
            assert_eq!(b.recv(3, &mut element_of(messages.to_mr)), 0);
            let mut sge = element_of(messages.from_mr);
            assert_eq!(a.send(&mut request(SEND, 1, &mut sge)), 0);
            messages.wait(1);
            // The message has been acknowledged: the program looks at its memory.
            let is_late = messages.to.get(0) != *round;
            assert_eq!(b.wait().wr_id, 3);
            assert!((0..8).all(|at| messages.to.get(at) == *round));
            is_late
        });
        late.count() as u64
    });
}

/// A later request reads the result of a read, though no completion has been polled.
#[test]
fn result_of_a_read_is_sent_on_with_a_fence() {
    let messages = Messages::new(Some(Rule::PollWrites), 8, ALL_RIGHTS);
    let (a, b) = (&messages.pair.a, &messages.pair.b);
    let received = Bytes::new(8, 0);
    let received_mr = b.register(&received, ALL_RIGHTS);
    for round in rounds() {
        (0..8).for_each(|at| messages.to.set(at, round));
        assert_eq!(b.recv(3, &mut element_of(received_mr)), 0);
        let mut sge = element_of(messages.from_mr);
        let mut read = remote_request(READ, 1, &mut sge, messages.to_mr);
        assert_eq!(a.send(&mut read), 0);
        let mut send = request(SEND, 1, &mut sge);
        send.send_flags |= ibv_send_flags::IBV_SEND_FENCE.0;
        assert_eq!(a.send(&mut send), 0);
        messages.wait(2);
        b.wait();
        assert_eq!(received.get(7), round);
    }
}

#[test]
fn memory_is_written_after_the_first_error() {
    shown_by(Rule::LateAccess, |rule| {
        let changed = (0..ROUNDS / 4).filter(|seed| {
            let messages = Messages::of(pair_of(*seed, rule, Sizes::default()), 8, 1);
            let a = &messages.pair.a;
            assert_eq!(a.recv(9, &mut element_of(messages.from_mr)), 0);
            // The memory of the peer has no right for the write.
            messages.write(0, 8);
            assert_eq!(a.wait().status, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
            // The program frees all memory of the connection, and uses it for something else.
            messages.fill(5);
            let flushed = a.wait();
            assert_eq!(
                (flushed.wr_id, flushed.status),
                (9, ibv_wc_status::IBV_WC_WR_FLUSH_ERR)
            );
            let is_changed = messages.from.get(0) != 5 || messages.from.get(1) != 5;
            // The corrected program frees the memory after its own completion.
            messages.fill(6);
            assert!(a.poll().is_none());
            assert_eq!(messages.from.get(0), 6);
            is_changed
        });
        changed.count() as u64
    });
}

#[test]
fn failed_request_has_had_its_effect() {
    shown_by(Rule::FailedButDone, |rule| {
        let done = (0..ROUNDS).filter(|seed| {
            let messages = Messages::of(pair_of(*seed, rule, Sizes::default()), 8, ALL_RIGHTS);
            let (a, b) = (&messages.pair.a, &messages.pair.b);
            let mut sge = element_of(messages.from_mr);
            (0..16).any(|_| {
                assert_eq!(b.recv(1, &mut element_of(messages.to_mr)), 0);
                assert_eq!(a.send(&mut request(SEND, 1, &mut sge)), 0);
                let is_received = b.wait().status == ibv_wc_status::IBV_WC_SUCCESS;
                let is_failed = a.wait().status == ibv_wc_status::IBV_WC_RETRY_EXC_ERR;
                is_received && is_failed
            })
        });
        done.count() as u64
    });
}

#[test]
fn request_posted_too_early_is_dropped() {
    shown_by(Rule::EarlyPost, |rule| {
        let fabric = softnic::Fabric::seeded(7).keep_objects();
        let fabric = match rule {
            Some(rule) => fabric.rule(rule),
            None => fabric,
        };
        let end = End::new(&fabric.host([10, 9, 0, 1].into()), Sizes::default());
        end.init();
        let bytes = Bytes::new(8, 0);
        let mut sge = element_of(end.register(&bytes, ALL_RIGHTS));
        let accepted = (0..ROUNDS).filter(|_| end.send(&mut request(SEND, 1, &mut sge)) == 0);
        let accepted = accepted.count() as u64;
        assert!(end.poll().is_none());
        accepted
    });
}

#[test]
fn numbers_are_issued_again() {
    shown_by(Rule::Reuse, |rule| {
        let pair = pair(rule, Sizes::default());
        let (a, bytes) = (&pair.a, Bytes::new(8, 0));
        let mut numbers = BTreeSet::new();
        let reused = (0..ROUNDS).filter(|_| {
            let (qp, mr) = (a.create_qp(Sizes::default()), a.register(&bytes, 1));
            let both = [c!((*qp).qp_num), c!((*mr).lkey)].map(|number| !numbers.insert(number));
            assert_eq!(c!(ffi::ibv_destroy_qp(qp)), 0);
            assert_eq!(c!(ffi::ibv_dereg_mr(mr)), 0);
            both.contains(&true)
        });
        reused.count() as u64
    });
}

#[test]
fn poll_fails_and_loses_completions() {
    shown_by(Rule::PollError, |rule| {
        let messages = Messages::new(rule, 8, ALL_RIGHTS);
        let failed = rounds().filter(|round| {
            messages.fill(*round);
            messages.write(0, 8);
            let mut wc = ffi::ibv_wc::zeroed();
            let polls = (0..).map(|_| c!(ffi::ibv_poll_cq(messages.pair.a.cq, 1, &raw mut wc)));
            let count = polls.take(1_000_000).find(|count| *count != 0);
            assert!([Some(1), Some(-2)].contains(&count), "{count:?}");
            count == Some(-2)
        });
        failed.count() as u64
    });
}
