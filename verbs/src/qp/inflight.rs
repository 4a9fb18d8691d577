//! The work in flight on one queue, in posting order.

use std::{fmt, ptr};

use super::{
    slots::Slots,
    unordered::{Order, Unordered},
};
use crate::wr_id::{MAX_IN_FLIGHT, QpId, QueueId, WrId};

/// A ring of posted work.
///
/// Nearly every device completes the work of one queue in order. Assumption: a completion also
/// covers all earlier requests. They are unsignaled, or their completion was dropped unread. Where
/// order is not guaranteed, a completion covers its own request only.
#[repr(C)]
pub(crate) struct InFlight<W> {
    cursor: Cursor<W>,
    // The oldest request.
    // INVARIANT: of one queue, as is `cursor.tail`, and at most `limit` before the tail. With
    // `unordered`, the statement holds for the head in `unordered`, and `head` is of another queue
    // without any requests: so no completion matches the oldest request.
    head: WrId,
    // INVARIANT: the slots of `head..cursor.tail` are initialised, and no others count as
    // initialised. With `unordered`, the slots of its requests in flight.
    slots: Slots<W>,
    // INVARIANT: at most the number of slots.
    limit: u32,
    /// The books, where order is not promised.
    unordered: Option<Box<Unordered>>,
}

// SAFETY: the slots are this ring's alone.
unsafe impl<W: Send> Send for InFlight<W> {}
// SAFETY: through a shared ring, no slot is reached.
unsafe impl<W: Sync> Sync for InFlight<W> {}

/// Where the next request goes.
///
/// Until `stop` there is nothing to look at: neither how much is in flight, nor where the ring ends.
#[repr(C)]
pub(crate) struct Cursor<W> {
    // The next request.
    pub(crate) tail: WrId,
    // INVARIANT: each request of `tail..stop` has a free slot, at the distance of its identifier
    // from `base`.
    stop: WrId,
    base: *mut W,
}

impl<W> Clone for Cursor<W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Cursor<W> {}

// SAFETY: a cursor is a position in a ring, and may change threads.
unsafe impl<W: Send> Send for Cursor<W> {}
// SAFETY: see above.
unsafe impl<W: Sync> Sync for Cursor<W> {}

/// The place for the next request.
///
/// Taken before the request is posted, so that no request can be posted without room; the work is
/// stored afterwards.
pub(crate) struct Vacancy<'r, W> {
    // INVARIANT: has not stopped.
    cursor: &'r mut Cursor<W>,
    // Read once: after the posting call it would have to be read again.
    // INVARIANT: equal to the cursor's.
    tail: WrId,
}

/// The slot of the oldest request.
struct First<'r, W> {
    // INVARIANT: `head` is not `tail`, and there are no books.
    ring: &'r mut InFlight<W>,
}

impl<W> InFlight<W> {
    /// Room for `limit` requests, at most [`MAX_IN_FLIGHT`], with completions in this order.
    pub(crate) fn new(queue: QueueId, limit: u32, order: Order) -> Self {
        assert!(limit <= MAX_IN_FLIGHT, "{limit} requests in flight");
        let slots = Slots::new(limit);
        let first = queue.wr_id(0);
        let (head, unordered) = match order {
            Order::Posted => (first, None),
            Order::Any => {
                let foreign = QueueId::send(QpId::NONE).wr_id(0);
                (
                    foreign,
                    Some(Box::new(Unordered::new(first, slots.count()))),
                )
            }
        };
        Self {
            cursor: Cursor::stopped(first),
            head,
            slots,
            limit,
            unordered,
        }
    }

    pub(crate) fn order(&self) -> Order {
        match self.unordered {
            None => Order::Posted,
            Some(_) => Order::Any,
        }
    }

    /// The next request to be posted.
    #[inline]
    pub(crate) fn next(&self) -> WrId {
        self.cursor.tail
    }

    /// The oldest request in flight, or the next one.
    fn first(&self) -> WrId {
        match &self.unordered {
            None => self.head,
            Some(books) => books.head(),
        }
    }

    /// The number of requests in flight.
    pub(crate) fn len(&self) -> u32 {
        match &self.unordered {
            None => distance(self.head, self.cursor.tail),
            Some(books) => books.len(self.cursor.tail),
        }
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Where the next request goes, if there is room.
    #[inline]
    pub(crate) fn vacancy(&mut self) -> Option<Vacancy<'_, W>> {
        if self.cursor.is_stopped() {
            self.cursor = self.moved_on(self.cursor.tail)?;
        }
        let tail = self.cursor.tail;
        Some(Vacancy {
            cursor: &mut self.cursor,
            tail,
        })
    }

    /// The cursor, for requests to be [kept](Self::keep) together, or not at all. Until then, the
    /// ring must not change in another way.
    #[inline]
    pub(crate) fn lend(&mut self) -> Cursor<W> {
        let lent = self.cursor;
        // If the cursor is never kept, the content of its slots is forgotten, and the slots are
        // reused.
        self.cursor.stop = lent.tail;
        lent
    }

    /// Counts the requests before this lent cursor as posted.
    #[inline]
    pub(crate) fn keep(&mut self, cursor: Cursor<W>) {
        self.cursor = cursor;
    }

    /// A cursor to continue with after a stop: at the end of the ring, or at requests possibly
    /// completed since; `None` if there is no room.
    #[cold]
    #[inline(never)]
    pub(crate) fn moved_on(&self, tail: WrId) -> Option<Cursor<W>> {
        let free = self.limit - distance(self.first(), tail);
        if free == 0 {
            return None;
        }
        Some(Cursor {
            tail,
            stop: tail.after(free.min(self.slots.to_the_end(tail))),
            base: self.slots.slot(tail).wrapping_sub(tail.offset()),
        })
    }

    /// Takes the work of the oldest request, if there is any.
    fn take_first(&mut self) -> Option<W> {
        self.take(self.first(), drop)
    }

    /// Takes the work of the request with this identifier, if in flight. With guaranteed order,
    /// earlier work is complete, too, and handed to `earlier`.
    #[inline(always)]
    pub(crate) fn take(&mut self, id: WrId, earlier: impl FnMut(W)) -> Option<W> {
        // The usual case.
        if let Some(work) = self.take_next(id) {
            return Some(work);
        }
        self.take_later(id, earlier)
    }

    /// Takes the work of the request with this identifier, if the oldest.
    #[inline(always)]
    pub(crate) fn take_next(&mut self, id: WrId) -> Option<W> {
        if id == self.head && id != self.cursor.tail {
            Some(First { ring: self }.take())
        } else {
            None
        }
    }

    /// As [`take`](Self::take), however many requests are before this one.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_later(&mut self, id: WrId, mut earlier: impl FnMut(W)) -> Option<W> {
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
        if !self.unordered.as_mut()?.complete(id, self.cursor.tail) {
            return None;
        }
        let slot = self.slots.slot(id);
        // SAFETY: the request was in flight, so its slot is initialised (invariant). The request is
        // not in flight any more, so the slot counts as uninitialised from here, and the work has
        // one owner.
        Some(unsafe { slot.read() })
    }

    /// Takes all work, in posting order.
    pub(crate) fn take_all(&mut self) -> Vec<W> {
        std::iter::from_fn(|| self.take_first()).collect()
    }

    /// Takes all work, as [`take_all`](Self::take_all) does, and continues as another queue, so
    /// that no completion of an earlier request names a later one, regardless of the number of
    /// later requests.
    pub(crate) fn restart(&mut self, queue: QueueId) -> Vec<W> {
        let all = self.take_all();
        let first = queue.wr_id(0);
        self.cursor = Cursor::stopped(first);
        match &mut self.unordered {
            None => self.head = first,
            Some(books) => **books = Unordered::new(first, self.slots.count()),
        }
        all
    }

    /// Takes back the last work, because its request was not posted after all.
    pub(crate) fn unpush(&mut self) -> Option<W> {
        let last = self.cursor.tail.previous();
        let is_in_flight = match &self.unordered {
            None => self.head != self.cursor.tail,
            Some(books) => books.has(last, self.cursor.tail),
        };
        if !is_in_flight {
            return None;
        }
        // The slot may be on the other side of the ring's end.
        self.cursor = Cursor::stopped(last);
        // SAFETY: the slot belonged to the last request before `tail`, so it is initialised
        // (invariant). With `tail` moved back, the slot counts as uninitialised from here, so the
        // work has one owner.
        Some(unsafe { self.slots.slot(last).read() })
    }
}

/// The number of requests in `first..end`, of one queue.
#[inline]
pub(crate) fn distance(first: WrId, end: WrId) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "24 bits, as the queue is the same"
    )]
    let distance = end.distance_from(first) as u32;
    distance
}

impl<W> Cursor<W> {
    /// A cursor not known to have room.
    pub(crate) fn stopped(tail: WrId) -> Self {
        Self {
            tail,
            stop: tail,
            base: ptr::null_mut(),
        }
    }

    /// Whether room for one more request is not known.
    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.tail == self.stop
    }

    /// Keeps the work of the request at `tail`.
    ///
    /// # Safety
    /// - `tail` is the cursor's, and the cursor has not [stopped](Self::is_stopped). The cursor is
    ///   a ring's, or was lent by a ring unchanged since.
    #[inline]
    pub(crate) unsafe fn put(&mut self, tail: WrId, work: W) {
        let slot = self.base.wrapping_add(tail.offset());
        // SAFETY: the slot is inside of the ring and not in use (invariant), since `tail` is before
        // `stop`. The ring is borrowed exclusively, or has lent the cursor.
        unsafe { slot.write(work) };
        self.tail = tail.next();
    }
}

impl<W> Vacancy<'_, W> {
    /// The identifier for posting the request.
    #[inline]
    pub(crate) fn id(&self) -> WrId {
        self.tail
    }

    /// Stores the work of the posted request.
    #[inline]
    pub(crate) fn fill(self, work: W) {
        // SAFETY: the cursor is a ring's, and has not stopped, and the tail is its own
        // (invariants).
        unsafe { self.cursor.put(self.tail, work) };
    }
}

impl<W> First<'_, W> {
    /// Takes the work.
    #[inline]
    fn take(self) -> W {
        let slot = self.ring.slots.slot(self.ring.head);
        self.ring.head = self.ring.head.next();
        // The work returns to the program. Assumption: a completion ends the device's access to the memory of its
        // request.
        // SAFETY: the slot belonged to `head`, before `tail` (invariant), so it is initialised
        // (invariant of the ring). With `head` moved on, the slot counts as uninitialised from
        // here, so the work has one owner.
        unsafe { slot.read() }
    }
}

impl<W> Drop for InFlight<W> {
    fn drop(&mut self) {
        // A list drops the rest, too, when the drop of one work panics.
        drop(self.take_all());
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
impl<W> InFlight<W> {
    /// Offset of the first byte that neither a post nor a completion in order touches.
    pub(crate) const HOT_END: usize = std::mem::offset_of!(Self, slots) + size_of::<usize>();
}

#[cfg(test)]
#[path = "inflight_model.rs"]
mod model;

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

    /// A ring after `requests` requests.
    fn used<W>(limit: u32, requests: u32) -> InFlight<W> {
        let mut ring = InFlight::new(QueueId::send(QpId::next()), limit, Order::Posted);
        ring.head = ring.head.after(requests);
        ring.cursor.tail = ring.head;
        ring.cursor.stop = ring.head;
        ring
    }

    #[test]
    fn ring_returns_work_in_order_over_many_rounds() {
        // The sequence number wraps in between.
        let mut ring = used(5, 0xff_ffff - 7);
        for round in 0..40 {
            let ids: Vec<_> = (0..5).map(|i| push(&mut ring, (round, i))).collect();
            assert!(ring.vacancy().is_none());
            assert_eq!((ring.len(), ring.limit()), (5, 5));
            for (i, id) in ids.into_iter().enumerate() {
                let work = ring.take(id, |_| panic!("nothing is before it"));
                assert_eq!(work, Some((round, i)));
                assert!(ring.take(id, drop).is_none(), "completed twice");
            }
        }
    }

    #[test]
    fn ring_hands_over_work_before_a_completion() {
        let mut ring = used(8, 0xff_fffd);
        let ids: Vec<_> = (0..6).map(|i| push(&mut ring, i)).collect();
        let mut earlier = Vec::new();
        let work = ring.take(ids[4], |work| earlier.push(work));
        assert_eq!(work, Some(4));
        assert_eq!(earlier, [0, 1, 2, 3]);
        assert!(ring.take(ids[2], drop).is_none(), "older than the ring");
        assert_eq!(ring.len(), 1);
    }

    #[test]
    fn ring_unpush_returns_the_last_work() {
        let mut ring = used(4, 0);
        for work in ['a', 'b', 'c'] {
            push(&mut ring, work);
        }
        assert_eq!((ring.unpush(), ring.unpush()), (Some('c'), Some('b')));
        assert_eq!((take(&mut ring), ring.unpush()), (Some('a'), None));
    }

    #[test]
    fn ring_refuses_a_foreign_completion() {
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
            (WrId(0), "unknown"),
        ] {
            let work = ring.take(id, |_| panic!("{what}"));
            assert!(work.is_none(), "{what}");
        }
        assert!(ring.take(QueueId::send(qp).wr_id(1), drop).is_some());
    }

    #[test]
    fn ring_drop_drops_each_work_once() {
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
