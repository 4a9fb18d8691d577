//! Thread domains and parent domains.

use super::dispatch;
use crate::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use core::ffi::c_int;

dispatch! {
    /// `ibv_alloc_td(context, init_attr)`—Creates a thread domain: objects used by one thread at a time.
    pub fn ibv_alloc_td(context: *mut ibv_context, init_attr: *mut ibv_td_init_attr) -> *mut ibv_td
        => verbs_get_ctx_op!(context, alloc_td);

    /// `ibv_dealloc_td(td)`—Destroys a thread domain.
    pub fn ibv_dealloc_td(td: *mut ibv_td) -> c_int => verbs_get_ctx_op!((*td).context, dealloc_td);

    /// `ibv_alloc_parent_domain(context, attr)`—Creates a protection domain with a thread domain or a custom
    /// allocator.
    ///
    /// The callbacks in `attr` must not unwind.
    pub fn ibv_alloc_parent_domain(
        context: *mut ibv_context,
        attr: *mut ibv_parent_domain_init_attr,
    ) -> *mut ibv_pd
        => verbs_get_ctx_op!(context, alloc_parent_domain);
}
