//! Keys of the program on queue pairs.

use std::sync::OnceLock;
#[cfg(not(test))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(test)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};

use super::{pair::QueuePair, state::State, transport::Transport};
use crate::wr_id::{INDEXES, QpId};

/// The caller's name for a queue pair, found by the identity in a completion: [`QpId::key`].
///
/// A key is known before the first message arrives, in every thread; values of a thread are in a
/// [`QpMap`](crate::qp::QpMap).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct QpKey(
    /// Any number.
    pub u64,
);

impl QpId {
    /// The [key](crate::QueuePair::set_key) of the queue pair. `None` if it has none, or lives no more.
    ///
    /// A few reads of a table by the [index](Self::index), without a hash or a lock.
    ///
    /// # Examples
    /// ```
    /// # let (_peer, mut qp, mut cq) = doctest::connected();
    /// # qp.post(verbs::op::Send::new(qp.pd().alloc_buf(5)?))?;
    /// # cq.wait(None)?;
    /// use verbs::qp::QpKey;
    /// qp.set_key(QpKey(42));
    /// for wc in cq.poll()? {
    ///     assert_eq!(wc.qp_id().key(), Some(QpKey(42)));
    /// }
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[inline]
    pub fn key(self) -> Option<QpKey> {
        table().find(self)
    }
}

impl<T: Transport, S: State, SW, RW> QueuePair<T, S, SW, RW> {
    /// Sets the key that [`QpId::key`] returns for completions of this queue pair polled from now on. Other threads find the key
    /// after their next synchronization with this one, such as by a lock or a channel. The first key of 2048 queue pairs
    /// allocates.
    pub fn set_key(&mut self, key: QpKey) {
        set(self.id(), key);
    }
}

/// Indexes of one part of the table.
const PART: usize = 1 << 11;

/// Keys by index, in parts that are allocated for their first key.
struct Keys {
    parts: [OnceLock<Box<[Slot]>>; INDEXES / PART],
}

/// The key of the identity with one index, written by the owner of the identity only. A reader finds both or nothing.
struct Slot {
    /// The identity; 0 for none.
    id: AtomicU64,
    key: AtomicU64,
}

fn table() -> &'static Keys {
    static KEYS: Keys = Keys {
        parts: [const { OnceLock::new() }; INDEXES / PART],
    };
    &KEYS
}

impl Keys {
    #[inline]
    fn find(&self, id: QpId) -> Option<QpKey> {
        self.slot(id)?.find(id)
    }

    #[inline]
    fn slot(&self, id: QpId) -> Option<&Slot> {
        let (part, index) = (id.index() / PART, id.index() % PART);
        self.parts.get(part)?.get()?.get(index)
    }

    fn set(&self, id: QpId, key: QpKey) {
        if let Some(part) = self.parts.get(id.index() / PART) {
            part.get_or_init(|| (0..PART).map(|_| Slot::new()).collect());
        }
        if let Some(slot) = self.slot(id) {
            slot.set(id, key);
        }
    }
}

/// Sets the key of a living identity, whose only owner is the caller.
pub(super) fn set(id: QpId, key: QpKey) {
    table().set(id, key);
}

/// Gives `to` the key of `from`, another identity of its queue pair.
pub(super) fn move_key(from: QpId, to: QpId) {
    if let Some(key) = from.key() {
        set(to, key);
    }
}

/// Forgets the key of an identity at its end.
pub(crate) fn forget(id: QpId) {
    if let Some(slot) = table().slot(id) {
        slot.forget(id);
    }
}

impl Slot {
    fn new() -> Self {
        Self {
            id: AtomicU64::new(0),
            key: AtomicU64::new(0),
        }
    }

    #[inline]
    fn find(&self, id: QpId) -> Option<QpKey> {
        if self.id.load(Ordering::Acquire) != id.number() {
            return None;
        }
        let key = self.key.load(Ordering::Relaxed);
        // Orders the reads: a key written for a later identity is found with the identity gone.
        fence(Ordering::Acquire);
        (self.id.load(Ordering::Relaxed) == id.number()).then_some(QpKey(key))
    }

    fn set(&self, id: QpId, key: QpKey) {
        if self.id.load(Ordering::Relaxed) == id.number() {
            self.key.store(key.0, Ordering::Relaxed);
            return;
        }
        self.id.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.key.store(key.0, Ordering::Relaxed);
        self.id.store(id.number(), Ordering::Release);
    }

    fn forget(&self, id: QpId) {
        if self.id.load(Ordering::Relaxed) == id.number() {
            self.id.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod interleavings {
    use loom::{sync::Arc, thread};

    use super::*;

    fn number(number: u64) -> QpId {
        QpId::from_number(number).unwrap()
    }

    #[test]
    fn key_of_an_identity_is_never_that_of_the_next_one() {
        loom::model(|| {
            let slot = Arc::new(Slot::new());
            slot.set(number(1), QpKey(10));
            let reader = thread::spawn({
                let slot = Arc::clone(&slot);
                move || {
                    assert!([None, Some(QpKey(10))].contains(&slot.find(number(1))));
                    assert!([None, Some(QpKey(20))].contains(&slot.find(number(2))));
                }
            });
            slot.forget(number(1));
            slot.set(number(2), QpKey(20));
            assert_eq!(slot.find(number(2)), Some(QpKey(20)));
            assert_eq!(slot.find(number(1)), None);
            reader.join().unwrap();
        });
    }

    #[test]
    fn changed_key_is_the_old_or_the_new_one() {
        loom::model(|| {
            let slot = Arc::new(Slot::new());
            slot.set(number(1), QpKey(10));
            let reader = thread::spawn({
                let slot = Arc::clone(&slot);
                move || slot.find(number(1))
            });
            slot.set(number(1), QpKey(11));
            slot.forget(number(2));
            assert_eq!(slot.find(number(1)), Some(QpKey(11)));
            let found = reader.join().unwrap();
            assert!(
                found == Some(QpKey(10)) || found == Some(QpKey(11)),
                "{found:?}"
            );
        });
    }
}
