//! Contexts: the extended operation table, and device queries.

use super::dispatch;
use crate::{
    ibv_context, ibv_device_attr_ex, ibv_qp_type, ibv_query_device, ibv_query_device_ex_input,
    ibv_values_ex, verbs_context,
};
use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr;

/// `verbs_get_ctx(ctx)`—The extended context around `ctx`, or NULL for a context without one.
///
/// # Safety
///
/// `ctx` is a live context.
#[inline]
#[must_use]
pub unsafe fn verbs_get_ctx(ctx: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the caller's context is live.
    let abi_compat = unsafe { (*ctx).abi_compat };
    if abi_compat.addr() != usize::MAX {
        return ptr::null_mut();
    }
    // SAFETY: `abi_compat` marks a context embedded as the last field of a verbs_context.
    unsafe { ctx.byte_sub(offset_of!(verbs_context, context)).cast() }
}

/// `verbs_get_ctx_op(ctx, op)`—The context's function `op`, or `None`.
///
/// `verbs_context` grows at its front and records its size, so a slot newer than the library is never read. Expands to
/// reads through `ctx`, so use requires `unsafe`.
#[macro_export]
macro_rules! verbs_get_ctx_op {
    ($ctx:expr, $op:ident) => {{
        let ctx = $crate::verbs_get_ctx($ctx);
        let needed = ::core::mem::size_of::<$crate::verbs_context>()
            - ::core::mem::offset_of!($crate::verbs_context, $op);
        if ctx.is_null() || (*ctx).sz < needed {
            None
        } else {
            (*ctx).$op
        }
    }};
}

/// `ibv_query_device_ex(context, input, attr)`—Reads the device's extended properties.
///
/// Without the provider's extended call, reads the basic properties and zeroes the others.
///
/// # Safety
///
/// `context` is live, `input` NULL or readable, and `attr` writable.
#[inline]
pub unsafe fn ibv_query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
) -> c_int {
    // SAFETY: the caller's `input` is NULL or readable.
    if !input.is_null() && unsafe { (*input).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: the caller's context is live.
    if let Some(query) = unsafe { verbs_get_ctx_op!(context, query_device_ex) } {
        // SAFETY: as the caller promised, and `attr` has this size.
        let rc = unsafe { query(context, input, attr, size_of::<ibv_device_attr_ex>()) };
        if rc != libc::EOPNOTSUPP && rc != libc::ENOSYS {
            return rc;
        }
    }
    // SAFETY: the caller's `attr` is writable, and begins with the basic attributes.
    unsafe {
        attr.write_bytes(0, 1);
        ibv_query_device(context, &raw mut (*attr).orig_attr)
    }
}

dispatch! {
    /// `ibv_query_rt_values_ex(context, values)`—Reads the device's clock.
    pub fn ibv_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int
        => verbs_get_ctx_op!(context, query_rt_values);
}

/// `ibv_is_qpt_supported(caps, qpt)`—1 if the set `caps` contains the queue pair type, else 0.
#[inline]
#[must_use]
pub const fn ibv_is_qpt_supported(caps: u32, qpt: ibv_qp_type) -> c_int {
    (caps & (1 << qpt.0) != 0) as c_int
}
