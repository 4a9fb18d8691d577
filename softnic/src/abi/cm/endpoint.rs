//! Identifiers whose calls wait for their events, on a channel of the identifier's own, and endpoints.

use std::{
    ffi::{c_int, c_void},
    io, mem, ptr,
};

use ibverbs_sys as verbs;
use rdmacm_sys as ffi;

use super::{
    address, channel,
    event::{rdma_ack_cm_event, rdma_get_cm_event},
    failed, id,
    id::Id,
    outcome,
    qp::{rdma_create_qp, rdma_destroy_qp},
    resolve::{rdma_resolve_addr, rdma_resolve_route},
    srq::rdma_destroy_srq,
};
use crate::{
    abi::{object::Object, set_errno},
    cm::PortSpace,
    fabric,
    failure::Call,
};

use ffi::rdma_cm_event_type as Kind;

/// Timeout in milliseconds of the resolutions of an endpoint, as in librdmacm.
const RESOLUTION_MS: c_int = 2000;

/// Acknowledges the event that the latest waiting call has left in the identifier.
///
/// # Safety
/// - `raw` is a live identifier, used by no other thread.
pub(super) unsafe fn acknowledge(raw: *mut ffi::rdma_cm_id) {
    // SAFETY: the caller's promise.
    let event = unsafe { (*raw).event };
    if !event.is_null() {
        // SAFETY: as above.
        unsafe { (*raw).event = ptr::null_mut() };
        // SAFETY: left by a waiting call, and acknowledged once.
        unsafe { rdma_ack_cm_event(event) };
    }
}

/// Ends a call with the result `ret`: a successful one of an identifier with a channel of its own waits for the event, which
/// stays in the identifier. Returns 0, or -1 with `errno` set.
///
/// # Safety
/// - `raw` is a live identifier, used by no other thread if the channel is its own.
pub(super) unsafe fn finish(raw: *mut ffi::rdma_cm_id, ret: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let waits = unsafe { Id::borrow(raw) }.extra().has_channel;
    if ret != 0 || !waits {
        return ret;
    }
    // SAFETY: the caller's promise.
    unsafe { acknowledge(raw) };
    // SAFETY: live; the channel is the identifier's own.
    let channel = unsafe { (*raw).channel };
    let mut event = ptr::null_mut();
    // SAFETY: a live channel, and a local variable.
    if unsafe { rdma_get_cm_event(channel, &raw mut event) } != 0 {
        return -1;
    }
    // SAFETY: the caller's promise.
    unsafe { (*raw).event = event };
    // SAFETY: an event not yet acknowledged.
    let event = unsafe { &*event };
    let (kind, status) = (event.event, event.status);
    match (kind, status) {
        (_, 0) => 0,
        (Kind::RDMA_CM_EVENT_REJECTED, _) => failed(libc::ECONNREFUSED),
        (_, status) => failed(status.saturating_abs()),
    }
}

/// Gives the identifier's own channel up, with the event in the identifier.
///
/// # Safety
/// - `raw` is a live identifier, used by no other thread.
pub(super) unsafe fn leave_channel(
    raw: *mut ffi::rdma_cm_id,
) -> Option<*mut ffi::rdma_event_channel> {
    // SAFETY: the caller's promise.
    unsafe { acknowledge(raw) };
    // SAFETY: the caller's promise.
    let had_channel = mem::take(&mut unsafe { Id::borrow(raw) }.extra().has_channel);
    // SAFETY: the caller's promise.
    had_channel.then(|| unsafe { (*raw).channel })
}

/// Creates an identifier with a channel of its own, whose calls wait for their events.
pub(super) fn create(
    space: PortSpace,
    context: *mut c_void,
) -> Result<*mut ffi::rdma_cm_id, c_int> {
    let port = fabric::current().ok_or(libc::ENODEV)?;
    let channel = channel::create(Some(&port))?;
    // SAFETY: a live channel.
    let queue = unsafe { channel::queue(channel) };
    let num = port.look(|nic| nic.manager.create_id(space));
    let created = Id::create(&port, num, &queue, (channel, context), false);
    // SAFETY: live, and not yet known to the program.
    unsafe { Id::borrow(created) }.extra().has_channel = true;
    Ok(created)
}

/// Takes the next connection request of a listener with a channel of its own, as an identifier with such a channel.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_request(
    listener: *mut ffi::rdma_cm_id,
    out: *mut *mut ffi::rdma_cm_id,
) -> c_int {
    // SAFETY: the caller's listener.
    let of = unsafe { Id::borrow(listener) };
    if !of.extra().has_channel {
        return failed(libc::EINVAL);
    }
    // SAFETY: the caller has exclusive use of the listener.
    unsafe { acknowledge(listener) };
    // SAFETY: live; the channel is the listener's own.
    let channel = unsafe { (*listener).channel };
    let mut event = ptr::null_mut();
    // SAFETY: a live channel, and a local variable.
    if unsafe { rdma_get_cm_event(channel, &raw mut event) } != 0 {
        return -1;
    }
    // SAFETY: an event not yet acknowledged.
    let contents = unsafe { &*event };
    let (kind, child) = (contents.event, contents.id);
    if kind != Kind::RDMA_CM_EVENT_CONNECT_REQUEST {
        // SAFETY: as above; acknowledged once.
        unsafe { rdma_ack_cm_event(event) };
        return failed(libc::EINVAL);
    }
    // SAFETY: the new identifier of the request, not yet known to the program.
    let mut ret = unsafe { id::rdma_migrate_id(child, ptr::null_mut()) };
    let init = of.extra().qp_init;
    if let Some(mut init) = init
        && ret == 0
    {
        // SAFETY: live.
        let pd = unsafe { (*listener).pd };
        // SAFETY: a live identifier with a device, and the listener's domain.
        ret = unsafe { rdma_create_qp(child, pd, &raw mut init) };
    }
    if ret != 0 {
        let errno = io::Error::last_os_error().raw_os_error();
        // SAFETY: acknowledged once.
        unsafe { rdma_ack_cm_event(event) };
        // SAFETY: live, and not known to the program.
        unsafe { id::rdma_destroy_id(child) };
        return failed(errno.unwrap_or(libc::EINVAL));
    }
    // SAFETY: live; the next call of the identifier acknowledges the event.
    unsafe { (*child).event = event };
    // SAFETY: the caller's place.
    unsafe { *out = child };
    0
}

/// Creates an identifier with a channel of its own: a passive one bound to the source of `info`, whose requests get queue
/// pairs with the attributes, or an active one with a resolved route and a queue pair. Without attributes, neither has
/// queue pairs.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_ep(
    out: *mut *mut ffi::rdma_cm_id,
    info: *mut ffi::rdma_addrinfo,
    pd: *mut verbs::ibv_pd,
    init: *mut verbs::ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's information.
    let info = unsafe { &*info };
    let space = u32::try_from(info.ai_port_space).ok();
    let Some(space) = space.and_then(PortSpace::from_number) else {
        return failed(libc::EINVAL);
    };
    if let Some(Err(errno)) = fabric::current().map(|port| port.attempt(Call::CreateEp)) {
        return failed(errno);
    }
    let created = match create(space, ptr::null_mut()) {
        Ok(created) => created,
        Err(errno) => return failed(errno),
    };
    if let Ok(kind) = u32::try_from(info.ai_qp_type)
        && kind != 0
    {
        // SAFETY: live, and not yet known to the program.
        unsafe { (*created).qp_type = verbs::ibv_qp_type(kind) };
    }
    // SAFETY: null, or the caller's attributes.
    let type_before = unsafe { init.as_mut() }.map(|init| {
        // SAFETY: live, as above.
        let kind = unsafe { (*created).qp_type };
        mem::replace(&mut init.qp_type, kind)
    });
    let ret = if info.ai_flags & ffi::RAI_PASSIVE != 0 {
        // SAFETY: the new identifier, and the caller's information and objects.
        unsafe { make_passive(created, info, pd, init) }
    } else {
        // SAFETY: as above.
        unsafe { make_active(created, info, pd, init) }
    };
    if ret != 0 {
        let errno = io::Error::last_os_error().raw_os_error();
        // SAFETY: live, and not known to the program.
        unsafe { rdma_destroy_ep(created) };
        if let Some(kind) = type_before {
            // SAFETY: the caller's attributes.
            unsafe { (*init).qp_type = kind };
        }
        set_errno(errno.unwrap_or(libc::EINVAL));
        return -1;
    }
    // SAFETY: the caller's place.
    unsafe { *out = created };
    0
}

/// Binds a new identifier, and stores the attributes of its requests' queue pairs.
///
/// # Safety
/// - `raw` is a live identifier, the address that of a socket, and the others null or live.
unsafe fn make_passive(
    raw: *mut ffi::rdma_cm_id,
    info: &ffi::rdma_addrinfo,
    pd: *mut verbs::ibv_pd,
    init: *const verbs::ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(source) = (unsafe { address::read(info.ai_src_addr) }) else {
        return failed(libc::EINVAL);
    };
    // SAFETY: the caller's promise.
    let id = unsafe { Id::borrow(raw) };
    // SAFETY: null, or attributes.
    id.extra().qp_init = unsafe { init.as_ref() }.copied();
    // SAFETY: the caller's promise.
    unsafe { (*raw).pd = pd };
    let ret = outcome(id.call(|manager| manager.bind(id.num(), source.ip())));
    id.refresh();
    ret
}

/// Resolves address and route of a new identifier, and creates its queue pair.
///
/// # Safety
/// - As for [`make_passive`].
unsafe fn make_active(
    raw: *mut ffi::rdma_cm_id,
    info: &ffi::rdma_addrinfo,
    pd: *mut verbs::ibv_pd,
    init: *mut verbs::ibv_qp_init_attr,
) -> c_int {
    let (source, peer) = (info.ai_src_addr, info.ai_dst_addr);
    // SAFETY: the caller's promise.
    let mut ret = unsafe { rdma_resolve_addr(raw, source, peer, RESOLUTION_MS) };
    if ret == 0 {
        // SAFETY: the caller's promise.
        ret = unsafe { rdma_resolve_route(raw, RESOLUTION_MS) };
    }
    if ret == 0 && !init.is_null() {
        // SAFETY: a live identifier with a device, and the caller's objects.
        ret = unsafe { rdma_create_qp(raw, pd, init) };
    }
    ret
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_ep(id: *mut ffi::rdma_cm_id) {
    // SAFETY: the caller's identifier, with or without a queue pair.
    unsafe { rdma_destroy_qp(id) };
    // SAFETY: as above, with or without a shared receive queue.
    unsafe { rdma_destroy_srq(id) };
    // SAFETY: live until here; the caller gives the identifier up.
    unsafe { id::rdma_destroy_id(id) };
}
