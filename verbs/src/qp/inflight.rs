//! The work that is in flight on one queue, in the order in which it was posted.

use std::{fmt, mem::MaybeUninit};

use crate::wr_id::{MAX_IN_FLIGHT, QueueId, WrId};

/// A ring of posted work.
///
/// The device completes the work of one queue in order, so a completion answers for everything
/// posted before it, too: requests that were posted unsignaled, and those whose completion was
/// dropped unread.
pub(super) struct InFlight<W> {
    // INVARIANT: the slots of the sequence numbers `head..tail` are initialised, and no others. A
    // power of two of them.
    slots: Box<[MaybeUninit<W>]>,
    queue: QueueId,
    /// At most so many are in flight; not more than there are slots.
    limit: u32,
    // Sequence numbers, counting up and wrapping. INVARIANT: `tail - head <= limit`.
    head: u32,
    tail: u32,
}

impl<W> InFlight<W> {
    /// Room for `limit` requests, which is at most [`MAX_IN_FLIGHT`].
    pub(super) fn new(queue: QueueId, limit: u32) -> Self {
        debug_assert!(limit <= MAX_IN_FLIGHT);
        let slots = limit.max(1).next_power_of_two() as usize;
        Self {
            slots: Box::new_uninit_slice(slots),
            queue,
            limit,
            head: 0,
            tail: 0,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// The identifier that the next request is to be posted with.
    #[inline]
    pub(super) fn next_id(&self) -> WrId {
        self.queue.wr_id(self.tail)
    }

    /// Keeps the work that has just been posted with [`next_id`](Self::next_id). There must be
    /// room.
    #[inline]
    pub(super) fn push(&mut self, work: W) {
        debug_assert!(!self.is_full());
        let slot = self.slot(self.tail);
        self.slots[slot].write(work);
        self.tail = self.tail.wrapping_add(1);
    }

    /// How many requests were posted before the one with this identifier and are still in flight;
    /// `None` if it is not in flight itself.
    #[inline]
    pub(super) fn position(&self, id: WrId) -> Option<u32> {
        let ahead = id.distance_from(self.head);
        (id.queue() == self.queue && ahead < self.len()).then_some(ahead)
    }

    /// Takes the work that was posted first.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<W> {
        if self.head == self.tail {
            return None;
        }
        let slot = self.slot(self.head);
        self.head = self.head.wrapping_add(1);
        // SAFETY: the slot was that of `head`, before `tail`, so it is initialised (invariant).
        // With `head` moved on, it counts as uninitialised from here, so the work has one owner.
        Some(unsafe { self.slots[slot].assume_init_read() })
    }

    /// Takes everything, in the order in which it was posted.
    pub(super) fn take_all(&mut self) -> Vec<W> {
        std::iter::from_fn(|| self.pop()).collect()
    }

    /// Takes back the work that was pushed last, because it was not posted after all.
    pub(super) fn unpush(&mut self) -> Option<W> {
        if self.head == self.tail {
            return None;
        }
        self.tail = self.tail.wrapping_sub(1);
        let slot = self.slot(self.tail);
        // SAFETY: the slot was that of the last sequence number before `tail`, so it is initialised
        // (invariant). With `tail` moved back, it counts as uninitialised from here, so the work
        // has one owner.
        Some(unsafe { self.slots[slot].assume_init_read() })
    }

    #[inline]
    fn slot(&self, sequence: u32) -> usize {
        sequence as usize & (self.slots.len() - 1)
    }
}

impl<W> Drop for InFlight<W> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

impl<W> fmt::Debug for InFlight<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight")
            .field("len", &self.len())
            .field("limit", &self.limit)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wr_id::QpId;

    #[test]
    fn work_comes_back_in_order_over_many_rounds() {
        let mut ring = InFlight::new(QueueId::send(QpId::next()), 5);
        ring.head = u32::MAX - 7;
        ring.tail = ring.head;
        for round in 0..40 {
            let ids: Vec<_> = (0..5)
                .map(|i| {
                    let id = ring.next_id();
                    ring.push((round, i));
                    id
                })
                .collect();
            assert!(ring.is_full());
            for (i, id) in ids.into_iter().enumerate() {
                assert_eq!(ring.position(id), Some(0));
                assert_eq!(ring.pop(), Some((round, i)));
                assert_eq!(ring.position(id), None, "completed twice");
            }
        }
    }

    #[test]
    fn a_completion_of_elsewhere_is_refused() {
        let qp = QpId::next();
        let mut ring = InFlight::new(QueueId::send(qp), 4);
        ring.push('a');
        ring.push('b');
        assert_eq!(ring.position(QueueId::send(qp).wr_id(1)), Some(1));
        assert_eq!(
            ring.position(QueueId::send(qp).wr_id(2)),
            None,
            "not posted yet"
        );
        assert_eq!(
            ring.position(QueueId::receive(qp).wr_id(0)),
            None,
            "the other queue"
        );
        assert_eq!(
            ring.position(QueueId::send(QpId::next()).wr_id(0)),
            None,
            "another pair"
        );
        assert_eq!(ring.position(WrId(0)), None, "nobody's");
    }

    #[test]
    fn dropping_the_ring_drops_what_is_in_flight_once() {
        let token = std::rc::Rc::new(());
        let mut ring = InFlight::new(QueueId::receive(QpId::next()), 8);
        for _ in 0..6 {
            ring.push(std::rc::Rc::clone(&token));
        }
        drop(ring.pop());
        drop(ring.pop());
        assert_eq!(std::rc::Rc::strong_count(&token), 5);
        drop(ring);
        assert_eq!(std::rc::Rc::strong_count(&token), 1);
    }
}
