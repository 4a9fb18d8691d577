//! Shared receive queues.

use std::collections::VecDeque;

use super::{
    ids::{CqId, PdId, XrcdId},
    request::RecvRequest,
};

/// Use of a shared receive queue by extended reliable connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct XrcBinding {
    pub(super) xrcd: XrcdId,
    /// Queue for completions of receives.
    pub(super) cq: CqId,
    /// Number named by senders, 24 bits.
    pub(super) number: u32,
}

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct SharedReceiveQueue {
    pub(super) pd: PdId,
    pub(super) max_wr: usize,
    pub(super) max_sge: usize,
    /// Limit: an event is raised once when fewer receives are left; 0 if not armed.
    pub(super) limit: usize,
    pub(super) receives: VecDeque<RecvRequest>,
    /// Number of receives whose completion has not been polled.
    pub(super) occupied: usize,
    /// Number of queue pairs with this queue.
    pub(super) users: usize,
    /// Domain and completion queue of a queue for extended connections.
    pub(super) xrc: Option<XrcBinding>,
}

impl SharedReceiveQueue {
    /// Takes a receive, 0 the oldest. The flag reports that the limit has been passed.
    pub(super) fn take(&mut self, index: usize) -> (Option<RecvRequest>, bool) {
        let receive = self.receives.remove(index);
        let below = receive.is_some() && self.receives.len() < self.limit;
        if below {
            self.limit = 0;
        }
        (receive, below)
    }
}
