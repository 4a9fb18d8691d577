//! Litmus tests: small programs with all of their outcomes. An adversary with all rules shows each allowed outcome, and no other
//! one.
//!
//! Source: Ambal, Dongol, Eran, Klimis, Lahav, Raad: Semantics of Remote Direct Memory Access, OOPSLA 2024 (RDMA-TSO), for the
//! order of writes, reads, fences and completions.

use std::{cell::Cell, collections::BTreeSet};

use ibverbs_sys::{self as ffi, ibv_access_flags as access, ibv_send_flags as Flags};
use softnic::Fabric;

use crate::raw::{
    ALL_RIGHTS, Bytes, End, Pair, READ, SEND, Sizes, WRITE, c, element_of, remote_request, request,
};

/// Number of executions of each program.
const SEEDS: u64 = 400;

/// Locations of one byte, in the memory of each end.
const X: usize = 0;
const Y: usize = 8;
const Z: usize = 16;

/// A program at end `a` and its peer at end `b`, on a fabric whose time is advanced by the program.
struct Program {
    pair: Pair,
    a: Bytes,
    b: Bytes,
    a_mr: *mut ffi::ibv_mr,
    b_mr: *mut ffi::ibv_mr,
    /// Decisions about pauses.
    decisions: Cell<u64>,
}

impl Program {
    fn new(seed: u64, rights: u32) -> Self {
        let pair = Pair::new(Fabric::manual(seed).adversarial(), Sizes::default());
        let (a, b) = (Bytes::new(24, 0), Bytes::new(24, 0));
        let (a_mr, b_mr) = (pair.a.register(&a, ALL_RIGHTS), pair.b.register(&b, rights));
        Self {
            pair,
            a,
            b,
            a_mr,
            b_mr,
            decisions: Cell::new(seed),
        }
    }

    /// Lets the devices take up to seven steps.
    fn pause(&self) {
        let next = self.decisions.get().wrapping_mul(6_364_136_223_846_793_005);
        self.decisions
            .set(next.wrapping_add(1_442_695_040_888_963_407));
        for _ in 0..(self.decisions.get() >> 61) {
            self.pair.fabric.step();
        }
    }

    /// Posts a write or a read of one byte by a queue pair of end `a`.
    fn post(
        &self,
        end: &End,
        op: ffi::ibv_wr_opcode,
        (local, remote): (usize, usize),
        flags: Flags,
    ) {
        let mut sge = element_of(self.a_mr);
        (sge.addr, sge.length) = (sge.addr + local as u64, 1);
        let mut wr = remote_request(op, 1, &mut sge, self.b_mr);
        wr.wr.rdma.remote_addr = self.b.addr() + remote as u64;
        wr.send_flags |= flags.0;
        assert_eq!(end.send(&mut wr), 0);
        self.pause();
    }

    /// Writes `value` to a location of the peer, from the same location.
    fn write(&self, at: usize, value: u8) {
        self.a.set(at, value);
        self.post(&self.pair.a, WRITE, (at, at), Flags(0));
    }

    /// Posts an empty message for the peer.
    fn send(&self) {
        let mut none = element_of(self.b_mr);
        none.length = 0;
        assert_eq!(self.pair.b.recv(2, &mut none), 0);
        let mut none = element_of(self.a_mr);
        none.length = 0;
        assert_eq!(self.pair.a.send(&mut request(SEND, 2, &mut none)), 0);
    }

    /// Waits for `count` completions of an end.
    fn wait(&self, end: &End, count: usize) {
        for _ in 0..count {
            while end.poll().is_none() {
                assert!(self.pair.fabric.step(), "no completion");
            }
        }
    }
}

/// The outcomes of a program, in all executions.
fn outcomes<T: Ord>(rights: u32, run: impl Fn(&Program, &mut BTreeSet<T>)) -> Vec<T> {
    let mut outcomes = BTreeSet::new();
    for seed in 0..SEEDS {
        run(&Program::new(seed, rights), &mut outcomes);
    }
    outcomes.into_iter().collect()
}

/// The outcomes of one request of 8 bytes, as the processor of the memory's host sees them at any time before the completion: the
/// last byte and the first.
fn two_bytes(op: ffi::ibv_wr_opcode) -> Vec<(u8, u8)> {
    outcomes(ALL_RIGHTS, |program, outcomes| {
        let (a, b) = (&program.pair.a, &program.pair.b);
        let (from, to, receiver) = match op {
            READ => (&program.b, &program.a, a),
            _ => (&program.a, &program.b, b),
        };
        (0..8).for_each(|at| from.set(at, 1));
        let [mut local, mut remote] = [program.a_mr, program.b_mr].map(element_of);
        (local.length, remote.length) = (8, 8);
        assert_eq!(b.recv(2, &mut remote), 0);
        let mut wr = remote_request(op, 1, &mut local, program.b_mr);
        assert_eq!(a.send(&mut wr), 0);
        while receiver.poll().is_none() {
            outcomes.insert((to.get(7), to.get(0)));
            assert!(program.pair.fabric.step());
        }
        assert_eq!((to.get(7), to.get(0)), (1, 1));
    })
}

#[test]
fn bytes_of_a_request_have_no_order() {
    let write = ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
    for op in [SEND, write, READ] {
        assert_eq!(two_bytes(op), [(0, 0), (1, 0), (1, 1)], "{op:?}");
    }
}

/// The outcomes of two writes, x and y, as the peer's processor sees them at any time: y and x.
fn two_writes(rights: u32) -> Vec<(u8, u8)> {
    outcomes(rights, |program, outcomes| {
        program.write(X, 1);
        program.write(Y, 1);
        program.send();
        while program.pair.b.poll().is_none() {
            outcomes.insert((program.b.get(Y), program.b.get(X)));
            assert!(program.pair.fabric.step());
        }
        // The message makes both visible.
        assert_eq!((program.b.get(Y), program.b.get(X)), (1, 1));
        program.wait(&program.pair.a, 3);
    })
}

#[test]
fn writes_of_a_queue_pair_are_ordered() {
    assert_eq!(two_writes(ALL_RIGHTS), [(0, 0), (0, 1), (1, 1)]);
}

#[test]
fn writes_to_relaxed_memory_are_not_ordered() {
    let relaxed = ALL_RIGHTS | access::IBV_ACCESS_RELAXED_ORDERING.0;
    assert_eq!(two_writes(relaxed), [(0, 0), (0, 1), (1, 0), (1, 1)]);
}

#[test]
fn writes_of_two_queue_pairs_are_not_ordered() {
    let found = outcomes(ALL_RIGHTS, |program, outcomes| {
        let second = program.pair.connect_again();
        program.write(X, 1);
        program.a.set(Y, 1);
        program.post(&second, WRITE, (Y, Y), Flags(0));
        outcomes.insert((program.b.get(Y), program.b.get(X)));
        program.wait(&program.pair.a, 2);
    });
    assert_eq!(found, [(0, 0), (0, 1), (1, 0), (1, 1)]);
}

/// The outcomes of a read of x into z, and of a write of z to the peer's y.
fn read_and_write_on(fence: Flags) -> Vec<u8> {
    outcomes(ALL_RIGHTS, |program, outcomes| {
        program.b.set(X, 1);
        program.post(&program.pair.a, READ, (Z, X), Flags(0));
        program.post(&program.pair.a, WRITE, (Z, Y), fence);
        program.send();
        program.wait(&program.pair.b, 1);
        outcomes.insert(program.b.get(Y));
        program.wait(&program.pair.a, 3);
        assert_eq!(program.a.get(Z), 1);
    })
}

#[test]
fn write_takes_the_result_of_an_earlier_read_with_a_fence_only() {
    assert_eq!(read_and_write_on(Flags(0)), [0, 1]);
    assert_eq!(read_and_write_on(Flags::IBV_SEND_FENCE), [1]);
}

/// The outcomes of a read of x, and of a later write to x.
fn read_and_overwrite(fence: Flags) -> Vec<u8> {
    outcomes(ALL_RIGHTS, |program, outcomes| {
        program.a.set(Y, 1);
        program.post(&program.pair.a, READ, (Z, X), Flags(0));
        program.post(&program.pair.a, WRITE, (Y, X), fence);
        program.wait(&program.pair.a, 2);
        outcomes.insert(program.a.get(Z));
    })
}

#[test]
fn read_returns_no_later_write_with_a_fence_only() {
    assert_eq!(read_and_overwrite(Flags(0)), [0, 1]);
    assert_eq!(read_and_overwrite(Flags::IBV_SEND_FENCE), [0]);
}

#[test]
fn completed_write_is_visible_after_a_read_only() {
    let write_alone = outcomes(ALL_RIGHTS, |program, outcomes| {
        program.write(X, 1);
        program.wait(&program.pair.a, 1);
        outcomes.insert(program.b.get(X));
    });
    assert_eq!(write_alone, [0, 1]);
    let with_read = outcomes(ALL_RIGHTS, |program, outcomes| {
        program.write(X, 1);
        program.post(&program.pair.a, READ, (Z, X), Flags(0));
        program.wait(&program.pair.a, 2);
        outcomes.insert((program.a.get(Z), program.b.get(X)));
    });
    assert_eq!(with_read, [(1, 1)]);
}

#[test]
fn memory_of_a_write_is_read_until_its_completion() {
    let changed_early = outcomes(ALL_RIGHTS, |program, outcomes| {
        program.write(X, 1);
        program.a.set(X, 2);
        program.send();
        program.wait(&program.pair.b, 1);
        outcomes.insert(program.b.get(X));
    });
    assert_eq!(changed_early, [1, 2]);
    let changed_after = outcomes(ALL_RIGHTS, |program, outcomes| {
        program.write(X, 1);
        program.wait(&program.pair.a, 1);
        program.a.set(X, 2);
        program.send();
        program.wait(&program.pair.b, 1);
        outcomes.insert(program.b.get(X));
    });
    assert_eq!(changed_after, [1]);
}

#[test]
fn result_of_a_read_is_there_at_its_completion() {
    let early = outcomes(ALL_RIGHTS, |program, outcomes| {
        program.b.set(X, 1);
        program.post(&program.pair.a, READ, (Z, X), Flags(0));
        outcomes.insert(program.a.get(Z));
        program.wait(&program.pair.a, 1);
        assert_eq!(program.a.get(Z), 1);
    });
    assert_eq!(early, [0, 1]);
}

#[test]
fn reads_of_a_location_are_coherent() {
    let found = outcomes(ALL_RIGHTS, |program, outcomes| {
        program.post(&program.pair.a, READ, (Y, X), Flags(0));
        program.pause();
        program.b.set(X, 1);
        program.post(&program.pair.a, READ, (Z, X), Flags(0));
        program.wait(&program.pair.a, 2);
        outcomes.insert((program.a.get(Y), program.a.get(Z)));
    });
    assert_eq!(found, [(0, 1), (1, 1)]);
}

#[test]
fn additions_of_two_queue_pairs_are_atomic() {
    let found = outcomes(ALL_RIGHTS, |program, outcomes| {
        let second = program.pair.connect_again();
        for (end, at) in [(&program.pair.a, Y), (&second, Z)] {
            let mut sge = element_of(program.a_mr);
            (sge.addr, sge.length) = (sge.addr + at as u64, 8);
            let add = ffi::ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
            let mut wr = request(add, 1, &mut sge);
            wr.wr.atomic.remote_addr = program.b.addr() + X as u64;
            wr.wr.atomic.rkey = c!((*program.b_mr).rkey);
            wr.wr.atomic.compare_add = 1;
            assert_eq!(end.send(&mut wr), 0);
            program.pause();
        }
        program.wait(&program.pair.a, 2);
        outcomes.insert((program.a.get(Y), program.a.get(Z)));
        // A read sees both.
        program.post(&program.pair.a, READ, (Z, X), Flags(0));
        program.wait(&program.pair.a, 1);
        assert_eq!(program.a.get(Z), 2);
    });
    assert_eq!(found, [(0, 1), (1, 0)]);
}
