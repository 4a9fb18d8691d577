//! Asynchronous events.

use std::{ffi::c_int, ptr, sync::Arc};

use ibverbs_sys as ffi;

use super::{context, cq::Cq, object::Object, qp::Qp, srq::Srq};

/// Kind of an event's object.
enum About {
    Cq,
    Qp,
    Srq,
}

/// Kind of an event type's object; `None` for events of the port or the device.
fn about(kind: ffi::ibv_event_type) -> Option<About> {
    use ffi::ibv_event_type as on;
    match kind {
        on::IBV_EVENT_CQ_ERR => Some(About::Cq),
        on::IBV_EVENT_QP_FATAL
        | on::IBV_EVENT_QP_REQ_ERR
        | on::IBV_EVENT_QP_ACCESS_ERR
        | on::IBV_EVENT_COMM_EST
        | on::IBV_EVENT_SQ_DRAINED
        | on::IBV_EVENT_QP_LAST_WQE_REACHED => Some(About::Qp),
        on::IBV_EVENT_SRQ_LIMIT_REACHED => Some(About::Srq),
        _ => None,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(
    ctx: *mut ffi::ibv_context,
    event: *mut ffi::ibv_async_event,
) -> c_int {
    // SAFETY: an open context.
    let device = unsafe { context::device(ctx) };
    let Some(message) = device.events.receive() else {
        return -1;
    };
    let ([addr, rest], _) = message.as_chunks::<8>() else {
        return -1;
    };
    let object = usize::try_from(u64::from_ne_bytes(*addr)).unwrap_or(0);
    let object = ptr::with_exposed_provenance_mut::<ffi::ibv_qp>(object);
    let [a, b, c, d, ..] = *rest;
    let mut found = ffi::ibv_async_event::zeroed();
    found.event_type = ffi::ibv_event_type(u32::from_ne_bytes([a, b, c, d]));
    match about(found.event_type) {
        Some(About::Cq) => found.element.cq = object.cast(),
        Some(About::Qp) => found.element.qp = object,
        Some(About::Srq) => found.element.srq = object.cast(),
        // An event of the only port, or of the device.
        None => found.element.port_num = 1,
    }
    // SAFETY: the caller's place.
    unsafe { event.write(found) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ffi::ibv_async_event) {
    // SAFETY: the caller's event.
    let event = unsafe { &*event };
    // SAFETY: a pointer or a port number padded with zeros, written by `ibv_get_async_event`; all bytes are
    // initialised.
    let object = unsafe { event.element.qp };
    let acks = match about(event.event_type) {
        // SAFETY: live: destroying the queue waits for this.
        Some(About::Cq) => Arc::clone(&unsafe { Cq::borrow(object.cast()) }.async_acks),
        // SAFETY: live: destroying the queue pair waits for this.
        Some(About::Qp) => Arc::clone(&unsafe { Qp::borrow(object) }.acks),
        // SAFETY: live: destroying the queue waits for this.
        Some(About::Srq) => Arc::clone(&unsafe { Srq::borrow(object.cast()) }.acks),
        None => return,
    };
    // The object may be freed as soon as the event is acknowledged.
    acks.remove(1);
}
