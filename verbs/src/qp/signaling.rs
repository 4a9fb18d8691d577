//! Selection of the requests to signal.

use ibverbs_sys as ffi;

use super::unordered::Order;
use crate::wr_id::WrId;

/// The distance to a queue's last signaled request.
///
/// Without any signaled request, the queue would fill up and stay full. So after unsignaled requests on
/// half of the queue, the next request is signaled, regardless of the caller's choice.
///
/// A signaled request costs nothing here: its end position becomes stale by itself.
#[derive(Debug)]
pub(super) struct Signaling {
    /// The number of consecutive unsignaled requests,
    run: u32,
    /// and the request after them. (After 2^24 requests the position repeats, and one request is
    /// signaled too early.)
    end: WrId,
    /// One request in `every` is signaled.
    every: u32,
}

impl Signaling {
    /// For a queue of `limit` requests, starting with `first`, with completions in this order.
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

    /// The number of requests posted since the last signaled one, before `next`.
    #[inline]
    pub(super) fn unsignaled(&self, next: WrId) -> u32 {
        if self.end == next { self.run } else { 0 }
    }

    /// The flags of a request with the caller's `flags`, after `unsignaled` unsignaled requests;
    /// and the number of unsignaled requests after this one.
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

    /// Records the number of unsignaled requests before `next`.
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

    /// The indexes of signaled requests among `requests` unsignaled ones.
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
    fn signaling_leaves_at_most_half_a_queue_unsignaled() {
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
    fn signaling_without_order_signals_every_request() {
        assert_eq!(signaled(8, Order::Any, 4), [0, 1, 2, 3]);
    }

    #[test]
    fn signaling_restarts_at_a_signaled_request() {
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
    fn signaling_count_can_be_restored() {
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
