//! The number of a queue pair, and its name at a shared receive queue.

use std::sync::atomic::{AtomicU32, Ordering};

use super::queues::Inner;
use crate::{bounded::QpNum, wr_id::QpId};

impl<SW, RW> Inner<SW, RW> {
    pub(super) fn qp_num(&self) -> QpNum {
        // SAFETY: the queue pair is created (invariant); no reference to the field is made.
        let number = unsafe { &raw mut (*self.raw.as_ptr()).qp_num };
        // SAFETY: aligned. C writes the number of a vendor's queue pair in the transition to RTR, as a whole.
        let number = unsafe { AtomicU32::from_ptr(number) };
        QpNum::from_low_bits(number.load(Ordering::Relaxed))
    }

    /// Names the queue pair to its shared receive queue, if any, by its identity.
    pub(super) fn name_receiver(&self, id: QpId) {
        if let Some((srq, _)) = &self.shared {
            srq.receivers().add(self.qp_num(), id);
        }
    }

    /// Names the queue pair by its number, if that is another than `before`: a dynamically connected target has a number from RTR
    /// on.
    pub(super) fn rename_receiver(&self, before: QpNum, id: QpId) {
        if let Some((srq, _)) = &self.shared
            && before != self.qp_num()
        {
            srq.receivers().remove(before);
            self.name_receiver(id);
        }
    }
}
