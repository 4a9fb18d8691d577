//! Shared receive queues.

use std::collections::VecDeque;

use super::{ids::PdId, request::RecvRequest};

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct SharedReceiveQueue {
    pub(super) pd: PdId,
    pub(super) max_wr: usize,
    pub(super) max_sge: usize,
    /// Fewer receives than this raise an event, once; 0 disarms.
    pub(super) limit: usize,
    pub(super) receives: VecDeque<RecvRequest>,
    /// Number of queue pairs that receive from here.
    pub(super) users: usize,
}

impl SharedReceiveQueue {
    /// Takes the receive that was posted first, and whether the limit was passed by that.
    pub(super) fn take(&mut self) -> (Option<RecvRequest>, bool) {
        let taken = self.receives.pop_front();
        let below = taken.is_some() && self.receives.len() < self.limit;
        if below {
            self.limit = 0;
        }
        (taken, below)
    }
}
