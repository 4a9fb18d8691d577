//! Flow counters.

use super::dispatch;
use crate::{ibv_context, ibv_counter_attach_attr, ibv_counters, ibv_counters_init_attr, ibv_flow};
use core::ffi::c_int;

dispatch! {
    /// `ibv_create_counters(context, init_attr)`—Creates a set of counters.
    pub fn ibv_create_counters(
        context: *mut ibv_context,
        init_attr: *mut ibv_counters_init_attr,
    ) -> *mut ibv_counters
        => verbs_get_ctx_op!(context, create_counters);

    /// `ibv_destroy_counters(counters)`—Destroys a set of counters.
    pub fn ibv_destroy_counters(counters: *mut ibv_counters) -> c_int
        => verbs_get_ctx_op!((*counters).context, destroy_counters);

    /// `ibv_attach_counters_point_flow(counters, attr, flow)`—Attaches counters to a flow.
    pub fn ibv_attach_counters_point_flow(
        counters: *mut ibv_counters,
        attr: *mut ibv_counter_attach_attr,
        flow: *mut ibv_flow,
    ) -> c_int
        => verbs_get_ctx_op!((*counters).context, attach_counters_point_flow);

    /// `ibv_read_counters(counters, counters_value, ncounters, flags)`—Reads a set of counters.
    pub fn ibv_read_counters(
        counters: *mut ibv_counters,
        counters_value: *mut u64,
        ncounters: u32,
        flags: u32,
    ) -> c_int
        => verbs_get_ctx_op!((*counters).context, read_counters);
}
