//! Queue pairs made by librdmacm for an identifier, and their transitions.

use std::{ffi::c_int, io, ptr};

use ibverbs_sys::{
    self as verbs, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_init_attr_mask, ibv_qp_state, ibv_qp_type,
};
use rdmacm_sys as ffi;

use super::{attributes::rdma_init_qp_attr, failed, id::Id};
use crate::abi::{functions, object::Object, set_errno};

/// Depths of reads and atomics in `rdma_conn_param`, for a transition.
#[derive(Clone, Copy)]
pub(super) struct Depths {
    /// Maximum number of the peer's reads and atomics in flight; `None` for the negotiated number.
    pub(super) responder_resources: Option<u8>,
    /// Maximum number of own reads and atomics in flight; `None` for the negotiated number.
    pub(super) initiator_depth: Option<u8>,
}

impl Depths {
    /// The negotiated numbers.
    pub(super) const NEGOTIATED: Self = Self {
        responder_resources: None,
        initiator_depth: None,
    };
}

/// The queue pair of an identifier; null without one.
///
/// # Safety
/// - `id` is a live identifier.
pub(super) unsafe fn of(id: *mut ffi::rdma_cm_id) -> *mut verbs::ibv_qp {
    // SAFETY: the caller's promise; the program changes the field by calls that exclude others.
    unsafe { (*id).qp }
}

/// Changes the state of the identifier's queue pair, with attributes of the connection. Returns 0, or -1 with `errno` set.
///
/// # Safety
/// - `id` is a live identifier, and `qp` a live queue pair.
unsafe fn change(
    id: *mut ffi::rdma_cm_id,
    qp: *mut verbs::ibv_qp,
    to: ibv_qp_state,
    depths: Depths,
) -> c_int {
    let mut attr = ibv_qp_attr::zeroed();
    let mut mask = 0;
    attr.qp_state = to;
    // SAFETY: a live identifier, and local variables.
    let ret = unsafe { rdma_init_qp_attr(id, &raw mut attr, &raw mut mask) };
    if ret != 0 {
        return ret;
    }
    if let Some(count) = depths.responder_resources {
        attr.max_dest_rd_atomic = count;
    }
    if let Some(count) = depths.initiator_depth {
        attr.max_rd_atomic = count;
    }
    // SAFETY: the caller's promise.
    unsafe { modify(qp, &mut attr, mask) }
}

/// Modifies a queue pair. Returns 0, or -1 with `errno` set.
///
/// # Safety
/// - `qp` is a live queue pair.
unsafe fn modify(qp: *mut verbs::ibv_qp, attr: &mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { functions::ibv_modify_qp(qp, attr, mask) } {
        0 => 0,
        errno => failed(errno),
    }
}

/// Brings the queue pair of a connection up to sending.
///
/// # Safety
/// - `id` is a live identifier with a live queue pair.
pub(super) unsafe fn bring_up(id: *mut ffi::rdma_cm_id, depths: Depths) -> c_int {
    use ibv_qp_state as to;
    // SAFETY: the caller's promise.
    let qp = unsafe { of(id) };
    // The attributes of the first state depend on the connection, too: the rights of the peer.
    for state in [to::IBV_QPS_INIT, to::IBV_QPS_RTR, to::IBV_QPS_RTS] {
        // SAFETY: the caller's promise.
        let ret = unsafe { change(id, qp, state, depths) };
        if ret != 0 {
            return ret;
        }
    }
    0
}

/// Fails the queue pair of an identifier, if there is one: requests are flushed.
///
/// # Safety
/// - `id` is a live identifier.
pub(super) unsafe fn fail(id: *mut ffi::rdma_cm_id) {
    // SAFETY: the caller's promise.
    let qp = unsafe { of(id) };
    if !qp.is_null() {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = ibv_qp_state::IBV_QPS_ERR;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed();
        // SAFETY: the queue pair of a live identifier is live.
        unsafe { modify(qp, &mut attr, mask) };
    }
}

/// Attaches the identifier's queue pair, if there is one, to a multicast group. Returns 0 or an errno.
///
/// # Safety
/// - `id` is a live identifier.
pub(super) unsafe fn attach(id: *mut ffi::rdma_cm_id, group: &verbs::ibv_gid) -> c_int {
    // SAFETY: the caller's promise.
    let qp = unsafe { of(id) };
    if qp.is_null() {
        return 0;
    }
    // SAFETY: the queue pair of a live identifier is live.
    unsafe { functions::ibv_attach_mcast(qp, group, 0) }
}

/// Detaches the identifier's queue pair, if there is one, from a multicast group. Without effect for one that the program has
/// not attached, or has detached.
///
/// # Safety
/// - `id` is a live identifier.
pub(super) unsafe fn detach(id: *mut ffi::rdma_cm_id, group: &verbs::ibv_gid) {
    // SAFETY: the caller's promise.
    let qp = unsafe { of(id) };
    if !qp.is_null() {
        // SAFETY: the queue pair of a live identifier is live.
        unsafe { functions::ibv_detach_mcast(qp, group, 0) };
    }
}

/// Brings a queue pair of datagrams up to sending: their transitions need no peer.
///
/// # Safety
/// - `id` is a live identifier, and `qp` a live queue pair.
unsafe fn bring_up_datagrams(id: *mut ffi::rdma_cm_id, qp: *mut verbs::ibv_qp) -> c_int {
    // SAFETY: the caller's promise.
    let mut ret = unsafe { change(id, qp, ibv_qp_state::IBV_QPS_INIT, Depths::NEGOTIATED) };
    let state = ibv_qp_attr_mask::IBV_QP_STATE;
    for (to, mask) in [
        (ibv_qp_state::IBV_QPS_RTR, state),
        (
            ibv_qp_state::IBV_QPS_RTS,
            state | ibv_qp_attr_mask::IBV_QP_SQ_PSN,
        ),
    ] {
        if ret == 0 {
            let mut attr = ibv_qp_attr::zeroed();
            attr.qp_state = to;
            // SAFETY: the caller's promise.
            ret = unsafe { modify(qp, &mut attr, mask.0.cast_signed()) };
        }
    }
    ret
}

/// Completes the attributes of a queue pair: the identifier's protection domain, its shared receive queue, and completion queues with event channels,
/// where the program has none. Returns false with `errno` set if one cannot be created.
///
/// # Safety
/// - `raw` is a live identifier with a device.
unsafe fn complete(
    raw: *mut ffi::rdma_cm_id,
    pd: &mut *mut verbs::ibv_pd,
    attr: &mut ibv_qp_init_attr,
) -> bool {
    // SAFETY: the caller's promise.
    if !unsafe { complete_pd(raw, pd) } {
        return false;
    }
    // SAFETY: the caller's promise, and exclusive use of the identifier by its program during the call.
    let id = unsafe { &mut *raw };
    if attr.srq.is_null() {
        attr.srq = id.srq;
    }
    let ctx = id.verbs;
    let queues = [
        (
            &mut attr.send_cq,
            attr.cap.max_send_wr,
            &mut id.send_cq_channel,
            &mut id.send_cq,
        ),
        (
            &mut attr.recv_cq,
            attr.cap.max_recv_wr,
            &mut id.recv_cq_channel,
            &mut id.recv_cq,
        ),
    ];
    for (cq, depth, made_channel, made_cq) in queues {
        // SAFETY: an open context.
        if !unsafe { make_queue((raw, ctx), cq, depth, (made_channel, made_cq)) } {
            return false;
        }
    }
    true
}

/// Sets the protection domain to the identifier's, if the program has none. Returns false with `errno` set if it cannot be
/// allocated.
///
/// # Safety
/// - `raw` is a live identifier with a device.
pub(super) unsafe fn complete_pd(raw: *mut ffi::rdma_cm_id, pd: &mut *mut verbs::ibv_pd) -> bool {
    if pd.is_null() {
        // SAFETY: the caller's promise, and exclusive use of the identifier by its program during the call.
        *pd = unsafe { (*raw).pd };
    }
    if pd.is_null() {
        // SAFETY: a live identifier.
        *pd = unsafe { Id::borrow(raw) }.default_pd();
    }
    !pd.is_null()
}

/// Sets a completion queue to one of the identifier with an event channel, which is made by the first call, unless the program
/// has a queue or needs none. Returns false with `errno` set if it cannot be created.
///
/// # Safety
/// - The context is open; the identifier is the context of the queue.
pub(super) unsafe fn make_queue(
    (raw, ctx): (*mut ffi::rdma_cm_id, *mut verbs::ibv_context),
    cq: &mut *mut verbs::ibv_cq,
    depth: u32,
    (made_channel, made_cq): (&mut *mut verbs::ibv_comp_channel, &mut *mut verbs::ibv_cq),
) -> bool {
    if !cq.is_null() || depth == 0 {
        return true;
    }
    if made_cq.is_null() {
        // SAFETY: the caller's promise.
        *made_channel = unsafe { functions::ibv_create_comp_channel(ctx) };
        if made_channel.is_null() {
            return false;
        }
        let depth = c_int::try_from(depth).unwrap_or(c_int::MAX);
        // SAFETY: an open context, and a live channel.
        *made_cq = unsafe { functions::ibv_create_cq(ctx, depth, raw.cast(), *made_channel, 0) };
    }
    *cq = *made_cq;
    !cq.is_null()
}

/// Destroys the completion queues and channels that [`make_queue`] has made.
///
/// # Safety
/// - `raw` is a live identifier, whose queue pair is destroyed.
pub(super) unsafe fn destroy_queues(raw: *mut ffi::rdma_cm_id) {
    // SAFETY: the caller's promise, and exclusive use of the identifier by its program during the call.
    let id = unsafe { &mut *raw };
    let queues = [
        (&mut id.send_cq_channel, &mut id.send_cq),
        (&mut id.recv_cq_channel, &mut id.recv_cq),
    ];
    for (channel, cq) in queues {
        if !cq.is_null() {
            // SAFETY: made by `make_queue`, and forgotten below.
            unsafe { functions::ibv_destroy_cq(*cq) };
            *cq = ptr::null_mut();
        }
        if !channel.is_null() {
            // SAFETY: made by `make_queue`, and forgotten below.
            unsafe { functions::ibv_destroy_comp_channel(*channel) };
            *channel = ptr::null_mut();
        }
    }
}

/// Takes over a new queue pair, in the state INIT, or for datagrams RTS. Returns 0, or -1 with `errno` set.
///
/// # Safety
/// - `raw` is a live identifier, and `qp` null or a live queue pair.
unsafe fn take_over(
    raw: *mut ffi::rdma_cm_id,
    pd: *mut verbs::ibv_pd,
    qp: *mut verbs::ibv_qp,
) -> c_int {
    let mut ret = -1;
    if !qp.is_null() {
        // SAFETY: live; the field does not change.
        let kind = unsafe { (*qp).qp_type };
        ret = if kind == ibv_qp_type::IBV_QPT_UD {
            // SAFETY: both are live.
            unsafe { bring_up_datagrams(raw, qp) }
        } else {
            let to = ibv_qp_state::IBV_QPS_INIT;
            // SAFETY: both are live.
            unsafe { change(raw, qp, to, Depths::NEGOTIATED) }
        };
    }
    if ret == 0 {
        // SAFETY: the program has exclusive use of the identifier during the call.
        unsafe { (*raw).qp = qp };
        // SAFETY: as above.
        unsafe { (*raw).pd = pd };
        return 0;
    }
    let errno = io::Error::last_os_error().raw_os_error();
    if !qp.is_null() {
        // SAFETY: live, and not known to the program.
        unsafe { functions::ibv_destroy_qp(qp) };
    }
    // SAFETY: no queue pair has the queues.
    unsafe { destroy_queues(raw) };
    set_errno(errno.unwrap_or(libc::EINVAL));
    -1
}

/// Whether an identifier can get a queue pair of a protection domain: it has a device, and none so far.
///
/// # Safety
/// - `id` is a live identifier, and `pd` null or a live domain.
unsafe fn may_create(id: *mut ffi::rdma_cm_id, pd: *mut verbs::ibv_pd) -> bool {
    // SAFETY: the caller's promise.
    let ctx = unsafe { (*id).verbs };
    // SAFETY: the caller's promise.
    let qp = unsafe { of(id) };
    // SAFETY: the caller's promise.
    let is_of_device = pd.is_null() || unsafe { (*pd).context } == ctx;
    !ctx.is_null() && qp.is_null() && is_of_device
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_create_qp(
    id: *mut ffi::rdma_cm_id,
    mut pd: *mut verbs::ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's identifier and domain.
    if !unsafe { may_create(id, pd) } {
        return failed(libc::EINVAL);
    }
    // SAFETY: the caller's attributes.
    let init = unsafe { &mut *attr };
    let before = *init;
    // SAFETY: a live identifier with a device.
    let qp = match unsafe { complete(id, &mut pd, init) } {
        // SAFETY: live objects.
        true => unsafe { functions::ibv_create_qp(pd, attr) },
        false => ptr::null_mut(),
    };
    // SAFETY: a live identifier, and a new queue pair.
    let ret = unsafe { take_over(id, pd, qp) };
    if ret != 0 {
        // Without the queues that the call has made and destroyed.
        // SAFETY: the caller's attributes.
        unsafe { *attr = before };
    }
    ret
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut ffi::rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: the caller's attributes.
    let init = unsafe { &mut *attr };
    let has_pd = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
    let domain_before = (init.comp_mask, init.pd);
    let mut pd = match init.comp_mask & has_pd {
        0 => ptr::null_mut(),
        _ => init.pd,
    };
    // SAFETY: the caller's identifier and domain.
    if !unsafe { may_create(id, pd) } {
        return failed(libc::EINVAL);
    }
    // SAFETY: the extended attributes start with the fields of the plain ones, as in C.
    let plain = unsafe { &mut *attr.cast::<ibv_qp_init_attr>() };
    let before = *plain;
    // SAFETY: a live identifier with a device.
    let qp = match unsafe { complete(id, &mut pd, plain) } {
        true => {
            // SAFETY: the caller's attributes.
            let init = unsafe { &mut *attr };
            init.pd = pd;
            init.comp_mask |= has_pd;
            // SAFETY: a live identifier with a device.
            let ctx = unsafe { (*id).verbs };
            // SAFETY: an open context, and live objects.
            unsafe { functions::ibv_create_qp_ex(ctx, attr) }
        }
        false => ptr::null_mut(),
    };
    // SAFETY: a live identifier, and a new queue pair.
    let ret = unsafe { take_over(id, pd, qp) };
    if ret != 0 {
        // SAFETY: the caller's attributes, which start with the fields of the plain ones.
        unsafe { *attr.cast() = before };
        // SAFETY: the caller's attributes.
        let init = unsafe { &mut *attr };
        (init.comp_mask, init.pd) = domain_before;
    }
    ret
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_destroy_qp(id: *mut ffi::rdma_cm_id) {
    // SAFETY: the caller's identifier.
    let qp = unsafe { of(id) };
    if qp.is_null() {
        return;
    }
    // SAFETY: live until here; the caller gives the queue pair up.
    unsafe { functions::ibv_destroy_qp(qp) };
    // SAFETY: the program has exclusive use of the identifier during the call.
    unsafe { (*id).qp = ptr::null_mut() };
    // SAFETY: no queue pair has the queues. One of a shared receive queue stays.
    unsafe { destroy_queues(id) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_src_port(id: *mut ffi::rdma_cm_id) -> u16 {
    // SAFETY: the caller's identifier.
    let id = unsafe { Id::borrow(id) };
    let (local, _) = id.port().look(|nic| nic.manager.addrs(id.num()));
    local.map_or(0, |addr| addr.port()).to_be()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_dst_port(id: *mut ffi::rdma_cm_id) -> u16 {
    // SAFETY: the caller's identifier.
    let id = unsafe { Id::borrow(id) };
    let (_, peer) = id.port().look(|nic| nic.manager.addrs(id.num()));
    peer.map_or(0, |addr| addr.port()).to_be()
}
