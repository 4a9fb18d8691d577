//! Completion counters.

use crate::{ibv_comp_cntr_caps, ibv_context, late};
use core::ffi::c_int;

/// `ibv_query_comp_cntr_caps(context, caps)`—Reads a device's completion counter capabilities.
///
/// EOPNOTSUPP where the library is older than rdma-core 65.
///
/// # Safety
///
/// `context` is live and `caps` writable.
#[inline]
pub unsafe fn ibv_query_comp_cntr_caps(
    context: *mut ibv_context,
    caps: *mut ibv_comp_cntr_caps,
) -> c_int {
    match late::_ibv_query_comp_cntr_caps() {
        // SAFETY: as the caller promised, and `caps` has this size.
        Some(query) => unsafe { query(context, caps, size_of::<ibv_comp_cntr_caps>()) },
        None => libc::EOPNOTSUPP,
    }
}
