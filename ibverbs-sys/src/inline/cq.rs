//! Completion queues.

use super::{dispatch, dispatch_filled};
use crate::{ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_modify_cq_attr, ibv_wc};
use core::ffi::c_int;

dispatch! {
    /// `ibv_create_cq_ex(context, cq_attr)`—Creates an extended completion queue, polled field by field.
    pub fn ibv_create_cq_ex(
        context: *mut ibv_context,
        cq_attr: *mut ibv_cq_init_attr_ex,
    ) -> *mut ibv_cq_ex
        => verbs_get_ctx_op!(context, create_cq_ex);

    /// `ibv_modify_cq(cq, attr)`—Changes completion moderation.
    pub fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int
        => verbs_get_ctx_op!((*cq).context, modify_cq);
}

dispatch_filled! {
    /// `ibv_poll_cq(cq, num_entries, wc)`—Polls up to `num_entries` completions. Does not block.
    ///
    /// Returns the number of completions, or a negative number.
    pub fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int
        => (*(*cq).context).ops.poll_cq;

    /// `ibv_req_notify_cq(cq, solicited_only)`—Arms the queue: requests an event for the next completion.
    pub fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int
        => (*(*cq).context).ops.req_notify_cq;
}
