//! Completion channels.

use std::{
    cell::UnsafeCell,
    ffi::{c_int, c_uint, c_void},
    ptr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use ibverbs_sys as ffi;

use super::{
    context,
    cq::Cq,
    notifier::CompletionEvents,
    null,
    object::{Object, zeroed},
};
use crate::check::Parent;

/// A completion channel.
#[repr(C)]
pub(super) struct Channel {
    raw: UnsafeCell<ffi::ibv_comp_channel>,
    pub(super) events: Arc<CompletionEvents>,
    /// Number of completion queues with this channel.
    pub(super) users: AtomicUsize,
}

// SAFETY: `repr(C)`, and the C struct comes first.
unsafe impl Object for Channel {
    type Raw = ffi::ibv_comp_channel;
}

pub(super) unsafe extern "C" fn ibv_create_comp_channel(
    ctx: *mut ffi::ibv_context,
) -> *mut ffi::ibv_comp_channel {
    // SAFETY: an open context.
    let device = unsafe { context::device(ctx) };
    let events = match CompletionEvents::new(Some(&device.port)) {
        Ok(events) => Arc::new(events),
        Err(errno) => return null(errno),
    };
    let mut raw: ffi::ibv_comp_channel = zeroed();
    raw.context = ctx;
    raw.fd = events.fd();
    let channel = Channel {
        raw: UnsafeCell::new(raw),
        events,
        users: AtomicUsize::new(0),
    };
    channel.into_raw()
}

pub(super) unsafe extern "C" fn ibv_destroy_comp_channel(raw: *mut ffi::ibv_comp_channel) -> c_int {
    // SAFETY: a live channel.
    let channel = unsafe { Channel::borrow(raw) };
    // SAFETY: set at the channel's creation, and not changed.
    let ctx = unsafe { (*channel.raw.get()).context };
    // SAFETY: the context of a live object is open.
    let port = &unsafe { context::device(ctx) }.port;
    let ret = match channel.users.load(Ordering::Acquire) {
        0 => 0,
        _ => libc::EBUSY,
    };
    let addr = raw.expose_provenance() as u64;
    let parent = Parent::Other("a completion queue");
    port.note_destruction(addr, ret, "ibv_destroy_comp_channel", parent);
    if ret != 0 {
        return ret;
    }
    // SAFETY: live until here; the caller gives the channel up.
    unsafe { Channel::free(raw) };
    0
}

pub(super) unsafe extern "C" fn ibv_get_cq_event(
    raw: *mut ffi::ibv_comp_channel,
    cq: *mut *mut ffi::ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: a live channel.
    let channel = unsafe { Channel::borrow(raw) };
    let Some(addr) = channel.events.receive() else {
        return -1;
    };
    let addr = usize::try_from(addr).unwrap_or(0);
    let event: *mut ffi::ibv_cq = ptr::with_exposed_provenance_mut(addr);
    // SAFETY: the queue is live: its destruction removes pending events, and waits for the acknowledgement of taken
    // ones.
    let context = unsafe { (*event).cq_context };
    // SAFETY: as above.
    let device = unsafe { &Cq::borrow(event).device };
    if let Some(checker) = device.port.checker() {
        // SAFETY: as above.
        let id = unsafe { Cq::borrow(event) }.id;
        checker.event(device.port.index(), id);
    }
    // SAFETY: the caller's place.
    unsafe { *cq = event };
    // SAFETY: the caller's place.
    unsafe { *cq_context = context };
    0
}

pub(super) unsafe extern "C" fn ibv_ack_cq_events(raw: *mut ffi::ibv_cq, count: c_uint) {
    // SAFETY: live: destroying the queue waits for the acknowledgement below.
    let lock = unsafe { &raw mut (*raw).mutex };
    // SAFETY: as above; an all-zero mutex is unlocked.
    let _: c_int = unsafe { libc::pthread_mutex_lock(lock) };
    // Programs read the number of acknowledged events, modulo 2^32, with this mutex locked.
    // SAFETY: as above.
    let completed = unsafe { (*raw).comp_events_completed };
    // SAFETY: as above, and changed only with the mutex locked.
    unsafe { (*raw).comp_events_completed = completed.wrapping_add(count) };
    // SAFETY: locked by this thread above.
    let _: c_int = unsafe { libc::pthread_mutex_unlock(lock) };
    // SAFETY: live: destroying the queue waits for the acknowledgement below.
    let cq = unsafe { Cq::borrow(raw) };
    let acks = Arc::clone(&cq.acks);
    if let Some(checker) = cq.device.port.checker() {
        checker.acknowledged(cq.device.port.index(), cq.id, count);
        cq.device.port.deliver_reports();
    }
    // The queue may be freed as soon as the last event is acknowledged.
    acks.remove(count);
}
