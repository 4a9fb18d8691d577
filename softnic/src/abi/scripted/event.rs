//! Asynchronous events.

use std::{ffi::c_int, ptr};

use ibverbs_sys as ffi;

use super::state::{count_down, device_of_context, state_of};
use crate::abi::event;

pub(in crate::abi) unsafe extern "C" fn get_async_event(
    ctx: *mut ffi::ibv_context,
    out: *mut ffi::ibv_async_event,
) -> c_int {
    // SAFETY: an open context.
    let shared = unsafe { device_of_context(ctx) };
    // SAFETY: an open context.
    let fd = unsafe { (*ctx).async_fd };
    // May block, so the state is not locked.
    if count_down(fd) != 0 {
        return -1;
    }
    let mut state = shared.lock();
    let (kind, element) = state.events.pop_front().unwrap();
    if event::about(kind).is_some() {
        state.used("ibv_get_async_event", element);
        *state.unacknowledged.entry(element).or_default() += 1;
    }
    let object = ptr::with_exposed_provenance_mut(element);
    // SAFETY: the caller's place.
    unsafe { out.write(event::of(kind, object, element as c_int)) };
    0
}

/// Acknowledges an event of an object.
///
/// # Safety
/// - `object` is one of a scripted device, and begins with its context.
pub(in crate::abi) unsafe fn acknowledge(object: *mut ffi::ibv_qp) {
    // SAFETY: the caller's promise.
    let mut state = unsafe { state_of(object) };
    state.used("ibv_ack_async_event", object.addr());
    state.acknowledge(object.addr(), 1);
}
