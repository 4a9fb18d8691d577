//! Open devices.

use std::{cell::UnsafeCell, ffi::c_int, sync::Arc};

use ibverbs_sys as ffi;

use super::{
    acks::Acks,
    cq, cq_ex, mw,
    notifier::{AsyncPipe, Subject},
    null,
    object::{Object, zeroed},
    post, qp, qp_ex, query, srq, xrcd,
};
use crate::fabric::Port;

/// State shared by the objects of an open device.
#[derive(Debug)]
pub(super) struct OpenDevice {
    pub(super) port: Port,
    pub(super) events: Arc<AsyncPipe>,
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
            pipe: Arc::clone(&self.events),
            acks: Arc::clone(acks),
        }
    }
}

/// Opens a device.
pub(super) fn open(port: &Port, device: *mut ffi::ibv_device) -> *mut ffi::ibv_context {
    let events = match AsyncPipe::new() {
        Ok(events) => Arc::new(events),
        Err(error) => return null(error.raw_os_error().unwrap_or(libc::ENOMEM)),
    };
    let weak = Arc::downgrade(&events);
    port.notifier().subjects().contexts.push(weak);
    let mut table: ffi::verbs_context = zeroed();
    table.sz = size_of::<ffi::verbs_context>();
    table.query_port = Some(query::query_port);
    table.query_device_ex = Some(query::query_device_ex);
    table.query_rt_values = Some(query::query_rt_values);
    table.create_cq_ex = Some(cq_ex::create_cq_ex);
    table.modify_cq = Some(cq::modify_cq);
    table.create_qp_ex = Some(qp_ex::create_qp_ex);
    table.open_qp = Some(qp::open_qp);
    table.create_srq_ex = Some(srq::create_srq_ex);
    table.get_srq_num = Some(srq::get_srq_num);
    table.open_xrcd = Some(xrcd::open_xrcd);
    table.close_xrcd = Some(xrcd::close_xrcd);
    let ctx = &mut table.context;
    ctx.device = device;
    // Mark of an extended context.
    ctx.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    // No file of the kernel exists. The events' descriptor is open, and no command is written to the descriptor.
    ctx.cmd_fd = events.fd();
    ctx.async_fd = events.fd();
    ctx.num_comp_vectors = 1;
    ctx.ops.poll_cq = Some(cq::poll_cq);
    ctx.ops.req_notify_cq = Some(cq::req_notify_cq);
    ctx.ops.post_send = Some(post::post_send);
    ctx.ops.post_recv = Some(post::post_recv);
    ctx.ops.post_srq_recv = Some(srq::post_srq_recv);
    ctx.ops.alloc_mw = Some(mw::alloc_mw);
    ctx.ops.dealloc_mw = Some(mw::dealloc_mw);
    ctx.ops.bind_mw = Some(mw::bind_mw);
    let opened = Context {
        raw: UnsafeCell::new(table),
        device: Arc::new(OpenDevice {
            port: port.clone(),
            events,
        }),
    };
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

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(ctx: *mut ffi::ibv_context) -> c_int {
    // SAFETY: the caller's context is open.
    let raw = unsafe { ffi::verbs_get_ctx(ctx) };
    // SAFETY: as in `device`; the caller gives the context up.
    unsafe { Context::free(raw) };
    0
}
