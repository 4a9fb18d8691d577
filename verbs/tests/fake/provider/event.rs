//! Asynchronous events.

use std::{ffi::c_int, ptr};

use ibverbs_sys as ffi;

use super::state::{Shared, count_down, device_of, device_of_context};

/// The object of an event.
enum About {
    Cq,
    Qp,
    Srq,
    Wq,
    Port,
}

impl About {
    fn of(event: ffi::ibv_event_type) -> Self {
        use ffi::ibv_event_type as on;
        match event {
            on::IBV_EVENT_CQ_ERR => Self::Cq,
            on::IBV_EVENT_QP_FATAL
            | on::IBV_EVENT_QP_REQ_ERR
            | on::IBV_EVENT_QP_ACCESS_ERR
            | on::IBV_EVENT_COMM_EST
            | on::IBV_EVENT_SQ_DRAINED
            | on::IBV_EVENT_PATH_MIG
            | on::IBV_EVENT_PATH_MIG_ERR
            | on::IBV_EVENT_QP_LAST_WQE_REACHED => Self::Qp,
            on::IBV_EVENT_SRQ_ERR | on::IBV_EVENT_SRQ_LIMIT_REACHED => Self::Srq,
            on::IBV_EVENT_WQ_FATAL => Self::Wq,
            _ => Self::Port,
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(
    ctx: *mut ffi::ibv_context,
    event: *mut ffi::ibv_async_event,
) -> c_int {
    // SAFETY: an open context.
    let (shared, fd) = unsafe { (device_of_context(ctx), (*ctx).async_fd) };
    // May block, so the state is not locked.
    if count_down(fd) != 0 {
        return -1;
    }
    let mut state = shared.lock();
    let (kind, element) = state.events.pop_front().unwrap();
    let about = About::of(kind);
    if !matches!(about, About::Port) {
        state.used("ibv_get_async_event", element);
        *state.unacknowledged.entry(element).or_default() += 1;
    }
    let object = ptr::with_exposed_provenance_mut::<ffi::ibv_qp>(element);
    // SAFETY: the caller's place.
    unsafe {
        *event = ffi::ibv_async_event::zeroed();
        (*event).event_type = kind;
        match about {
            About::Cq => (*event).element.cq = object.cast(),
            About::Qp => (*event).element.qp = object,
            About::Srq => (*event).element.srq = object.cast(),
            About::Wq => (*event).element.wq = object.cast(),
            About::Port => (*event).element.port_num = element as c_int,
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ffi::ibv_async_event) {
    // SAFETY: the caller's event; its type determines the element.
    let (about, qp) = unsafe { (About::of((*event).event_type), (*event).element.qp) };
    if !matches!(about, About::Port) {
        // SAFETY: an object of the fake: all of these begin with their context.
        let shared: std::sync::Arc<Shared> = unsafe { device_of(qp) };
        let mut state = shared.lock();
        state.used("ibv_ack_async_event", qp.addr());
        state.acknowledge(qp.addr(), 1);
    }
}
