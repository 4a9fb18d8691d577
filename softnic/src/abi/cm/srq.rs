//! Shared receive queues made by librdmacm for an identifier, whose queue pairs use them.

use std::{ffi::c_int, io, ptr};

use ibverbs_sys::{self as verbs, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_srq_init_attr_mask};
use rdmacm_sys as ffi;

use super::{
    failed,
    qp::{complete_pd, destroy_queues, make_queue},
};
use crate::abi::{functions, set_errno};

/// Creates a queue with extended attributes, which get the identifier's protection domain, and for extended connections a
/// completion queue, where the program has none; not after a failure. Fails with `EOPNOTSUPP` for extended connections without a
/// domain of their own.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq_ex(
    raw: *mut ffi::rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: the caller's attributes.
    let init = unsafe { &mut *attr };
    let before = *init;
    // SAFETY: the caller's identifier.
    let ret = unsafe { create(raw, init) };
    if ret != 0 {
        let errno = io::Error::last_os_error().raw_os_error();
        *init = before;
        // SAFETY: the caller's identifier.
        let id = unsafe { &*raw };
        if id.qp.is_null() && id.srq.is_null() {
            // SAFETY: neither a queue pair nor a shared receive queue has the queues.
            unsafe { destroy_queues(raw) };
        }
        set_errno(errno.unwrap_or(libc::EINVAL));
    }
    ret
}

/// Creates a queue with completed attributes. Returns 0, or -1 with `errno` set.
///
/// # Safety
/// - `raw` is a live identifier, used by no other thread, and the objects in the attributes are live.
unsafe fn create(raw: *mut ffi::rdma_cm_id, init: &mut ibv_srq_init_attr_ex) -> c_int {
    use ibv_srq_init_attr_mask as has;
    // SAFETY: the caller's identifier, of which it has exclusive use during the call.
    let ctx = unsafe { (*raw).verbs };
    // SAFETY: as above.
    let srq = unsafe { (*raw).srq };
    if ctx.is_null() || !srq.is_null() {
        return failed(libc::EINVAL);
    }
    let has_field = |mask: u32, field: has| mask & field.0 != 0;
    if !has_field(init.comp_mask, has::IBV_SRQ_INIT_ATTR_PD) {
        init.pd = ptr::null_mut();
    }
    // SAFETY: a live identifier with a device.
    if !unsafe { complete_pd(raw, &mut init.pd) } {
        return -1;
    }
    // SAFETY: a live domain.
    if unsafe { (*init.pd).context } != ctx {
        return failed(libc::EINVAL);
    }
    init.comp_mask |= has::IBV_SRQ_INIT_ATTR_PD.0;
    let is_extended = has_field(init.comp_mask, has::IBV_SRQ_INIT_ATTR_TYPE)
        && init.srq_type == verbs::ibv_srq_type::IBV_SRQT_XRC;
    if is_extended {
        if !has_field(init.comp_mask, has::IBV_SRQ_INIT_ATTR_XRCD) {
            return failed(libc::EOPNOTSUPP);
        }
        if !has_field(init.comp_mask, has::IBV_SRQ_INIT_ATTR_CQ) {
            init.cq = ptr::null_mut();
        }
        // SAFETY: as above.
        let id = unsafe { &mut *raw };
        let queue = (&mut id.recv_cq_channel, &mut id.recv_cq);
        // SAFETY: an open context.
        if !unsafe { make_queue((raw, ctx), &mut init.cq, init.attr.max_wr, queue) } {
            return -1;
        }
        init.comp_mask |= has::IBV_SRQ_INIT_ATTR_CQ.0;
    }
    let srq = if is_extended {
        // SAFETY: an open context, and live objects.
        unsafe { functions::ibv_create_srq_ex(ctx, init) }
    } else {
        let mut plain = ibv_srq_init_attr {
            srq_context: init.srq_context,
            attr: init.attr,
        };
        // SAFETY: a live domain, and a local variable.
        unsafe { functions::ibv_create_srq(init.pd, &raw mut plain) }
    };
    if srq.is_null() {
        // The error of the creation is the result.
        return -1;
    }
    // SAFETY: as above.
    let id = unsafe { &mut *raw };
    id.pd = init.pd;
    id.srq = srq;
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq(
    raw: *mut ffi::rdma_cm_id,
    pd: *mut verbs::ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: the caller's attributes.
    let init = unsafe { &*attr };
    let mut extended = ibv_srq_init_attr_ex::zeroed();
    extended.srq_context = init.srq_context;
    extended.attr = init.attr;
    if !pd.is_null() {
        extended.comp_mask = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0;
        extended.pd = pd;
    }
    // SAFETY: the caller's identifier, and a local variable.
    unsafe { rdma_create_srq_ex(raw, &raw mut extended) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_destroy_srq(raw: *mut ffi::rdma_cm_id) {
    // SAFETY: the caller's identifier, of which it has exclusive use during the call.
    let srq = unsafe { (*raw).srq };
    if srq.is_null() {
        return;
    }
    // SAFETY: live until here; the caller gives the queue up.
    unsafe { functions::ibv_destroy_srq(srq) };
    // SAFETY: as above.
    unsafe { (*raw).srq = ptr::null_mut() };
    // SAFETY: as above.
    if unsafe { (*raw).qp }.is_null() {
        // SAFETY: neither a queue pair nor a shared receive queue has the queues.
        unsafe { destroy_queues(raw) };
    }
}
