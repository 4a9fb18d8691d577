//! The free list under every interleaving of a few threads, and every permitted order of their
//! memory accesses: loom tries all.

use loom::{cell::UnsafeCell, model, model::Builder, sync::Arc, thread};

use free_list::FreeList;

/// The atomics of the free list under loom.
mod atomic {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}
#[expect(clippy::duplicate_mod, reason = "over other atomics")]
#[path = "free_list.rs"]
mod free_list;

/// Slots with memory under loom's watch: two concurrent owners of a slot fail the test, and so does
/// an owner that does not see the last owner's writes.
struct Slots {
    free: FreeList,
    memory: Vec<UnsafeCell<u32>>,
}

impl Slots {
    fn new(slots: u32) -> Arc<Self> {
        Arc::new(Self {
            free: FreeList::new(slots),
            memory: (0..slots).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    /// One thread per slot; each takes and returns a slot `rounds` times.
    fn exchanged(rounds: usize) {
        let slots = Self::new(2);
        let work = move |slots: &Self| {
            for _ in 0..rounds {
                let slot = slots.take().expect("there is one for each thread");
                slots.give_back(slot);
            }
        };
        let other = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || work(&slots))
        };
        work(&slots);
        other.join().unwrap();
        assert_eq!(slots.rest().len(), slots.free.slots());
    }

    /// Takes a slot, and writes to the slot's memory.
    fn take(&self) -> Option<u32> {
        let slot = self.free.take()?;
        self.write(slot);
        Some(slot)
    }

    /// Writes to a slot's memory, and returns the slot.
    fn give_back(&self, slot: u32) {
        self.write(slot);
        self.free.give_back(slot);
    }

    fn write(&self, slot: u32) {
        // SAFETY: the pointer is valid; loom checks that the access is exclusive.
        self.memory[slot as usize].with_mut(|count| unsafe { *count += 1 });
    }

    /// All free slots, when no other thread runs.
    fn rest(&self) -> Vec<u32> {
        let mut rest: Vec<_> = std::iter::from_fn(|| self.take()).collect();
        rest.sort_unstable();
        rest
    }
}

#[test]
fn free_list_hands_slots_between_two_threads() {
    model(|| Slots::exchanged(1));
}

#[test]
fn free_list_reuses_returned_slots() {
    // All interleavings of two rounds take minutes; this bound allows up to two preemptions.
    let mut bounded = Builder::new();
    bounded.preemption_bound = Some(2);
    bounded.check(|| Slots::exchanged(2));
}

#[test]
fn free_list_gives_the_last_slot_to_one_thread() {
    model(|| {
        let slots = Slots::new(1);
        let take = |slots: &Slots| slots.take().is_some();
        let others: Vec<_> = (0..2)
            .map(|_| {
                let slots = Arc::clone(&slots);
                thread::spawn(move || take(&slots))
            })
            .collect();
        let mut taken = usize::from(take(&slots));
        for other in others {
            taken += usize::from(other.join().unwrap());
        }
        assert_eq!(taken, 1);
    });
}

#[test]
fn free_list_detects_a_returned_head() {
    model(|| {
        let slots = Slots::new(3);
        let other = {
            let slots = Arc::clone(&slots);
            // May pause between reading the head and changing the head.
            thread::spawn(move || slots.take().unwrap())
        };
        // Takes the possible head and successor, and returns the head.
        let (a, b) = (slots.take().unwrap(), slots.take().unwrap());
        slots.give_back(a);
        let mut all = vec![b, other.join().unwrap()];
        all.extend(slots.rest());
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
    });
}

#[test]
fn free_list_slot_shows_its_last_owners_writes() {
    model(|| {
        let slots = Slots::new(1);
        let slot = slots.take().unwrap();
        let other = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || slots.give_back(slot))
        };
        let again = slots.take();
        other.join().unwrap();
        if again.is_none() {
            assert_eq!(slots.take(), Some(slot));
        }
    });
}
