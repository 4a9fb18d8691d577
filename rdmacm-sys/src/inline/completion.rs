//! Blocking waits for a completion on the identifier's queues.

use super::rdma_seterrno;
use crate::rdma_cm_id;
use core::ffi::{c_int, c_void};
use core::ptr;
use ibverbs_sys::{
    ibv_ack_cq_events, ibv_comp_channel, ibv_cq, ibv_get_cq_event, ibv_poll_cq, ibv_req_notify_cq,
    ibv_wc,
};

/// `rdma_get_send_comp(id, wc)`—Blocks until a send completes. Returns 1, or -1 with errno set.
///
/// # Safety
///
/// `id` has a send queue, no other thread polls its completion queue, and `wc` is writable.
#[inline]
pub unsafe fn rdma_get_send_comp(id: *mut rdma_cm_id, wc: *mut ibv_wc) -> c_int {
    // SAFETY: as the caller promised.
    unsafe { get_comp(id, (*id).send_cq, (*id).send_cq_channel, wc) }
}

/// `rdma_get_recv_comp(id, wc)`—Blocks until a receive completes. Returns 1, or -1 with errno set.
///
/// # Safety
///
/// `id` has a receive queue, no other thread polls its completion queue, and `wc` is writable.
#[inline]
pub unsafe fn rdma_get_recv_comp(id: *mut rdma_cm_id, wc: *mut ibv_wc) -> c_int {
    // SAFETY: as the caller promised.
    unsafe { get_comp(id, (*id).recv_cq, (*id).recv_cq_channel, wc) }
}

/// Polls, arms and sleeps on the channel until there is a completion.
///
/// # Safety
///
/// `cq` and `channel` belong to `id` and are live, and `wc` is writable.
unsafe fn get_comp(
    id: *mut rdma_cm_id,
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    wc: *mut ibv_wc,
) -> c_int {
    loop {
        // SAFETY: as the caller promised.
        let mut polled = unsafe { ibv_poll_cq(cq, 1, wc) };
        if polled == 0 {
            // SAFETY: as the caller promised.
            let rc = unsafe { ibv_req_notify_cq(cq, 0) };
            if rc != 0 {
                return rdma_seterrno(rc);
            }
            // Poll again: a completion before arming produces no event.
            // SAFETY: as the caller promised.
            polled = unsafe { ibv_poll_cq(cq, 1, wc) };
        }
        if polled != 0 {
            return if polled < 0 {
                rdma_seterrno(polled)
            } else {
                polled
            };
        }
        let mut event_cq = ptr::null_mut();
        let mut context: *mut c_void = ptr::null_mut();
        // SAFETY: as the caller promised; the event is acknowledged at once.
        unsafe {
            let rc = ibv_get_cq_event(channel, &raw mut event_cq, &raw mut context);
            if rc != 0 {
                return rc;
            }
            debug_assert!(
                event_cq == cq && context == id.cast(),
                "the channel is the queue's own"
            );
            ibv_ack_cq_events(cq, 1);
        }
    }
}
