//! Completion queues.

use super::{dispatch, dispatch_filled};
use crate::{ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_modify_cq_attr, ibv_wc};
use core::ffi::c_int;

dispatch! {
    /// `ibv_create_cq_ex(context, cq_attr)`—Creates a completion queue that is read field by field.
    pub fn ibv_create_cq_ex(
        context: *mut ibv_context,
        cq_attr: *mut ibv_cq_init_attr_ex,
    ) -> *mut ibv_cq_ex
        => verbs_get_ctx_op!(context, create_cq_ex);

    /// `ibv_modify_cq(cq, attr)`—Changes how completions are moderated.
    pub fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int
        => verbs_get_ctx_op!((*cq).context, modify_cq);
}

dispatch_filled! {
    /// `ibv_poll_cq(cq, num_entries, wc)`—Takes up to `num_entries` completions.
    ///
    /// Returns how many it took, or a negative number.
    pub fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int
        => (*(*cq).context).ops.poll_cq;

    /// `ibv_req_notify_cq(cq, solicited_only)`—Asks for an event when a completion arrives.
    pub fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int
        => (*(*cq).context).ops.req_notify_cq;
}
