//! Which requests ask for a completion.

use ibverbs_sys as ffi;

use super::unordered::Order;

/// How long ago a queue has asked for a completion.
///
/// One that never asks would fill up with requests that never come back. So when half of it has not
/// been signaled, the next request is, whatever the caller says.
#[derive(Debug)]
pub(super) struct Signaling {
    /// How many requests have been posted since the last signaled one.
    pub(super) unsignaled: u32,
    /// One in so many is signaled.
    every: u32,
}

impl Signaling {
    /// For a queue of so many requests, which complete in this order.
    pub(super) fn new(limit: u32, order: Order) -> Self {
        let every = match order {
            Order::Posted => limit.div_ceil(2),
            // No other completion brings a request back.
            Order::Any => 1,
        };
        Self {
            unsignaled: 0,
            every,
        }
    }

    /// The flags of a request that is to have these, and how many have not been signaled after it.
    #[inline]
    pub(super) fn next(&self, flags: ffi::ibv_send_flags) -> (ffi::ibv_send_flags, u32) {
        let signaled = ffi::ibv_send_flags::IBV_SEND_SIGNALED;
        let unsignaled = self.unsignaled + 1;
        if flags.0 & signaled.0 != 0 || unsignaled >= self.every {
            (flags | signaled, 0)
        } else {
            (flags, unsignaled)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of so many requests, asked for as unsignaled, are signaled all the same.
    fn signaled(limit: u32, order: Order, requests: usize) -> Vec<usize> {
        let mut signaling = Signaling::new(limit, order);
        let asks =
            |flags: ffi::ibv_send_flags| flags.0 & ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 != 0;
        let is_signaled = |_: &usize| {
            let (flags, unsignaled) = signaling.next(ffi::ibv_send_flags::IBV_SEND_FENCE);
            signaling.unsignaled = unsignaled;
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
        let mut signaling = Signaling::new(8, Order::Posted);
        signaling.unsignaled = 3;
        let (flags, unsignaled) = signaling.next(ffi::ibv_send_flags::IBV_SEND_SIGNALED);
        assert_eq!(flags, ffi::ibv_send_flags::IBV_SEND_SIGNALED);
        assert_eq!(unsignaled, 0);
    }
}
