//! The books of a queue whose requests complete in any order.

use ibverbs_sys::ibv_transport_type as transport;

use super::inflight::distance;
use crate::{context::Context, wr_id::WrId};

/// Whether a completion covers all earlier requests of the same queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// In posting order: covers all earlier requests.
    Posted,
    /// In any order: covers its own request only.
    Any,
}

impl Order {
    /// The order of a send queue: guaranteed on InfiniBand and RoCE.
    ///
    /// On iWARP the responses to reads arrive at any time. Soft-iWARP completes a send as soon as
    /// TCP has accepted the data, and an earlier read only when its data have arrived and been
    /// written.
    pub(crate) fn of_sends(ctx: &Context) -> Self {
        match ctx.transport_type() {
            transport::IBV_TRANSPORT_IB => Self::Posted,
            _ => Self::Any,
        }
    }

    /// The order of a receive queue. On iWARP messages arrive in order, too.
    pub(crate) fn of_receives(ctx: &Context) -> Self {
        match ctx.transport_type() {
            transport::IBV_TRANSPORT_IB | transport::IBV_TRANSPORT_IWARP => Self::Posted,
            _ => Self::Any,
        }
    }
}

/// The completed requests of a ring.
///
/// A request completed before an earlier one leaves a hole, reused when everything before has
/// completed, too.
pub(super) struct Unordered {
    // INVARIANT: the oldest incomplete request, or the tail of the ring.
    head: WrId,
    // INVARIANT: for each slot of the ring, a power of two, whether the slot is a hole. Only slots
    // between `head` and the tail of the ring are.
    holes: Box<[bool]>,
    /// The number of holes.
    count: u32,
}

impl Unordered {
    /// The state of an empty ring of `slots` slots, a power of two, with `head` as the next
    /// request.
    pub(super) fn new(head: WrId, slots: u32) -> Self {
        Self {
            head,
            holes: vec![false; slots as usize].into(),
            count: 0,
        }
    }

    /// The oldest incomplete request, or the tail of the ring.
    pub(super) fn head(&self) -> WrId {
        self.head
    }

    /// The number of requests in flight.
    pub(super) fn len(&self, tail: WrId) -> u32 {
        distance(self.head, tail) - self.count
    }

    /// Whether a request has been posted and not come back.
    pub(super) fn has(&self, id: WrId, tail: WrId) -> bool {
        id.distance_from(self.head) < u64::from(distance(self.head, tail))
            && !self.holes[self.slot(id)]
    }

    /// Records a completed request; returns whether the request was in flight.
    pub(super) fn complete(&mut self, id: WrId, tail: WrId) -> bool {
        if !self.has(id, tail) {
            return false;
        }
        self.set_hole(id, true);
        while self.head != tail && self.holes[self.slot(self.head)] {
            self.set_hole(self.head, false);
            self.head = self.head.next();
        }
        true
    }

    fn set_hole(&mut self, id: WrId, hole: bool) {
        let slot = self.slot(id);
        self.holes[slot] = hole;
        if hole {
            self.count += 1;
        } else {
            self.count -= 1;
        }
    }

    fn slot(&self, id: WrId) -> usize {
        id.sequence() as usize & (self.holes.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        qp::inflight::InFlight,
        wr_id::{QpId, QueueId},
    };

    /// The state with requests in flight, the first of them just before the sequence number wraps.
    fn books(slots: u32, requests: u32) -> (Unordered, Vec<WrId>, WrId) {
        let head = QueueId::send(QpId::next()).wr_id(0xff_ffff);
        let ids = (0..requests).map(|i| head.after(i)).collect();
        (Unordered::new(head, slots), ids, head.after(requests))
    }

    #[test]
    fn unordered_head_moves_over_holes() {
        let (mut books, ids, tail) = books(4, 4);
        assert!(books.complete(ids[1], tail) && books.complete(ids[2], tail));
        assert_eq!((books.head(), books.len(tail)), (ids[0], 2));
        assert!(books.complete(ids[0], tail));
        assert_eq!((books.head(), books.len(tail)), (ids[3], 1));
        assert!(books.complete(ids[3], tail));
        assert_eq!((books.head(), books.len(tail)), (tail, 0));
    }

    #[test]
    fn unordered_ring_refuses_requests_not_in_flight() {
        let (mut books, ids, tail) = books(8, 3);
        assert!(books.complete(ids[1], tail));
        let of_other_queue = QueueId::send(QpId::next()).wr_id(0xff_ffff);
        for id in [ids[1], ids[0].previous(), tail, WrId(0), of_other_queue] {
            assert!(!books.has(id, tail), "{id:?}");
            assert!(!books.complete(id, tail), "{id:?}");
        }
        assert_eq!(books.len(tail), 2);
    }

    #[test]
    fn unordered_ring_returns_one_request_per_completion() {
        let token = std::rc::Rc::new(());
        let queue = QueueId::send(QpId::next());
        let mut ring = InFlight::new(queue, 3, Order::Any);
        for round in 0..20 {
            let post = |ring: &mut InFlight<_>| {
                let vacancy = ring.vacancy()?;
                let id = vacancy.id();
                vacancy.fill((id, std::rc::Rc::clone(&token)));
                Some(id)
            };
            let ids = [(); 3].map(|()| post(&mut ring).unwrap());
            assert!(post(&mut ring).is_none());
            for (i, in_flight) in [(1, 2), (2, 1), (0, 0)] {
                let work = ring.take(ids[i], |_| panic!("another one"));
                assert_eq!(work.unwrap().0, ids[i], "round {round}");
                assert_eq!((ring.len(), ring.limit()), (in_flight, 3));
                assert_eq!(
                    post(&mut ring).is_some(),
                    i == 0,
                    "room only from the head on"
                );
            }
            let (last, _) = ring.unpush().unwrap();
            assert_eq!(last, ids[2].next());
            assert!(ring.unpush().is_none());
        }
        assert_eq!(std::rc::Rc::strong_count(&token), 1);
    }

    #[test]
    fn unordered_ring_take_all_skips_holes() {
        for removed_bits in 0..32_u32 {
            let token = std::rc::Rc::new(());
            let mut ring = InFlight::new(QueueId::send(QpId::next()), 5, Order::Any);
            let mut ids = Vec::new();
            while let Some(vacancy) = ring.vacancy() {
                ids.push(vacancy.id());
                vacancy.fill((ids.len(), std::rc::Rc::clone(&token)));
            }
            let is_taken = |i: usize| removed_bits & 1 << i != 0;
            for i in (0..5).rev().filter(|&i| is_taken(i)) {
                assert_eq!(ring.take(ids[i], drop).unwrap().0, i + 1);
            }
            let remaining: Vec<_> = (0..5).filter(|&i| !is_taken(i)).map(|i| i + 1).collect();
            assert_eq!(std::rc::Rc::strong_count(&token), 1 + remaining.len());
            if removed_bits % 2 == 0 {
                let all = ring.take_all();
                assert!(all.iter().map(|(number, _)| *number).eq(remaining));
                assert_eq!(ring.len(), 0);
            }
            drop(ring);
            assert_eq!(std::rc::Rc::strong_count(&token), 1);
        }
    }
}
