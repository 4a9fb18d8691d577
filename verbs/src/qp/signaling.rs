//! Which requests ask for a completion.

use ibverbs_sys as ffi;

use super::unordered::Order;
use crate::wr_id::WrId;

/// How long ago a queue has asked for a completion.
///
/// One that never asks would fill up with requests that never come back. So when half of it has not
/// been signaled, the next request is, whatever the caller says.
///
/// A signaled request costs nothing here: it only leaves behind where the unsignaled ones have ended.
#[derive(Debug)]
pub(super) struct Signaling {
    /// How many requests in a row were posted that were not signaled,
    run: u32,
    /// and the one after them. (If it comes again, 2^24 requests later, one is signaled too early.)
    end: WrId,
    /// One in so many is signaled.
    every: u32,
}

impl Signaling {
    /// For a queue of so many requests, which complete in this order, and of which this is the first.
    pub(super) fn new(first: WrId, limit: u32, order: Order) -> Self {
        let every = match order {
            Order::Posted => limit.div_ceil(2),
            // No other completion brings a request back.
            Order::Any => 1,
        };
        Self {
            run: 0,
            end: first,
            every,
        }
    }

    /// How many requests have been posted since the last signaled one, before this one.
    #[inline]
    pub(super) fn unsignaled(&self, next: WrId) -> u32 {
        if self.end == next { self.run } else { 0 }
    }

    /// The flags of a request that is to have these, after so many that were not signaled; and how
    /// many have not been signaled after it.
    #[inline]
    pub(super) fn flags(
        &self,
        flags: ffi::ibv_send_flags,
        unsignaled: impl FnOnce(&Self) -> u32,
    ) -> (ffi::ibv_send_flags, u32) {
        let signaled = ffi::ibv_send_flags::IBV_SEND_SIGNALED;
        if flags.0 & signaled.0 != 0 {
            return (flags, 0);
        }
        let unsignaled = unsignaled(self) + 1;
        if unsignaled >= self.every {
            (flags | signaled, 0)
        } else {
            (flags, unsignaled)
        }
    }

    /// Notes how many requests have not been signaled before the one that is posted next.
    #[inline]
    pub(super) fn set(&mut self, unsignaled: u32, next: WrId) {
        if unsignaled != 0 || self.end == next {
            self.run = unsignaled;
            self.end = next;
        }
    }

    /// As [`set`](Self::set), when a request has been posted: the next one is another.
    #[inline]
    pub(super) fn posted(&mut self, unsignaled: u32, next: WrId) {
        if unsignaled != 0 {
            self.run = unsignaled;
            self.end = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wr_id::{QpId, QueueId};

    fn queue() -> WrId {
        QueueId::send(QpId::next()).wr_id(0xff_fffe)
    }

    /// Which of so many requests, asked for as unsignaled, are signaled all the same.
    fn signaled(limit: u32, order: Order, requests: usize) -> Vec<usize> {
        let mut next = queue();
        let mut signaling = Signaling::new(next, limit, order);
        let asks =
            |flags: ffi::ibv_send_flags| flags.0 & ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 != 0;
        let is_signaled = |_: &usize| {
            let fenced = ffi::ibv_send_flags::IBV_SEND_FENCE;
            let (flags, unsignaled) = signaling.flags(fenced, |it| it.unsignaled(next));
            next = next.next();
            signaling.posted(unsignaled, next);
            asks(flags)
        };
        (0..requests).filter(is_signaled).collect()
    }

    #[test]
    fn half_a_queue_stays_unsignaled_and_not_more() {
        assert_eq!(signaled(8, Order::Posted, 9), [3, 7]);
        assert_eq!(signaled(5, Order::Posted, 7), [2, 5]);
        assert_eq!(
            signaled(1, Order::Posted, 3),
            [0, 1, 2],
            "nothing else would come back"
        );
        assert_eq!(signaled(2, Order::Posted, 2), [0, 1]);
    }

    #[test]
    fn where_order_is_not_promised_every_request_is_signaled() {
        assert_eq!(signaled(8, Order::Any, 4), [0, 1, 2, 3]);
    }

    #[test]
    fn a_request_that_asks_for_it_begins_the_count_anew() {
        let next = queue();
        let mut signaling = Signaling::new(next, 8, Order::Posted);
        signaling.set(3, next);
        assert_eq!(signaling.unsignaled(next), 3);
        let signaled = ffi::ibv_send_flags::IBV_SEND_SIGNALED;
        let (flags, unsignaled) = signaling.flags(signaled, |it| it.unsignaled(next));
        assert_eq!((flags, unsignaled), (signaled, 0));
        signaling.posted(unsignaled, next.next());
        assert_eq!(signaling.unsignaled(next.next()), 0);
    }

    #[test]
    fn a_count_can_be_taken_back() {
        let next = queue();
        let mut signaling = Signaling::new(next, 8, Order::Posted);
        signaling.posted(1, next.next());
        signaling.set(0, next.next());
        assert_eq!(signaling.unsignaled(next.next()), 0, "reset");
        signaling.posted(2, next.next());
        signaling.set(1, next);
        assert_eq!(signaling.unsignaled(next), 1, "one was not posted");
    }
}
