//! Open devices.

use std::{cell::UnsafeCell, ffi::c_int, sync::Arc};

use ibverbs_sys as ffi;

use super::{
    acks::Acks,
    cq, functions,
    notifier::{AsyncEvents, Subject},
    null,
    object::{Object, zeroed},
    post, srq,
};
use crate::fabric::Port;

/// State shared by the objects of an open device.
#[derive(Debug)]
pub(super) struct OpenDevice {
    pub(super) port: Port,
    pub(super) events: Arc<AsyncEvents>,
}

/// A context: the extended table of libibverbs, and the device.
#[repr(C)]
pub(super) struct Context {
    raw: UnsafeCell<ffi::verbs_context>,
    device: Arc<OpenDevice>,
}

// SAFETY: `repr(C)`, and the C struct comes first.
unsafe impl Object for Context {
    type Raw = ffi::verbs_context;
}

impl OpenDevice {
    /// Destination of the events of an object at `addr`.
    pub(super) fn subject(&self, addr: u64, acks: &Arc<Acks>) -> Subject {
        Subject {
            addr,
            events: Arc::clone(&self.events),
            acks: Arc::clone(acks),
        }
    }
}

/// Fills a table with the device, the mark of an extended context, and the functions of all devices.
pub(super) fn fill(table: &mut ffi::verbs_context, device: *mut ffi::ibv_device) {
    table.sz = size_of::<ffi::verbs_context>();
    table.query_port = Some(functions::query_port);
    table.query_device_ex = Some(functions::ibv_query_device_ex);
    table.query_rt_values = Some(functions::ibv_query_rt_values_ex);
    table.create_cq_ex = Some(functions::ibv_create_cq_ex);
    table.modify_cq = Some(functions::ibv_modify_cq);
    table.create_qp_ex = Some(functions::ibv_create_qp_ex);
    table.open_qp = Some(functions::ibv_open_qp);
    table.create_srq_ex = Some(functions::ibv_create_srq_ex);
    table.get_srq_num = Some(functions::ibv_get_srq_num);
    table.open_xrcd = Some(functions::ibv_open_xrcd);
    table.close_xrcd = Some(functions::ibv_close_xrcd);
    let ctx = &mut table.context;
    ctx.device = device;
    ctx.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    ctx.ops.alloc_mw = Some(functions::ibv_alloc_mw);
    ctx.ops.dealloc_mw = Some(functions::ibv_dealloc_mw);
    ctx.ops.bind_mw = Some(functions::ibv_bind_mw);
}

/// Opens a device.
pub(super) fn open(port: &Port, device: *mut ffi::ibv_device) -> *mut ffi::ibv_context {
    let events = match AsyncEvents::new(Some(port)) {
        Ok(events) => Arc::new(events),
        Err(errno) => return null(errno),
    };
    let weak = Arc::downgrade(&events);
    port.notifier().subjects().contexts.push(weak);
    let mut table: ffi::verbs_context = zeroed();
    fill(&mut table, device);
    let ctx = &mut table.context;
    // No file of the kernel exists. The events' descriptor is open, and no command is written to the descriptor.
    ctx.cmd_fd = events.fd();
    ctx.async_fd = events.fd();
    ctx.num_comp_vectors = 1;
    ctx.ops.poll_cq = Some(cq::poll_cq);
    ctx.ops.req_notify_cq = Some(cq::req_notify_cq);
    ctx.ops.post_send = Some(post::post_send);
    ctx.ops.post_recv = Some(post::post_recv);
    ctx.ops.post_srq_recv = Some(srq::post_srq_recv);
    let opened = Context {
        raw: UnsafeCell::new(table),
        device: Arc::new(OpenDevice {
            port: port.clone(),
            events,
        }),
    };
    super::device::hold(device);
    let raw = opened.into_raw();
    // SAFETY: a live context; taking the address of a field reads nothing.
    unsafe { &raw mut (*raw).context }
}

/// The device of a context.
///
/// # Safety
/// - `ctx` is an open context of this crate while the result is used.
pub(super) unsafe fn device<'a>(ctx: *mut ffi::ibv_context) -> &'a Arc<OpenDevice> {
    // SAFETY: the caller's context is open.
    let raw = unsafe { ffi::verbs_get_ctx(ctx) };
    // SAFETY: contexts of this crate are extended, and come from `into_raw`.
    let context = unsafe { Context::borrow(raw) };
    &context.device
}

pub(super) unsafe extern "C" fn ibv_close_device(ctx: *mut ffi::ibv_context) -> c_int {
    // SAFETY: the caller's context is open.
    let raw = unsafe { ffi::verbs_get_ctx(ctx) };
    // SAFETY: open until here; the field does not change.
    let device = unsafe { (*ctx).device };
    // SAFETY: as in `device`; the caller gives the context up.
    unsafe { Context::free(raw) };
    super::device::release(device);
    0
}
