//! Contexts, with their tables filled.

use std::{
    ffi::c_int,
    os::fd::{AsRawFd, IntoRawFd, OwnedFd},
    sync::Arc,
};

use ibverbs_sys as ffi;

use super::{
    cq, post, srq,
    state::{Shared, device_of_context},
    tags,
};
use crate::abi::{context, functions as abi};

/// Opens the device. The context owns the command descriptor.
pub(in crate::abi) fn open(
    shared: &Arc<Shared>,
    device: *mut ffi::ibv_device,
    cmd_fd: OwnedFd,
) -> *mut ffi::ibv_context {
    crate::abi::device::hold(device);
    let mut state = shared.lock();
    let verbs = state.make(
        "ibv_open_device",
        &[],
        |table: &mut ffi::verbs_context, _| {
            context::fill(table, device);
            table.priv_ = Arc::into_raw(Arc::clone(shared)).cast_mut().cast();
            extend(table);
            let ctx = &mut table.context;
            ctx.cmd_fd = cmd_fd.into_raw_fd();
            ctx.async_fd = shared.async_fd.as_raw_fd();
            ctx.num_comp_vectors = 2;
        },
    );
    // SAFETY: a live context; taking the address of a field reads nothing.
    unsafe { &raw mut (*verbs).context }
}

/// Adds posting and polling to a table, and the functions that only scripted devices support.
fn extend(table: &mut ffi::verbs_context) {
    let ops = &mut table.context.ops;
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    ops.post_srq_recv = Some(srq::post_srq_recv);
    table.modify_qp_rate_limit = Some(abi::ibv_modify_qp_rate_limit);
    table.post_srq_ops = Some(tags::post_srq_ops);
    table.alloc_td = Some(abi::ibv_alloc_td);
    table.dealloc_td = Some(abi::ibv_dealloc_td);
    table.alloc_parent_domain = Some(abi::ibv_alloc_parent_domain);
    table.alloc_dm = Some(abi::ibv_alloc_dm);
    table.free_dm = Some(abi::ibv_free_dm);
    table.reg_dm_mr = Some(abi::ibv_reg_dm_mr);
    table.alloc_null_mr = Some(abi::ibv_alloc_null_mr);
    table.advise_mr = Some(abi::ibv_advise_mr);
    table.create_counters = Some(abi::ibv_create_counters);
    table.destroy_counters = Some(abi::ibv_destroy_counters);
    table.attach_counters_point_flow = Some(abi::ibv_attach_counters_point_flow);
    table.read_counters = Some(abi::ibv_read_counters);
    table.ibv_create_flow = Some(abi::ibv_create_flow);
    table.ibv_destroy_flow = Some(abi::ibv_destroy_flow);
    table.create_wq = Some(abi::ibv_create_wq);
    table.modify_wq = Some(abi::ibv_modify_wq);
    table.destroy_wq = Some(abi::ibv_destroy_wq);
    table.create_rwq_ind_table = Some(abi::ibv_create_rwq_ind_table);
    table.destroy_rwq_ind_table = Some(abi::ibv_destroy_rwq_ind_table);
}

pub(in crate::abi) unsafe extern "C" fn close_device(ctx: *mut ffi::ibv_context) -> c_int {
    // SAFETY: an open context.
    let shared: *const Shared = unsafe { device_of_context(ctx) };
    // SAFETY: the contexts of scripted devices are extended ones.
    let verbs = unsafe { ffi::verbs_get_ctx(ctx) };
    // SAFETY: open until here; the field does not change.
    let device = unsafe { (*ctx).device };
    // SAFETY: as above.
    let fd = unsafe { (*ctx).cmd_fd };
    // SAFETY: the context's own descriptor, closed once, here.
    let _: c_int = unsafe { libc::close(fd) };
    // SAFETY: the context is an owner of the device.
    let ret = unsafe { &*shared }.lock().unmake("ibv_close_device", verbs);
    if ret == 0 {
        // SAFETY: the context's own share, given up once, here.
        unsafe { Arc::decrement_strong_count(shared) };
        crate::abi::device::release(device);
    }
    ret
}
