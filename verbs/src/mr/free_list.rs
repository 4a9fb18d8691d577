//! A lock-free list of free slots.
//!
//! The parent module provides `atomic`: the tests compile this file a second time, over loom's
//! atomics.

use super::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Maximum number of slots a list can have.
pub(super) const MAX_SLOTS: u32 = NONE;

/// The slot number for "none", and the number of low bits of the head for a slot number.
const NONE: u32 = (1 << SLOT_BITS) - 1;
const SLOT_BITS: u32 = 24;

/// The free slots among `n`, last in first out: a reused slot may still be in the processor's
/// cache.
///
/// A stack of slot numbers, linked through an array (Treiber's). The upper 40 bits of the head
/// count changes, against the ABA problem: without the count, a thread might read the head and the
/// successor, pause while others take both and return the first, then find the head unchanged and
/// install a successor that is not free. With the count, the pause would have to span exactly 2^40
/// changes, hours of them.
pub(super) struct FreeList {
    /// The count, and the slot on top.
    head: AtomicU64,
    /// The slot below each slot; while the slot is taken and shared, the number of its owners.
    below: Box<[AtomicU32]>,
}

impl FreeList {
    /// A list with all of `slots` free, at most [`MAX_SLOTS`]. The first is taken first.
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

    /// Takes a slot. The slot is the caller's alone, and the writes of its last owner are visible.
    #[inline]
    pub(super) fn take(&self) -> Option<u32> {
        let mut head = self.head.load(Acquire);
        loop {
            let slot = slot_of(head);
            // A stale head's successor may be anything; then the exchange fails.
            let below = self.below.get(slot as usize)?.load(Relaxed);
            // Acquire: pairs with the release of `give_back`, carried on by changes in between,
            // since each is an exchange.
            match self
                .head
                .compare_exchange_weak(head, next(head, below), Acquire, Acquire)
            {
                Ok(_) => return Some(slot),
                Err(now) => head = now,
            }
        }
    }

    /// Returns a slot from [`take`](Self::take), once.
    #[inline]
    pub(super) fn give_back(&self, slot: u32) {
        let Some(below) = self.below.get(slot as usize) else {
            return;
        };
        let mut head = self.head.load(Relaxed);
        loop {
            below.store(slot_of(head), Relaxed);
            // Release: the next owner of the slot sees the link and the last owner's writes.
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

/// Shares of a taken slot. A concurrent [`FreeList::take`] may read the number of owners as the slot below; then its exchange
/// fails, since the slot is not free.
impl FreeList {
    /// Begins to count the owners of a taken slot, with one.
    #[inline]
    pub(super) fn begin_sharing(&self, slot: u32) {
        if let Some(owners) = self.below.get(slot as usize) {
            owners.store(1, Relaxed);
        }
    }

    /// Counts one more owner of a shared slot.
    ///
    /// # Aborts
    /// The process is aborted at 2^31 owners.
    #[inline]
    pub(super) fn add_share(&self, slot: u32) {
        let Some(owners) = self.below.get(slot as usize) else {
            return;
        };
        if owners.fetch_add(1, Relaxed) > MAX_OWNERS {
            std::process::abort();
        }
    }

    /// Ends one owner's share. Returns whether the owner was the last: the slot is then the caller's alone, and the reads of
    /// all other owners have happened before.
    #[inline]
    pub(super) fn end_share(&self, slot: u32) -> bool {
        let owners = self.below.get(slot as usize);
        owners.is_some_and(|owners| owners.fetch_sub(1, AcqRel) == 1)
    }
}

/// Maximum number of owners of a slot.
const MAX_OWNERS: u32 = u32::MAX >> 1;

/// The slot in a head.
#[expect(clippy::cast_possible_truncation, reason = "the low 24 bits")]
fn slot_of(head: u64) -> u32 {
    head as u32 & NONE
}

/// The head after a change with `slot` on top.
fn next(head: u64, slot: u32) -> u64 {
    let count = (head >> SLOT_BITS).wrapping_add(1);
    count << SLOT_BITS | u64::from(slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_and_the_next_count_are_in_a_head() {
        let last_count = u64::MAX >> SLOT_BITS;
        for count in [0, last_count] {
            let head = count << SLOT_BITS | u64::from(NONE);
            let next_count = if count == last_count { 0 } else { count + 1 };
            for slot in 0..=NONE {
                let changed = next(head, slot);
                assert_eq!(slot_of(changed), slot);
                assert_eq!(changed >> SLOT_BITS, next_count);
            }
        }
    }
}
