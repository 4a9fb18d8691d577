//! Shared receive queues.

use std::{
    cell::UnsafeCell,
    ffi::c_int,
    sync::{Arc, Mutex, PoisonError},
};

use ibverbs_sys as ffi;

use super::{
    acks::{self, Acks},
    context::OpenDevice,
    cq::{Cq, forget_async},
    errno, null,
    object::{Object, zeroed},
    outcome,
    pd::Pd,
    post,
    qp::recv_queue_bytes,
    query::{MAX_SGE, MAX_WR},
    xrcd::Xrcd,
};
use crate::{
    check::{CallSite, Parent},
    engine::SrqId,
    fabric::{ObjectCharge, Port, Resource},
    failure::Call,
};

/// A shared receive queue.
#[repr(C)]
pub(super) struct Srq {
    raw: UnsafeCell<ffi::ibv_srq>,
    pub(super) device: Arc<OpenDevice>,
    pub(super) id: SrqId,
    max_sge: u32,
    /// Unacknowledged asynchronous events.
    pub(super) acks: Arc<Acks>,
    charge: Mutex<ObjectCharge>,
}

// SAFETY: `repr(C)`, and the C struct comes first.
unsafe impl Object for Srq {
    type Raw = ffi::ibv_srq;
}

pub(super) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ffi::ibv_pd,
    init: *mut ffi::ibv_srq_init_attr,
) -> *mut ffi::ibv_srq {
    // SAFETY: the caller's attributes, which drivers change, too.
    let init = unsafe { &mut *init };
    // SAFETY: a live domain.
    unsafe { create(pd, init, None) }
}

pub(super) unsafe extern "C" fn create_srq_ex(
    _ctx: *mut ffi::ibv_context,
    init: *mut ffi::ibv_srq_init_attr_ex,
) -> *mut ffi::ibv_srq {
    use ffi::ibv_srq_init_attr_mask as has;
    // SAFETY: the caller's attributes, which drivers change, too.
    let init = unsafe { &mut *init };
    let needed = has::IBV_SRQ_INIT_ATTR_TYPE.0
        | has::IBV_SRQ_INIT_ATTR_PD.0
        | has::IBV_SRQ_INIT_ATTR_XRCD.0
        | has::IBV_SRQ_INIT_ATTR_CQ.0;
    // Basic queues are created by `ibv_create_srq`.
    if init.srq_type != ffi::ibv_srq_type::IBV_SRQT_XRC {
        return null(libc::EOPNOTSUPP);
    }
    if init.comp_mask != needed {
        return null(libc::EINVAL);
    }
    // SAFETY: the caller's domain is live.
    let xrcd = unsafe { Xrcd::borrow(init.xrcd) };
    // SAFETY: the caller's queue is live.
    let cq = unsafe { Cq::borrow(init.cq) };
    if !xrcd.device.port.is(&cq.device.port) {
        return null(libc::EINVAL);
    }
    let mut plain = ffi::ibv_srq_init_attr {
        srq_context: init.srq_context,
        attr: init.attr,
    };
    // SAFETY: the caller's domain is live.
    let srq = unsafe { create(init.pd, &mut plain, Some((xrcd, cq))) };
    init.attr = plain.attr;
    srq
}

/// The granted receives and elements of a queue: those of the request, or as a card grants them. Fails with an errno.
fn capacity(port: &Port, max_wr: u32, max_sge: u32) -> Result<(u32, u32), c_int> {
    let Some(card) = port.card() else {
        let fits = max_wr > 0 && max_wr <= MAX_WR && max_sge <= MAX_SGE;
        return fits.then_some((max_wr, max_sge)).ok_or(libc::EINVAL);
    };
    let default_max = (MAX_WR as usize, MAX_SGE as usize);
    let (max_wr, max_sge) = card.srq_capacity((max_wr as usize, max_sge as usize), default_max)?;
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Ok((number(max_wr), number(max_sge)))
}

/// Creates a queue, for extended connections if given their objects. The capacity that a card grants is written to the
/// attributes.
///
/// # Safety
/// - The domain is live.
unsafe fn create(
    raw_pd: *mut ffi::ibv_pd,
    init: &mut ffi::ibv_srq_init_attr,
    xrc: Option<(&Xrcd, &Cq)>,
) -> *mut ffi::ibv_srq {
    // SAFETY: the caller's promise.
    let pd = unsafe { Pd::borrow(raw_pd) };
    let (max_wr, max_sge) = (init.attr.max_wr, init.attr.max_sge);
    let is_foreign = xrc.is_some_and(|(xrcd, _)| !xrcd.device.port.is(&pd.device.port));
    if is_foreign {
        return null(libc::EINVAL);
    }
    let (max_wr, max_sge) = match capacity(&pd.device.port, max_wr, max_sge) {
        Ok(granted) => granted,
        Err(errno) => return null(errno),
    };
    let accounts = pd.device.port.accounts();
    let bytes = recv_queue_bytes(max_wr, max_sge);
    let charge = match accounts.charge_object(Resource::SharedReceiveQueues, bytes) {
        Ok(charge) => charge,
        Err(errno) => return null(errno),
    };
    let (wrs, sges) = (max_wr as usize, max_sge as usize);
    let create = pd.device.port.look(|nic| match xrc {
        Some((xrcd, cq)) => nic
            .engine
            .create_xrc_srq(pd.id, (xrcd.id, cq.id), wrs, sges),
        None => nic.engine.create_srq(pd.id, wrs, sges),
    });
    let id = match create {
        Ok(id) => id,
        Err(error) => return null(errno(error)),
    };
    if pd.device.port.card().is_some() {
        (init.attr.max_wr, init.attr.max_sge) = (max_wr, max_sge);
    }
    let mut raw: ffi::ibv_srq = zeroed();
    raw.context = pd.context();
    raw.srq_context = init.srq_context;
    raw.pd = raw_pd;
    raw.handle = id.0;
    let acks = Arc::new(Acks::default());
    let srq = Srq {
        raw: UnsafeCell::new(raw),
        device: Arc::clone(&pd.device),
        id,
        max_sge,
        acks: Arc::clone(&acks),
        charge: Mutex::new(charge),
    };
    let raw = srq.into_raw();
    let subject = pd.device.subject(raw.expose_provenance() as u64, &acks);
    pd.device
        .port
        .notifier()
        .subjects()
        .srqs
        .insert(id, subject);
    raw
}

/// Reads the number named by senders of extended connections.
pub(super) unsafe extern "C" fn get_srq_num(raw: *mut ffi::ibv_srq, out: *mut u32) -> c_int {
    // SAFETY: a live queue.
    let srq = unsafe { Srq::borrow(raw) };
    let Some(number) = srq.device.port.look(|nic| nic.engine.srq_number(srq.id)) else {
        return libc::EOPNOTSUPP;
    };
    // SAFETY: the caller's place.
    unsafe { *out = number };
    0
}

/// Whether a queue may be resized to this number of receives.
fn may_resize(port: &Port, max_wr: u32) -> bool {
    match port.card().and_then(|card| card.specification().srq) {
        Some(limits) => limits.resizes && max_wr <= limits.max_wr.unwrap_or(MAX_WR),
        None => max_wr <= MAX_WR,
    }
}

pub(super) unsafe extern "C" fn ibv_modify_srq(
    raw: *mut ffi::ibv_srq,
    attr: *mut ffi::ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: a live queue.
    let srq = unsafe { Srq::borrow(raw) };
    use ffi::ibv_srq_attr_mask as has;
    let mask = mask.cast_unsigned();
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    let resizes = mask & has::IBV_SRQ_MAX_WR.0 != 0;
    let arms = mask & has::IBV_SRQ_LIMIT.0 != 0;
    if mask & !(has::IBV_SRQ_LIMIT.0 | has::IBV_SRQ_MAX_WR.0) != 0
        || (resizes && !may_resize(&srq.device.port, attr.max_wr))
        || (resizes && arms && attr.srq_limit > attr.max_wr)
    {
        return libc::EINVAL;
    }
    let resized = resizes.then(|| {
        let bytes = recv_queue_bytes(attr.max_wr, srq.max_sge);
        let accounts = srq.device.port.accounts();
        accounts.charge(Resource::LockedMemory, bytes)
    });
    let memory = match resized.transpose() {
        Ok(memory) => memory,
        Err(errno) => return errno,
    };
    let changed = srq.device.port.look(|nic| {
        if let Some(memory) = memory {
            nic.engine.resize_srq(srq.id, attr.max_wr as usize)?;
            let mut charge = srq.charge.lock().unwrap_or_else(PoisonError::into_inner);
            charge.memory = memory;
        }
        if arms {
            nic.engine.arm_srq(srq.id, attr.srq_limit as usize)?;
        }
        Ok(())
    });
    outcome(changed)
}

pub(super) unsafe extern "C" fn ibv_query_srq(
    raw: *mut ffi::ibv_srq,
    attr: *mut ffi::ibv_srq_attr,
) -> c_int {
    // SAFETY: a live queue.
    let srq = unsafe { Srq::borrow(raw) };
    let (limit, max_wr) = srq.device.port.look(|nic| {
        let engine = nic.engine;
        (engine.srq_limit(srq.id), engine.srq_capacity(srq.id))
    });
    let number = |value: Option<usize>| u32::try_from(value.unwrap_or(0)).unwrap_or(u32::MAX);
    let mut found = ffi::ibv_srq_attr::zeroed();
    found.max_wr = number(max_wr);
    found.max_sge = srq.max_sge;
    found.srq_limit = number(limit);
    // SAFETY: the caller's place.
    unsafe { *attr = found };
    0
}

pub(super) unsafe extern "C" fn ibv_destroy_srq(raw: *mut ffi::ibv_srq) -> c_int {
    // SAFETY: a live queue.
    let srq = unsafe { Srq::borrow(raw) };
    let port = &srq.device.port;
    let ret = outcome(port.look(|nic| nic.engine.destroy_srq(srq.id)));
    let addr = raw.expose_provenance() as u64;
    port.note_destruction(addr, ret, "ibv_destroy_srq", Parent::Srq(srq.id));
    if ret != 0 {
        return ret;
    }
    if let Some(checker) = port.checker() {
        checker.destroyed_srq(port.index(), srq.id);
    }
    let subject = port.notifier().subjects().srqs.remove(&srq.id);
    if let Some(subject) = subject {
        forget_async(&subject);
        if !acks::wait(port, &subject.acks, "ibv_destroy_srq") {
            return 0;
        }
    }
    // SAFETY: live until here; the caller gives the queue up.
    unsafe { Srq::free(raw) };
    0
}

pub(super) unsafe extern "C" fn post_srq_recv(
    raw: *mut ffi::ibv_srq,
    mut wr: *mut ffi::ibv_recv_wr,
    bad: *mut *mut ffi::ibv_recv_wr,
) -> c_int {
    // SAFETY: a live queue.
    let srq = unsafe { Srq::borrow(raw) };
    while !wr.is_null() {
        // SAFETY: a request of the caller's chain.
        let this = unsafe { &*wr };
        // SAFETY: as above.
        let request = unsafe { post::recv_request(this) };
        let port = &srq.device.port;
        let posted = port
            .attempt(Call::PostSrqRecv)
            .and(post::check_count(this.num_sge));
        let posted = posted.and_then(|()| {
            let posted = port.look(|nic| {
                // Receives of extended connections are not followed: their completions do not name the queue.
                let is_plain = nic.engine.srq_number(srq.id).is_none();
                let described = port.checker().filter(|_| is_plain).map(|checker| {
                    let site = CallSite::here();
                    (checker, checker.describe_recv(port.index(), &request, site))
                });
                nic.engine.post_srq_recv(srq.id, request)?;
                if let Some((checker, described)) = described {
                    checker.received_shared(port.index(), srq.id, described);
                }
                Ok(())
            });
            posted.map_err(errno)
        });
        if let Err(errno) = posted {
            // SAFETY: the caller's place.
            unsafe { *bad = wr };
            return port.adversary().posting_errno(errno);
        }
        wr = this.next;
    }
    0
}
