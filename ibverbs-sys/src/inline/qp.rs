//! Queue pairs.

use super::{dispatch, dispatch_filled};
use crate::{
    ibv_context, ibv_create_qp, ibv_qp, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask,
    ibv_qp_open_attr, ibv_qp_rate_limit_attr, ibv_recv_wr, ibv_send_wr,
};
use core::ffi::c_int;

/// `ibv_create_qp_ex(context, qp_init_attr_ex)`—Creates a queue pair with extended attributes.
///
/// With a protection domain as the only extended attribute, calls [`ibv_create_qp`].
///
/// # Safety
///
/// `context` and the objects in `qp_init_attr_ex` are live.
#[inline]
pub unsafe fn ibv_create_qp_ex(
    context: *mut ibv_context,
    qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller's attributes are readable, and begin with the basic attributes.
    unsafe {
        let attr = &*qp_init_attr_ex;
        if attr.comp_mask == ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0 {
            return ibv_create_qp(attr.pd, qp_init_attr_ex.cast());
        }
    }
    // SAFETY: as the caller promised.
    unsafe { create_qp_ex(context, qp_init_attr_ex) }
}

dispatch! {
    /// The provider's part of [`ibv_create_qp_ex`].
    fn create_qp_ex(
        context: *mut ibv_context,
        qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
    ) -> *mut ibv_qp
        => verbs_get_ctx_op!(context, create_qp_ex);

    /// `ibv_open_qp(context, qp_open_attr)`—Opens an XRC queue pair shared by another process.
    pub fn ibv_open_qp(
        context: *mut ibv_context,
        qp_open_attr: *mut ibv_qp_open_attr,
    ) -> *mut ibv_qp
        => verbs_get_ctx_op!(context, open_qp);

    /// `ibv_modify_qp_rate_limit(qp, attr)`—Sets the send rate limit of a queue pair.
    pub fn ibv_modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int
        => verbs_get_ctx_op!((*qp).context, modify_qp_rate_limit);
}

dispatch_filled! {
    /// `ibv_post_send(qp, wr, bad_wr)`—Posts a list of work requests to the send queue.
    pub fn ibv_post_send(
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad_wr: *mut *mut ibv_send_wr,
    ) -> c_int
        => (*(*qp).context).ops.post_send;

    /// `ibv_post_recv(qp, wr, bad_wr)`—Posts a list of work requests to the receive queue.
    pub fn ibv_post_recv(
        qp: *mut ibv_qp,
        wr: *mut ibv_recv_wr,
        bad_wr: *mut *mut ibv_recv_wr,
    ) -> c_int
        => (*(*qp).context).ops.post_recv;
}
