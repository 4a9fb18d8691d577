//! Work request identifiers: given to the device by this crate, and checked on return.
//!
//! C leaves the 64 bits to the caller. Here they hold the queue and the request's position in that
//! queue, so that a completion's work is found without a table, and a completion of another queue
//! is recognised.
//!
//! The sequence number is in the lower bits, and so directly the index into a ring. The bit above
//! takes the carry on wrap-around, and is cleared at once.

use std::{
    process,
    sync::{Mutex, PoisonError},
};

use crate::qp::key;

/// The identity of a queue pair in this process, never reused. Both its queues share one; a shared receive queue and a work
/// queue have one, too.
///
/// The [index](Self::index) finds the program's value for the queue pair of a completion without a search:
/// [`QpMap`](crate::qp::QpMap).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpId(u64);

/// The bits of an identity for its index; the others count the identities with this index.
const INDEX_BITS: u32 = 22;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// The number of indexes.
pub(crate) const INDEXES: usize = 1 << INDEX_BITS;
/// The last identity with an index. Then the index is never used again.
const LAST_GENERATION: u16 = u16::MAX;

impl QpId {
    /// The identity of no queue: its index is never used.
    pub(crate) const NONE: Self = Self((LAST_GENERATION as u64) << INDEX_BITS | INDEX_MASK);

    /// A number of the living identity alone. Maximum: the largest number of queue pairs, shared receive queues and work
    /// queues alive at one time, and one more for each 65,535 resets and destructions. The next identity with the same index
    /// is another one.
    #[inline]
    pub fn index(self) -> usize {
        (self.0 & INDEX_MASK) as usize
    }

    /// The identity as a number other than 0.
    #[inline]
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// The identity of this number; `None` for 0.
    #[inline]
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    fn new(index: u32, generation: u16) -> Self {
        Self(u64::from(generation) << INDEX_BITS | u64::from(index))
    }

    /// An identity for a test.
    #[cfg(test)]
    pub(crate) fn next() -> Self {
        std::mem::ManuallyDrop::new(OwnedQpId::new()).id()
    }
}

/// A living identity. The drop frees its index for another one.
#[derive(Debug)]
pub(crate) struct OwnedQpId(QpId);

impl OwnedQpId {
    /// A new identity.
    ///
    /// # Aborts
    /// The process is aborted at 2^22 queue pairs, and after 2^38 identities: a completion polled late must not name a later
    /// request. At one reset each microsecond, these are three days' worth.
    pub(crate) fn new() -> Self {
        let id = IDENTITIES
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        Self(id.unwrap_or_else(|| process::abort()))
    }

    #[inline]
    pub(crate) fn id(&self) -> QpId {
        self.0
    }
}

impl Drop for OwnedQpId {
    fn drop(&mut self) {
        key::forget(self.0);
        let mut identities = IDENTITIES.lock().unwrap_or_else(PoisonError::into_inner);
        identities.free(self.0);
    }
}

static IDENTITIES: Mutex<Identities> = Mutex::new(Identities {
    generations: Vec::new(),
    free: Vec::new(),
});

/// The indexes of identities.
struct Identities {
    /// The generation of the last identity with each index.
    generations: Vec<u16>,
    free: Vec<u32>,
}

impl Identities {
    /// A new identity; `None` without a free index.
    fn take(&mut self) -> Option<QpId> {
        let Some(index) = self.free.pop() else {
            let index = u32::try_from(self.generations.len()).ok()?;
            if u64::from(index) >= INDEX_MASK {
                return None;
            }
            // Zero is never used: the value in memory that was never written.
            self.generations.push(1);
            return Some(QpId::new(index, 1));
        };
        let generation = self.generations.get_mut(index as usize)?;
        *generation += 1;
        Some(QpId::new(index, *generation))
    }

    /// Frees the index of an identity, unless it was the last one with this index.
    fn free(&mut self, id: QpId) {
        let generation = self.generations.get(id.index());
        if generation.is_some_and(|generation| *generation < LAST_GENERATION) {
            #[expect(clippy::cast_possible_truncation, reason = "22 bits")]
            self.free.push(id.index() as u32);
        }
    }
}

const SEQUENCE_BITS: u32 = 24;
const SEQUENCE_MASK: u64 = (1 << SEQUENCE_BITS) - 1;
/// The number of sequence numbers.
pub(crate) const SEQUENCES: u32 = 1 << SEQUENCE_BITS;
/// Set in no identifier.
const CARRY: u64 = 1 << SEQUENCE_BITS;
const RECEIVE: u64 = CARRY << 1;
const QP_SHIFT: u32 = SEQUENCE_BITS + 2;

/// Maximum number of requests in flight on one queue: half of the sequence numbers.
///
/// No sequence number is reused while a completion with that number can be held. A held completion
/// borrows the completion queue's only poller, so meanwhile only completions of the same poll can
/// be had. Their requests were all posted before the poll, and in flight then, or passed over. So
/// the queue can be emptied once, and filled once: at most twice this number of requests lie
/// between a held completion and the next request. Only a reset empties a queue without
/// completions, and a reset assigns another [`QpId`].
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

    /// The identifier of the request with this sequence number; only the low bits are used.
    #[inline]
    pub(crate) fn wr_id(self, sequence: u32) -> WrId {
        WrId(u64::from(sequence) & SEQUENCE_MASK | self.0)
    }
}

/// A work request identifier, as carried by the device.
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

    #[inline]
    pub(crate) fn sequence(self) -> u32 {
        (self.0 & SEQUENCE_MASK) as u32
    }

    /// The identifier as a machine word, for address arithmetic: differences of identifiers are
    /// distances between slots.
    #[inline]
    pub(crate) fn offset(self) -> usize {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "as differences of addresses are"
        )]
        let offset = self.0 as usize;
        offset
    }

    /// The identifier of the request after this one.
    #[inline]
    pub(crate) fn next(self) -> Self {
        self.after(1)
    }

    /// The identifier of the request before this one.
    #[inline]
    pub(crate) fn previous(self) -> Self {
        // Borrows of the carry, and not of the queue.
        Self((self.0 | CARRY).wrapping_sub(1) & !CARRY)
    }

    /// The identifier `requests` after this one, at most 2^24.
    #[inline]
    pub(crate) fn after(self, requests: u32) -> Self {
        Self(self.0.wrapping_add(u64::from(requests)) & !CARRY)
    }

    /// The distance in requests from `first` to this one, modulo 2^24; 2^24 or more if the request
    /// was posted to another queue.
    #[inline]
    pub(crate) fn distance_from(self, first: Self) -> u64 {
        if self.queue() == first.queue() {
            self.0.wrapping_sub(first.0) & SEQUENCE_MASK
        } else {
            u64::MAX
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wr_id_separates_queue_and_sequence() {
        let (qp, other) = (QpId::next(), QpId::next());
        assert_ne!(qp, other);
        for (queue, receive) in [(QueueId::send(qp), false), (QueueId::receive(qp), true)] {
            for sequence in [0, 1, 0xff_ffff, 0x100_0000, u32::MAX] {
                let id = queue.wr_id(sequence);
                assert_eq!((id.qp(), id.is_receive(), id.queue()), (qp, receive, queue));
                assert_eq!(id.sequence(), sequence & 0xff_ffff);
                assert_eq!(id.distance_from(id), 0);
                assert_eq!(id.distance_from(queue.wr_id(sequence.wrapping_sub(5))), 5);
                assert_eq!(id.distance_from(id.next()), 0xff_ffff);
                assert_eq!(id.after(7).distance_from(id), 7);
                assert_eq!(id.next().previous(), id);
            }
        }
    }

    #[test]
    fn wr_ids_of_different_queues_are_at_least_2_24_apart() {
        let (qp, other) = (QpId::next(), QpId::next());
        let queues = [qp, other].map(|qp| [QueueId::send(qp), QueueId::receive(qp)]);
        let queues = queues.as_flattened();
        for (i, one) in queues.iter().enumerate() {
            for (j, two) in queues.iter().enumerate().filter(|&(j, _)| j != i) {
                let distance = one.wr_id(5).distance_from(two.wr_id(3));
                assert!(
                    distance > u64::from(MAX_IN_FLIGHT),
                    "{i} and {j}: {distance:#x}"
                );
            }
        }
    }

    #[test]
    fn identity_is_not_reused_after_the_last_one() {
        let mut identities = Identities {
            generations: Vec::new(),
            free: Vec::new(),
        };
        let other = identities.take().unwrap();
        let mut id = identities.take().unwrap();
        for _ in 1..LAST_GENERATION {
            identities.free(id);
            let next = identities.take().unwrap();
            assert_eq!(next.index(), id.index(), "the index is free");
            assert!(next > id);
            id = next;
        }
        identities.free(id);
        let next = identities.take().unwrap();
        assert_eq!((other.index(), id.index(), next.index()), (0, 1, 2));
        let wr_id = QueueId::receive(id).wr_id(0xff_ffff);
        assert_eq!(
            (wr_id.qp(), wr_id.is_receive(), wr_id.sequence()),
            (id, true, 0xff_ffff)
        );
    }

    #[test]
    fn identities_end_with_the_indexes() {
        let last = QpId::NONE.index();
        let mut identities = Identities {
            generations: vec![1; last - 1],
            free: Vec::new(),
        };
        let id = identities.take().unwrap();
        assert_eq!(id.index(), last - 1);
        assert_eq!(identities.take(), None);
        let wr_id = QueueId::receive(QpId::NONE).wr_id(0);
        assert_eq!((wr_id.qp(), wr_id.is_receive()), (QpId::NONE, true));
        identities.free(id);
        assert_eq!(identities.take().map(QpId::index), Some(last - 1));
    }

    #[test]
    fn index_of_a_dropped_identity_is_reused() {
        let ids: Vec<_> = (0..4).map(|_| OwnedQpId::new()).collect();
        let freed = ids[1].id();
        let mut living: Vec<_> = ids.iter().map(|it| it.id().index()).collect();
        drop(ids);
        // Other tests take identities at the same time.
        let again: Vec<_> = (0..64).map(|_| OwnedQpId::new()).collect();
        assert!(again.iter().all(|it| it.id() != freed));
        living.retain(|index| again.iter().any(|it| it.id().index() == *index));
        assert!(!living.is_empty(), "no index is used again");
    }

    #[test]
    fn zero_wr_id_matches_no_queue() {
        assert!(QpId::next().0 > 0);
        assert_ne!(WrId(0).queue(), QueueId::send(QpId::next()));
    }
}
