//! The free list, and the handles of a frozen buffer, under every interleaving of a few threads, and
//! every permitted order of their memory accesses: loom tries all.

use loom::{cell::UnsafeCell, model, model::Builder, sync::Arc, thread};

use free_list::FreeList;
use frozen::Frozen;

/// The atomics of the free list under loom.
mod atomic {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}
#[expect(clippy::duplicate_mod, reason = "over other atomics")]
#[path = "free_list.rs"]
mod free_list;

/// A reference count under loom, by the algorithm of [`std::sync::Arc`].
mod count {
    use std::{cell::UnsafeCell, mem::ManuallyDrop, ops::Deref};

    use loom::sync::{
        self,
        atomic::{AtomicUsize, Ordering},
    };

    struct Counted<T> {
        handles: AtomicUsize,
        value: UnsafeCell<ManuallyDrop<T>>,
    }

    // SAFETY: the value is shared, and taken by the last handle only.
    unsafe impl<T: Send + Sync> Sync for Counted<T> {}

    pub(super) struct Arc<T>(Option<sync::Arc<Counted<T>>>);

    impl<T> Arc<T> {
        pub(super) fn new(value: T) -> Self {
            Self(Some(sync::Arc::new(Counted {
                handles: AtomicUsize::new(1),
                value: UnsafeCell::new(ManuallyDrop::new(value)),
            })))
        }

        pub(super) fn into_inner(mut this: Self) -> Option<T> {
            this.release()
        }

        fn release(&mut self) -> Option<T> {
            let counted = self.0.take()?;
            if counted.handles.fetch_sub(1, Ordering::AcqRel) > 1 {
                return None;
            }
            // SAFETY: no other handle exists, and none will.
            let value = unsafe { &mut *counted.value.get() };
            // SAFETY: once, by the last handle.
            Some(unsafe { ManuallyDrop::take(value) })
        }
    }

    impl<T> Clone for Arc<T> {
        fn clone(&self) -> Self {
            let counted = self.0.clone();
            if let Some(counted) = &counted {
                counted.handles.fetch_add(1, Ordering::Relaxed);
            }
            Self(counted)
        }
    }

    impl<T> Deref for Arc<T> {
        type Target = T;

        fn deref(&self) -> &T {
            let counted = self.0.as_ref().unwrap();
            // SAFETY: shared while a handle exists.
            unsafe { &*counted.value.get() }
        }
    }

    impl<T> Drop for Arc<T> {
        fn drop(&mut self) {
            drop(self.release());
        }
    }
}
#[expect(clippy::duplicate_mod, reason = "over another count")]
#[path = "frozen.rs"]
mod frozen;

/// Slots with memory under loom's watch: two concurrent owners of a slot fail the test, and so does
/// an owner that does not see the last owner's writes.
struct FreeSlots {
    free: FreeList,
    memory: Vec<UnsafeCell<u32>>,
}

impl FreeSlots {
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

    fn read(&self, slot: u32) {
        // SAFETY: the pointer is valid; loom checks that there is no concurrent write.
        self.memory[slot as usize].with(|count| unsafe { *count });
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
    model(|| FreeSlots::exchanged(1));
}

#[test]
fn free_list_reuses_returned_slots() {
    // All interleavings of two rounds take minutes; this bound allows up to two preemptions.
    let mut bounded = Builder::new();
    bounded.preemption_bound = Some(2);
    bounded.check(|| FreeSlots::exchanged(2));
}

#[test]
fn free_list_gives_the_last_slot_to_one_thread() {
    model(|| {
        let slots = FreeSlots::new(1);
        let take = |slots: &FreeSlots| slots.take().is_some();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let slots = Arc::clone(&slots);
                thread::spawn(move || take(&slots))
            })
            .collect();
        let mut successes = usize::from(take(&slots));
        for other in threads {
            successes += usize::from(other.join().unwrap());
        }
        assert_eq!(successes, 1);
    });
}

/// Two owners read a shared slot and give it up, while a third thread takes from the list: whose head may be the number of
/// owners of the taken slot.
#[test]
fn last_owner_of_a_shared_slot_returns_it() {
    model(|| {
        let slots = FreeSlots::new(2);
        let shared = slots.take().expect("none is out yet");
        slots.free.begin_sharing(shared);
        slots.free.add_share(shared);
        let give_up = move |slots: &FreeSlots| {
            slots.read(shared);
            let is_last = slots.free.end_share(shared);
            if is_last {
                slots.give_back(shared);
            }
            is_last
        };
        let [owner, taker] = [0, 1].map(|role| {
            let slots = Arc::clone(&slots);
            thread::spawn(move || match role {
                0 => give_up(&slots),
                _ => slots.take().is_some(),
            })
        });
        let last = [give_up(&slots), owner.join().unwrap()];
        assert_ne!(last[0], last[1], "one of two owners is the last");
        assert!(taker.join().unwrap(), "another slot is free");
        assert_eq!(slots.rest().len(), 1);
    });
}

#[test]
fn free_list_detects_a_returned_head() {
    model(|| {
        let slots = FreeSlots::new(3);
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
        let slots = FreeSlots::new(1);
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

#[test]
fn one_of_the_last_owners_thaws_a_frozen_buffer() {
    model(|| {
        let mine = Frozen::new(7);
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let other = mine.clone();
                thread::spawn(move || {
                    assert_eq!(*other, 7);
                    other.thaw()
                })
            })
            .collect();
        let mut thawed: Vec<i32> = mine.thaw().into_iter().collect();
        thawed.extend(
            threads
                .into_iter()
                .filter_map(|other| other.join().unwrap()),
        );
        assert_eq!(thawed, [7]);
    });
}

#[test]
fn dropped_handle_leaves_the_value_to_the_owner_that_thaws() {
    model(|| {
        let mine = Frozen::new(7);
        let other = mine.clone();
        let dropped = thread::spawn(move || drop(other));
        let early = mine.clone().thaw();
        dropped.join().unwrap();
        assert_eq!((early, mine.thaw()), (None, Some(7)));
    });
}
