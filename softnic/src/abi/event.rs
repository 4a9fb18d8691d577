//! Asynchronous events.

use std::{ffi::c_int, ptr, sync::Arc};

use ibverbs_sys as ffi;

use super::{
    context, cq::Cq, functions::Kind, notifier::AsyncEvent, object::Object, qp::Qp,
    scripted::functions as scripted, srq::Srq,
};

/// Kind of an event's object.
pub(super) enum About {
    Cq,
    Qp,
    Srq,
    Wq,
}

/// Kind of an event type's object; `None` for events of the port or the device.
pub(super) fn about(kind: ffi::ibv_event_type) -> Option<About> {
    use ffi::ibv_event_type as on;
    match kind {
        on::IBV_EVENT_CQ_ERR => Some(About::Cq),
        on::IBV_EVENT_QP_FATAL
        | on::IBV_EVENT_QP_REQ_ERR
        | on::IBV_EVENT_QP_ACCESS_ERR
        | on::IBV_EVENT_COMM_EST
        | on::IBV_EVENT_SQ_DRAINED
        | on::IBV_EVENT_PATH_MIG
        | on::IBV_EVENT_PATH_MIG_ERR
        | on::IBV_EVENT_QP_LAST_WQE_REACHED => Some(About::Qp),
        on::IBV_EVENT_SRQ_ERR | on::IBV_EVENT_SRQ_LIMIT_REACHED => Some(About::Srq),
        on::IBV_EVENT_WQ_FATAL => Some(About::Wq),
        _ => None,
    }
}

/// An event of an object, or else of a port.
pub(super) fn of(
    kind: ffi::ibv_event_type,
    object: *mut ffi::ibv_qp,
    port: c_int,
) -> ffi::ibv_async_event {
    let mut event = ffi::ibv_async_event::zeroed();
    event.event_type = kind;
    match about(kind) {
        Some(About::Cq) => event.element.cq = object.cast(),
        Some(About::Qp) => event.element.qp = object,
        Some(About::Srq) => event.element.srq = object.cast(),
        Some(About::Wq) => event.element.wq = object.cast(),
        None => event.element.port_num = port,
    }
    event
}

pub(super) unsafe extern "C" fn ibv_get_async_event(
    ctx: *mut ffi::ibv_context,
    event: *mut ffi::ibv_async_event,
) -> c_int {
    // SAFETY: an open context.
    let device = unsafe { context::device(ctx) };
    let Some(AsyncEvent { addr, kind }) = device.events.receive() else {
        return -1;
    };
    let object = usize::try_from(addr).unwrap_or(0);
    let object = ptr::with_exposed_provenance_mut(object);
    // Events without an object are of the only port, or of the device.
    // SAFETY: the caller's place.
    unsafe { event.write(of(kind, object, 1)) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ffi::ibv_async_event) {
    // SAFETY: the caller's event.
    let event = unsafe { &*event };
    // SAFETY: a pointer or a port number padded with zeros, written by `ibv_get_async_event`; all bytes are
    // initialised.
    let object = unsafe { event.element.qp };
    let about = about(event.event_type);
    if about.is_some() {
        // SAFETY: live: destroying the object waits for this.
        let ctx = unsafe { (*object).context };
        // SAFETY: the context of a live object is open.
        if let Kind::Scripted(_) = unsafe { Kind::of(ctx) } {
            // SAFETY: an object of a scripted device.
            return unsafe { scripted::acknowledge(object) };
        }
    }
    let acks = match about {
        // SAFETY: live: destroying the queue waits for this.
        Some(About::Cq) => Arc::clone(&unsafe { Cq::borrow(object.cast()) }.async_acks),
        // SAFETY: live: destroying the queue pair waits for this.
        Some(About::Qp) => Arc::clone(&unsafe { Qp::borrow(object) }.acks),
        // SAFETY: live: destroying the queue waits for this.
        Some(About::Srq) => Arc::clone(&unsafe { Srq::borrow(object.cast()) }.acks),
        // Work queues are objects of scripted devices only.
        Some(About::Wq) | None => return,
    };
    // The object may be freed as soon as the event is acknowledged.
    acks.remove(1);
}
