//! Contexts, with their tables filled.

use std::{
    ffi::c_int,
    os::fd::{AsRawFd, IntoRawFd},
    sync::Arc,
};

use ibverbs_sys as ffi;

use super::{
    cq, cq_ex, device, domain, flow, mr, post, qp, srq,
    state::{Shared, counter, device_of_context},
    tags, wq,
};

/// Opens the device.
pub(super) fn open(shared: &Arc<Shared>, device: *mut ffi::ibv_device) -> *mut ffi::ibv_context {
    let verbs: *mut ffi::verbs_context = shared.lock().make("ibv_open_device", &[]);
    // SAFETY: fresh memory, of zeros, valid values of all fields.
    let table = unsafe { &mut *verbs };
    table.sz = size_of::<ffi::verbs_context>();
    table.priv_ = Arc::into_raw(Arc::clone(shared)).cast_mut().cast();
    let ctx = &mut table.context;
    ctx.device = device;
    ctx.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    // Commands to this descriptor are faked; the descriptor is open, as needed for exporting.
    ctx.cmd_fd = counter().into_raw_fd();
    ctx.async_fd = shared.async_fd.as_raw_fd();
    ctx.num_comp_vectors = 2;

    ctx.ops.poll_cq = Some(cq::poll_cq);
    ctx.ops.req_notify_cq = Some(cq::req_notify_cq);
    ctx.ops.post_send = Some(post::post_send);
    ctx.ops.post_recv = Some(post::post_recv);
    ctx.ops.post_srq_recv = Some(srq::post_srq_recv);
    ctx.ops.alloc_mw = Some(mr::alloc_mw);
    ctx.ops.dealloc_mw = Some(mr::dealloc_mw);
    ctx.ops.bind_mw = Some(mr::bind_mw);

    table.query_device_ex = Some(device::query_device_ex);
    table.query_port = Some(device::query_port);
    table.query_rt_values = Some(device::query_rt_values);
    table.create_cq_ex = Some(cq_ex::create_cq_ex);
    table.modify_cq = Some(cq::modify_cq);
    table.create_qp_ex = Some(qp::create_qp_ex);
    table.open_qp = Some(qp::open_qp);
    table.modify_qp_rate_limit = Some(qp::modify_qp_rate_limit);
    table.create_srq_ex = Some(srq::create_srq_ex);
    table.get_srq_num = Some(srq::get_srq_num);
    table.post_srq_ops = Some(tags::post_srq_ops);
    table.open_xrcd = Some(domain::open_xrcd);
    table.close_xrcd = Some(domain::close_xrcd);
    table.alloc_td = Some(domain::alloc_td);
    table.dealloc_td = Some(domain::dealloc_td);
    table.alloc_parent_domain = Some(domain::alloc_parent_domain);
    table.alloc_dm = Some(mr::alloc_dm);
    table.free_dm = Some(mr::free_dm);
    table.reg_dm_mr = Some(mr::reg_dm_mr);
    table.alloc_null_mr = Some(mr::alloc_null_mr);
    table.advise_mr = Some(mr::advise_mr);
    table.create_counters = Some(flow::create_counters);
    table.destroy_counters = Some(flow::destroy_counters);
    table.attach_counters_point_flow = Some(flow::attach_counters);
    table.read_counters = Some(flow::read_counters);
    table.ibv_create_flow = Some(flow::create_flow);
    table.ibv_destroy_flow = Some(flow::destroy_flow);
    table.create_wq = Some(wq::create_wq);
    table.modify_wq = Some(wq::modify_wq);
    table.destroy_wq = Some(wq::destroy_wq);
    table.create_rwq_ind_table = Some(wq::create_rwq_ind_table);
    table.destroy_rwq_ind_table = Some(wq::destroy_rwq_ind_table);
    &raw mut table.context
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(ctx: *mut ffi::ibv_context) -> c_int {
    // SAFETY: an open context.
    let shared = unsafe { device_of_context(ctx) };
    // SAFETY: the contexts of a fake device are extended ones.
    let verbs = unsafe { ffi::verbs_get_ctx(ctx) };
    // SAFETY: the descriptor was opened with the context, and is closed once, here.
    let _: c_int = unsafe { libc::close((*ctx).cmd_fd) };
    let ret = shared.lock().unmake("ibv_close_device", verbs);
    if ret == 0 {
        // SAFETY: the context's own share, given up once, here.
        unsafe { Arc::decrement_strong_count(Arc::as_ptr(&shared)) };
    }
    ret
}
