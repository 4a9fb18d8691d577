//! The work that is in flight on one queue, in the order in which it was posted.

use std::{fmt, mem::MaybeUninit};

use super::unordered::{Order, Unordered};
use crate::wr_id::{MAX_IN_FLIGHT, QpId, QueueId, WrId};

/// A ring of posted work.
///
/// Nearly every device completes the work of one queue in order, so a completion answers for
/// everything posted before it, too: requests that were posted unsignaled, and those whose
/// completion was dropped unread. Where order is not promised, it answers for its own request only.
pub(super) struct InFlight<W> {
    // INVARIANT: `mask + 1` slots, a power of two; those of `head..tail` are initialised, and no
    // others. With books, it is those of the requests that the books have.
    slots: Box<[MaybeUninit<W>]>,
    mask: u32,
    // Of the request that was posted first, of the next one, and of the one that finds no room.
    // INVARIANT: all of one queue, in this order, and `end - head` is at most the number of slots.
    // With books, that holds for the head that they say, and `head` is of another queue, which
    // nothing is ever posted to: so no completion is taken for the first.
    head: WrId,
    tail: WrId,
    end: WrId,
    /// The books, where order is not promised.
    unordered: Option<Box<Unordered>>,
}

/// The place for the next request.
///
/// It is taken before the request is posted, so that there is no way to post one that there is no
/// room for; and the work is put there after that.
pub(super) struct Vacancy<'r, W> {
    // INVARIANT: `tail` is not `end`.
    ring: &'r mut InFlight<W>,
}

/// The place of the request that was posted first.
pub(super) struct First<'r, W> {
    // INVARIANT: `head` is not `tail`, and there are no books.
    ring: &'r mut InFlight<W>,
}

impl<W> InFlight<W> {
    /// Room for `limit` requests, which is at most [`MAX_IN_FLIGHT`], that complete in this order.
    pub(super) fn new(queue: QueueId, limit: u32, order: Order) -> Self {
        assert!(limit <= MAX_IN_FLIGHT, "{limit} requests in flight");
        let slots = limit.max(1).next_power_of_two();
        let first = queue.wr_id(0);
        let (head, unordered) = match order {
            Order::Posted => (first, None),
            Order::Any => {
                let nobody = QueueId::send(QpId::next()).wr_id(0);
                (nobody, Some(Box::new(Unordered::new(first, slots))))
            }
        };
        Self {
            slots: Box::new_uninit_slice(slots as usize),
            mask: slots - 1,
            head,
            tail: first,
            end: first.after(limit),
            unordered,
        }
    }

    pub(super) fn order(&self) -> Order {
        match self.unordered {
            None => Order::Posted,
            Some(_) => Order::Any,
        }
    }

    /// How many requests have been posted and not come back.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        match &self.unordered {
            None => distance(self.head, self.tail),
            Some(books) => books.len(self.tail),
        }
    }

    pub(super) fn limit(&self) -> u32 {
        let head = self.unordered.as_ref().map_or(self.head, |it| it.head());
        distance(head, self.end)
    }

    /// Where the next request goes, if there is room.
    #[inline]
    pub(super) fn vacancy(&mut self) -> Option<Vacancy<'_, W>> {
        if self.tail == self.end {
            return None;
        }
        Some(Vacancy { ring: self })
    }

    /// Takes the work of the request that was posted first, if there is any.
    fn take_first(&mut self) -> Option<W> {
        let first = match &self.unordered {
            Some(books) => books.head(),
            None => self.head,
        };
        self.take(first, drop)
    }

    /// Takes the work of the request with this identifier, if it is in flight. The work of those
    /// before it, which has come back with it where order is promised, is handed to `earlier`.
    #[inline(always)]
    pub(super) fn take(&mut self, id: WrId, earlier: impl FnMut(W)) -> Option<W> {
        // As it is nearly always.
        if id == self.head && id != self.tail {
            return Some(First { ring: self }.take());
        }
        self.take_later(id, earlier)
    }

    /// As [`take`](Self::take), however many requests are before this one.
    #[inline(never)]
    fn take_later(&mut self, id: WrId, mut earlier: impl FnMut(W)) -> Option<W> {
        if self.unordered.is_some() {
            return self.take_unordered(id);
        }
        if id.distance_from(self.head) >= u64::from(self.len()) {
            return None;
        }
        while id != self.head {
            earlier(First { ring: self }.take());
        }
        Some(First { ring: self }.take())
    }

    /// As [`take`](Self::take), of one request among others.
    fn take_unordered(&mut self, id: WrId) -> Option<W> {
        let moved = self.unordered.as_mut()?.complete(id, self.tail)?;
        self.end = self.end.after(moved);
        let slot = self.slot(id);
        // SAFETY: the books had the request, so its slot is initialised (invariant). They do not
        // have it any more, so it counts as uninitialised from here, and the work has one owner.
        Some(unsafe { slot.read() })
    }

    /// Takes everything, in the order in which it was posted.
    pub(super) fn take_all(&mut self) -> Vec<W> {
        std::iter::from_fn(|| self.take_first()).collect()
    }

    /// Takes back the work that was put in last, because it was not posted after all.
    pub(super) fn unpush(&mut self) -> Option<W> {
        let last = self.tail.previous();
        let there = match &self.unordered {
            None => self.head != self.tail,
            Some(books) => books.has(last, self.tail),
        };
        if !there {
            return None;
        }
        self.tail = last;
        // SAFETY: the slot was that of the last request before `tail`, so it is initialised
        // (invariant). With `tail` moved back it counts as uninitialised from here, so the work has
        // one owner.
        Some(unsafe { self.slot(self.tail).read() })
    }

    /// The slot of a request: always inside of the ring.
    #[inline]
    fn slot(&mut self, id: WrId) -> *mut W {
        let index = (id.sequence() & self.mask) as usize;
        self.slots.as_mut_ptr().wrapping_add(index).cast()
    }
}

/// How many requests there are in `first..end`, of one queue.
#[inline]
pub(super) fn distance(first: WrId, end: WrId) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "24 bits, as the queue is the same"
    )]
    let distance = end.distance_from(first) as u32;
    distance
}

impl<W> Vacancy<'_, W> {
    /// The identifier that the request is to be posted with.
    #[inline]
    pub(super) fn id(&self) -> WrId {
        self.ring.tail
    }

    /// Keeps the work of the request, which has been posted.
    #[inline]
    pub(super) fn fill(self, work: W) {
        let slot = self.ring.slot(self.ring.tail);
        // SAFETY: the slot is inside of the ring, which is borrowed exclusively. Since there is
        // room (invariant), it is not one of `head..tail`, so nothing is overwritten.
        unsafe { slot.write(work) };
        self.ring.tail = self.ring.tail.next();
    }
}

impl<W> First<'_, W> {
    /// Takes the work.
    #[inline]
    pub(super) fn take(self) -> W {
        let slot = self.ring.slot(self.ring.head);
        self.ring.head = self.ring.head.next();
        self.ring.end = self.ring.end.next();
        // SAFETY: the slot was that of `head`, before `tail` (invariant), so it is initialised
        // (invariant of the ring). With `head` moved on it counts as uninitialised from here, so
        // the work has one owner.
        unsafe { slot.read() }
    }
}

impl<W> Drop for InFlight<W> {
    fn drop(&mut self) {
        while let Some(work) = self.take_first() {
            drop(work);
        }
    }
}

impl<W> fmt::Debug for InFlight<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight")
            .field("len", &self.len())
            .field("limit", &self.limit())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push<W>(ring: &mut InFlight<W>, work: W) -> WrId {
        let vacancy = ring.vacancy().unwrap();
        let id = vacancy.id();
        vacancy.fill(work);
        id
    }

    fn take<W>(ring: &mut InFlight<W>) -> Option<W> {
        ring.take_first()
    }

    /// A ring that has been in use for so many requests.
    fn used<W>(limit: u32, requests: u32) -> InFlight<W> {
        let mut ring = InFlight::new(QueueId::send(QpId::next()), limit, Order::Posted);
        ring.head = ring.head.after(requests);
        ring.tail = ring.head;
        ring.end = ring.head.after(limit);
        ring
    }

    #[test]
    fn work_comes_back_in_order_over_many_rounds() {
        // The sequence number wraps in between.
        let mut ring = used(5, 0xff_ffff - 7);
        for round in 0..40 {
            let ids: Vec<_> = (0..5).map(|i| push(&mut ring, (round, i))).collect();
            assert!(ring.vacancy().is_none());
            assert_eq!((ring.len(), ring.limit()), (5, 5));
            for (i, id) in ids.into_iter().enumerate() {
                let taken = ring.take(id, |_| panic!("nothing is before it"));
                assert_eq!(taken, Some((round, i)));
                assert!(ring.take(id, drop).is_none(), "completed twice");
            }
        }
    }

    #[test]
    fn work_before_a_completion_is_handed_over() {
        let mut ring = used(8, 0xff_fffd);
        let ids: Vec<_> = (0..6).map(|i| push(&mut ring, i)).collect();
        let mut earlier = Vec::new();
        let taken = ring.take(ids[4], |work| earlier.push(work));
        assert_eq!(taken, Some(4));
        assert_eq!(earlier, [0, 1, 2, 3]);
        assert!(ring.take(ids[2], drop).is_none(), "older than the ring");
        assert_eq!(ring.len(), 1);
    }

    #[test]
    fn work_that_was_not_posted_comes_back_from_the_end() {
        let mut ring = used(4, 0);
        for work in ['a', 'b', 'c'] {
            push(&mut ring, work);
        }
        assert_eq!((ring.unpush(), ring.unpush()), (Some('c'), Some('b')));
        assert_eq!((take(&mut ring), ring.unpush()), (Some('a'), None));
    }

    #[test]
    fn a_completion_of_elsewhere_is_refused() {
        let qp = QpId::next();
        let mut ring = InFlight::new(QueueId::send(qp), 4, Order::Posted);
        let next = QueueId::send(qp).wr_id(0);
        assert!(
            ring.take(next, drop).is_none(),
            "not posted yet, and the ring is empty"
        );
        push(&mut ring, 'a');
        push(&mut ring, 'b');
        for (id, what) in [
            (QueueId::send(qp).wr_id(2), "not posted yet"),
            (QueueId::receive(qp).wr_id(0), "the other queue"),
            (QueueId::send(QpId::next()).wr_id(0), "another pair"),
            (WrId(0), "nobody's"),
        ] {
            let taken = ring.take(id, |_| panic!("{what}"));
            assert!(taken.is_none(), "{what}");
        }
        assert!(ring.take(QueueId::send(qp).wr_id(1), drop).is_some());
    }

    #[test]
    fn dropping_the_ring_drops_what_is_in_flight_once() {
        let token = std::rc::Rc::new(());
        let mut ring = InFlight::new(QueueId::receive(QpId::next()), 8, Order::Posted);
        for _ in 0..6 {
            push(&mut ring, std::rc::Rc::clone(&token));
        }
        drop(take(&mut ring));
        drop(take(&mut ring));
        assert_eq!(std::rc::Rc::strong_count(&token), 5);
        drop(ring);
        assert_eq!(std::rc::Rc::strong_count(&token), 1);
    }
}
