//! Messages that the library copies when their completions are polled, as mlx5's does with short ones.
//!
//! It finds the receive by the number of its queue, and looks at no key. A queue that was destroyed is not found any more;
//! one that could not be destroyed is.

use ibverbs_sys as ffi;

use super::{post::PostedReceive, state::State};

/// A message that has arrived, and is copied when its completion is polled.
pub(super) struct Copied {
    /// The queue pair, shared receive queue or work queue.
    owner: usize,
    sges: Vec<ffi::ibv_sge>,
    message: Vec<u8>,
}

impl State {
    /// Delivers a message, both now and when its completion is polled. Returns the status of the completion.
    pub(super) fn deliver_to(
        &mut self,
        owner: usize,
        cq: usize,
        posted: &PostedReceive,
        message: &[u8],
    ) -> ffi::ibv_wc_status {
        let status = self.deliver(&posted.sges, message);
        if status == ffi::ibv_wc_status::IBV_WC_SUCCESS {
            let (sges, message) = (posted.sges.clone(), message.to_vec());
            let copied = Copied {
                owner,
                sges,
                message,
            };
            self.cq_mut(cq).copies.insert(posted.wr_id, copied);
        }
        status
    }

    /// Copies the message of a completion that is polled, and complains if its memory is not there any more.
    pub(super) fn copy_polled(&mut self, cq: usize, wr_id: u64) {
        let Some(copied) = self.cq_mut(cq).copies.remove(&wr_id) else {
            return;
        };
        let owner = copied.owner;
        let known = self.qps.contains_key(&owner)
            || self.srqs.contains_key(&owner)
            || self.wqs.contains_key(&owner);
        if known
            && self.deliver(&copied.sges, &copied.message) != ffi::ibv_wc_status::IBV_WC_SUCCESS
        {
            self.complain("a poll copied a message to memory that was given back".to_owned());
        }
    }
}
