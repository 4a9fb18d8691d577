//! Shared receive queues.

use super::{dispatch, dispatch_filled};
use crate::{
    ibv_context, ibv_create_srq, ibv_ops_wr, ibv_recv_wr, ibv_srq, ibv_srq_init_attr_ex,
    ibv_srq_init_attr_mask, ibv_srq_type,
};
use core::ffi::c_int;

/// `ibv_create_srq_ex(context, srq_init_attr_ex)`—Creates a shared receive queue of any type.
///
/// For a basic queue in a protection domain, calls [`ibv_create_srq`].
///
/// # Safety
///
/// `context` and the objects in `srq_init_attr_ex` are live.
#[inline]
pub unsafe fn ibv_create_srq_ex(
    context: *mut ibv_context,
    srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    const PD: u32 = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0;
    const TYPE: u32 = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE.0;
    // SAFETY: the caller's attributes are readable, and begin with the basic attributes.
    unsafe {
        let attr = &*srq_init_attr_ex;
        let basic = match attr.comp_mask {
            PD => true,
            mask => mask == PD | TYPE && attr.srq_type == ibv_srq_type::IBV_SRQT_BASIC,
        };
        if basic {
            return ibv_create_srq(attr.pd, srq_init_attr_ex.cast());
        }
    }
    // SAFETY: as the caller promised.
    unsafe { create_srq_ex(context, srq_init_attr_ex) }
}

dispatch! {
    /// The provider's part of [`ibv_create_srq_ex`].
    fn create_srq_ex(
        context: *mut ibv_context,
        srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
    ) -> *mut ibv_srq
        => verbs_get_ctx_op!(context, create_srq_ex);

    /// `ibv_get_srq_num(srq, srq_num)`—Reads the queue's number, used by XRC senders.
    pub fn ibv_get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int
        => verbs_get_ctx_op!((*srq).context, get_srq_num);
}

dispatch_filled! {
    /// `ibv_post_srq_recv(srq, recv_wr, bad_recv_wr)`—Posts receives.
    pub fn ibv_post_srq_recv(
        srq: *mut ibv_srq,
        recv_wr: *mut ibv_recv_wr,
        bad_recv_wr: *mut *mut ibv_recv_wr,
    ) -> c_int
        => (*(*srq).context).ops.post_srq_recv;
}

/// `ibv_post_srq_ops(srq, op, bad_op)`—Posts tag-matching operations.
///
/// # Safety
///
/// `srq` is live, `op` a list of operations and `bad_op` writable.
#[inline]
pub unsafe fn ibv_post_srq_ops(
    srq: *mut ibv_srq,
    op: *mut ibv_ops_wr,
    bad_op: *mut *mut ibv_ops_wr,
) -> c_int {
    // SAFETY: the caller's queue is live.
    match unsafe { verbs_get_ctx_op!((*srq).context, post_srq_ops) } {
        // SAFETY: as the caller promised.
        Some(post) => unsafe { post(srq, op, bad_op) },
        None => {
            // SAFETY: the caller's `bad_op` is writable.
            unsafe { *bad_op = op };
            libc::EOPNOTSUPP
        }
    }
}
