//! A lock-free list of free slots.
//!
//! The atomics are those that the parent module calls `atomic`: the tests compile this file a second
//! time, over loom's.

use super::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// The most slots a list can have.
pub(super) const MAX_SLOTS: u32 = NONE;

/// The slot number that is none, and how many low bits of the head a slot number has.
const NONE: u32 = (1 << SLOT_BITS) - 1;
const SLOT_BITS: u32 = 24;

/// Which of `n` slots are free: the last one given back is the first one taken, so that it may still
/// be in the processor's cache.
///
/// It is a stack of slot numbers, linked through an array (Treiber's). The head has a count in the
/// 40 bits that a slot number leaves, which every change increments: otherwise a thread that has
/// read the head and its successor, and then waited while others took both and gave the first one
/// back, would find the head as it was, and make a successor the head that is not free (the ABA
/// problem). A thread would have to wait for exactly 2^40 changes, hours of them, to be deceived.
pub(super) struct FreeList {
    /// The count, and the slot on top.
    head: AtomicU64,
    /// The slot below each slot. Means nothing while it is taken.
    below: Box<[AtomicU32]>,
}

impl FreeList {
    /// A list with all of `slots` free, which are at most [`MAX_SLOTS`]. The first is taken first.
    pub(super) fn new(slots: u32) -> Self {
        debug_assert!(slots <= MAX_SLOTS);
        let below = |slot| if slot + 1 < slots { slot + 1 } else { NONE };
        Self {
            head: AtomicU64::new(u64::from(if slots > 0 { 0 } else { NONE })),
            below: (0..slots).map(|slot| AtomicU32::new(below(slot))).collect(),
        }
    }

    /// The number of slots, free or not.
    pub(super) fn slots(&self) -> usize {
        self.below.len()
    }

    /// Takes a slot. It is the caller's alone, who sees what its last owner did.
    #[inline]
    pub(super) fn take(&self) -> Option<u32> {
        let mut head = self.head.load(Acquire);
        loop {
            let slot = slot_of(head);
            // A stale head's successor may be anything; then the exchange fails.
            let below = self.below.get(slot as usize)?.load(Relaxed);
            // Acquire: sees what happened before the slot was given back. That was with a release,
            // which other changes in between carry on, since each of them exchanges.
            match self
                .head
                .compare_exchange_weak(head, next(head, below), Acquire, Acquire)
            {
                Ok(_) => return Some(slot),
                Err(now) => head = now,
            }
        }
    }

    /// Gives a slot back, which [`take`](Self::take) has returned, once.
    #[inline]
    pub(super) fn give_back(&self, slot: u32) {
        let Some(below) = self.below.get(slot as usize) else {
            return;
        };
        let mut head = self.head.load(Relaxed);
        loop {
            below.store(slot_of(head), Relaxed);
            // Release: whoever takes the slot next sees its link, and what was done with it.
            match self
                .head
                .compare_exchange_weak(head, next(head, slot), Release, Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

/// The slot in a head.
#[expect(clippy::cast_possible_truncation, reason = "the low 24 bits")]
fn slot_of(head: u64) -> u32 {
    head as u32 & NONE
}

/// The head after a change that puts `slot` on top.
fn next(head: u64, slot: u32) -> u64 {
    let count = (head >> SLOT_BITS).wrapping_add(1);
    count << SLOT_BITS | u64::from(slot)
}
