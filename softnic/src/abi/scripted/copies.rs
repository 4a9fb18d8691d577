//! Messages copied by the library when their completions are polled, as mlx5's library does with
//! short ones.
//!
//! The library finds the receive by its queue's number, and checks no key. A destroyed queue is
//! unknown to the library; a queue whose destruction failed is still known.

use ibverbs_sys as ffi;

use super::{post::PostedReceive, state::State};

/// A received message, copied when its completion is polled.
pub(super) struct Copied {
    /// The queue pair, shared receive queue or work queue.
    owner: usize,
    sges: Vec<ffi::ibv_sge>,
    message: Vec<u8>,
}

impl State {
    /// Delivers a message, both now and at the poll of its completion. Returns the status of the
    /// completion.
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

    /// Drops the copies for a queue pair that is reset: its library removes the completions.
    pub(super) fn forget_copies(&mut self, owner: usize) {
        for cq in self.cqs.values_mut() {
            cq.copies.retain(|_, copied| copied.owner != owner);
        }
    }

    /// Copies the message of a polled completion, and complains if the memory is gone.
    pub(super) fn copy_polled(&mut self, cq: usize, wr_id: u64) {
        let Some(copied) = self.cq_mut(cq).copies.remove(&wr_id) else {
            return;
        };
        let owner = copied.owner;
        let owner_exists = self.qps.contains_key(&owner)
            || self.srqs.contains_key(&owner)
            || self.wqs.contains_key(&owner);
        if owner_exists
            && self.deliver(&copied.sges, &copied.message) != ffi::ibv_wc_status::IBV_WC_SUCCESS
        {
            self.complain("a poll copied a message to memory that was given back".to_owned());
        }
    }
}
