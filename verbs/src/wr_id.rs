//! The work request identifiers that this crate gives to the device, and believes when they come
//! back.
//!
//! C leaves the 64 bits to the caller. Here they say which queue a request was posted to and which
//! request of that queue it was, so that a completion finds its work without a table, and one that
//! belongs elsewhere is recognised.

use std::sync::atomic::{AtomicU64, Ordering};

/// A queue pair of this process, never used twice. Both its queues share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpId(u64);

impl QpId {
    /// A number that no queue pair has had.
    pub(crate) fn next() -> Self {
        // Zero is never used: it is what memory that nobody wrote says. 2^39 queue pairs are more
        // than a process can make: at one each microsecond it would take six days, and a device
        // needs far longer for each.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed) & (u64::MAX >> QP_SHIFT))
    }
}

const SEQUENCE_BITS: u32 = 24;
const QP_SHIFT: u32 = SEQUENCE_BITS + 1;
const RECEIVE: u64 = 1 << SEQUENCE_BITS;
const SEQUENCE_MASK: u64 = RECEIVE - 1;

/// The most requests that a queue can have in flight: sequence numbers must not come round while
/// any completion of a former round can still be held.
pub(crate) const MAX_IN_FLIGHT: u32 = 1 << (SEQUENCE_BITS - 1);

/// One of the two queues of a queue pair: everything of a work request identifier but the sequence
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueId(u64);

impl QueueId {
    pub(crate) fn send(qp: QpId) -> Self {
        Self(qp.0 << QP_SHIFT)
    }

    pub(crate) fn receive(qp: QpId) -> Self {
        Self(qp.0 << QP_SHIFT | RECEIVE)
    }

    /// The identifier of the request with this sequence number, of which the low bits count.
    #[inline]
    pub(crate) fn wr_id(self, sequence: u32) -> WrId {
        WrId(self.0 | (u64::from(sequence) & SEQUENCE_MASK))
    }
}

/// A work request identifier, as it travels through the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrId(pub(crate) u64);

impl WrId {
    #[inline]
    pub(crate) fn qp(self) -> QpId {
        QpId(self.0 >> QP_SHIFT)
    }

    #[inline]
    pub(crate) fn is_receive(self) -> bool {
        self.0 & RECEIVE != 0
    }

    #[inline]
    pub(crate) fn queue(self) -> QueueId {
        QueueId(self.0 & !SEQUENCE_MASK)
    }

    /// How many requests after `head` this one was posted, modulo 2^24.
    #[inline]
    pub(crate) fn distance_from(self, head: u32) -> u32 {
        // The difference of two 24-bit numbers, in 24 bits.
        let head = u64::from(head);
        (self.0.wrapping_sub(head) & SEQUENCE_MASK) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_keep_queue_and_sequence_apart() {
        let (qp, other) = (QpId::next(), QpId::next());
        assert_ne!(qp, other);
        for (queue, receive) in [(QueueId::send(qp), false), (QueueId::receive(qp), true)] {
            for sequence in [0, 1, 0xff_ffff, 0x100_0000, u32::MAX] {
                let id = queue.wr_id(sequence);
                assert_eq!((id.qp(), id.is_receive(), id.queue()), (qp, receive, queue));
                assert_eq!(id.distance_from(sequence), 0);
                assert_eq!(id.distance_from(sequence.wrapping_sub(5)), 5);
                assert_eq!(id.distance_from(sequence.wrapping_add(1)), 0xff_ffff);
            }
        }
    }

    #[test]
    fn an_identifier_that_nobody_wrote_belongs_to_no_queue() {
        assert!(QpId::next().0 > 0);
        assert_ne!(WrId(0).queue(), QueueId::send(QpId::next()));
    }
}
