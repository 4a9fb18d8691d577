//! Queue pairs.

use std::{
    cell::UnsafeCell,
    ffi::c_int,
    mem, ptr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use ibverbs_sys as ffi;
use mlx5_sys::mlx5dv_qp_ex;

use super::{
    acks::{self, Acks},
    attributes::{absent, attributes, raw_attributes, raw_state, state},
    calls::Calls,
    context::OpenDevice,
    cq::{Cq, forget_async},
    errno, mlx5, null,
    object::{Object, zeroed},
    outcome,
    pd::Pd,
    post::post_all,
    qp_ex::{self, Table},
    query::{MAX_INLINE, MAX_SGE, MAX_WR, addr},
    scripted::PostedSend,
    sequence::Sequence,
    srq::Srq,
    xrcd::Xrcd,
};
use crate::{
    adversary::Rule,
    card::QueueRequest,
    check::{Parent, Used},
    engine::{AttributeMask, Capacity, CqId, QpInit, QpKind, QpNum, SendRequest, State},
    fabric::{ObjectCharge, Port, Resource, locked},
};

/// A queue pair of a vendor's transport.
#[derive(Clone, Copy)]
pub(super) struct Vendor {
    pub(super) kind: QpKind,
    /// Access key of a [`QpKind::Dct`].
    pub(super) dct_key: u64,
}

/// The transport of a new queue pair with queues or with an XRC domain.
pub(super) fn kind(qp_type: ffi::ibv_qp_type, vendor: Option<Vendor>) -> Option<QpKind> {
    Some(match qp_type {
        ffi::ibv_qp_type::IBV_QPT_RC => QpKind::Rc,
        ffi::ibv_qp_type::IBV_QPT_UC => QpKind::Uc,
        ffi::ibv_qp_type::IBV_QPT_UD => QpKind::Ud,
        ffi::ibv_qp_type::IBV_QPT_XRC_SEND => QpKind::XrcSend,
        ffi::ibv_qp_type::IBV_QPT_XRC_RECV => QpKind::XrcRecv,
        ffi::ibv_qp_type::IBV_QPT_DRIVER => vendor?.kind,
        _ => return None,
    })
}

/// A queue pair.
#[repr(C)]
pub(super) struct Qp {
    raw: UnsafeCell<Table>,
    /// The part of libmlx5.
    pub(super) mlx5: mlx5dv_qp_ex,
    pub(super) device: Arc<OpenDevice>,
    pub(super) num: QpNum,
    transport: QpKind,
    init: ffi::ibv_qp_init_attr,
    /// Unacknowledged asynchronous events.
    pub(super) acks: Arc<Acks>,
    /// Whether the queue pair was made for extended requests.
    is_extended: bool,
    /// Extended requests not posted yet.
    pub(super) building: Sequence<Vec<PostedSend>>,
    pub(super) calls: Calls,
    /// Requests whose doorbell has failed: posted with the next one.
    unheard: Mutex<Vec<SendRequest>>,
    _charge: ObjectCharge,
}

// SAFETY: `repr(C)`, and the extended C struct comes first, whose first field is the plain C struct.
unsafe impl Object for Qp {
    type Raw = ffi::ibv_qp;
}

impl Qp {
    /// Type of the queue pair.
    pub(super) fn kind(&self) -> ffi::ibv_qp_type {
        self.init.qp_type
    }

    /// Writes the state of the C struct: atomically, since threads may modify and query a queue pair at the same time.
    fn record_state(&self, state: ffi::ibv_qp_state) {
        // SAFETY: the struct lives as long as `self`; no reference to the field is made.
        let field = unsafe { &raw mut (*self.raw.get()).ex.qp_base.state };
        // SAFETY: a transparent `u32`, aligned, and accessed only here after the creation.
        unsafe { AtomicU32::from_ptr(field.cast()) }.store(state.0, Ordering::Relaxed);
    }

    /// Writes the number of a target, which a card gives it in the state RTR. No other thread uses the queue pair.
    fn record_number(&self) {
        // SAFETY: the struct lives as long as `self`; no reference to the field is made.
        let field = unsafe { &raw mut (*self.raw.get()).ex.qp_base.qp_num };
        // SAFETY: aligned, and written here and at the creation only.
        unsafe { AtomicU32::from_ptr(field) }.store(self.num.0, Ordering::Relaxed);
    }

    /// The requests whose doorbell has failed.
    pub(super) fn unheard(&self) -> MutexGuard<'_, Vec<SendRequest>> {
        self.unheard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the wait of requests whose doorbell has failed, in a new state: an error flushes them, a reset drops them.
    fn hear(&self, state: State) {
        if !matches!(state, State::Reset | State::Err) {
            return;
        }
        let requests = mem::take(&mut *self.unheard());
        if state == State::Err && !requests.is_empty() {
            // Not refused: a queue in the error state has capacity for all requests of `verbs`.
            let _: c_int = post_all(self, requests);
        }
    }

    /// The queue pair, for checks.
    fn used(&self) -> Used {
        Used::Qp(self.device.port.host_qp(self.num))
    }

    /// Reports a call within the critical region of extended requests of the same thread. Returns whether there is one.
    pub(super) fn is_called_within(&self, call: &str) -> bool {
        let Some(checker) = self.device.port.checker() else {
            return false;
        };
        let is_within = self.building.is_of_this_thread();
        if is_within {
            let use_ = format!(
                "is used by {call} before this thread has called ibv_wr_complete: the call may block for ever"
            );
            checker.overlapping(self.used(), &use_);
        }
        is_within
    }

    /// Reports a destruction during a call or a critical region. Returns whether there is one.
    fn is_destroyed_in_use(&self) -> bool {
        let sequence = self
            .building
            .owner()
            .map(|_| "between ibv_wr_start and ibv_wr_complete");
        let port = &self.device.port;
        self.calls.report_destruction(port, self.used(), sequence)
    }

    /// Whether each send request has a destination of its own.
    pub(super) fn is_datagram(&self) -> bool {
        matches!(self.transport, QpKind::Ud | QpKind::Srd | QpKind::Dci)
    }
}

/// Bytes of a send request in locked memory, with up to two elements, and of each further one.
const SEND_BYTES: u64 = 64;
const ELEMENT_BYTES: u64 = 16;

/// Bytes of locked memory of a receive queue.
pub(super) fn recv_queue_bytes(max_wr: u32, max_sge: u32) -> u64 {
    locked(
        0,
        u64::from(max_wr) * u64::from(max_sge.max(1)) * ELEMENT_BYTES,
    )
}

/// Bytes of locked memory of a queue pair's queues. A queue pair with a shared receive queue, or of extended connections,
/// has no receive queue.
fn queues_bytes(attr: &ffi::ibv_qp_init_attr) -> u64 {
    let cap = &attr.cap;
    let elements = u64::from(cap.max_send_sge.saturating_sub(2)) * ELEMENT_BYTES;
    let request = SEND_BYTES + elements.max(cap.max_inline_data.into());
    let send = locked(0, u64::from(cap.max_send_wr) * request);
    if attr.srq.is_null() && !attr.recv_cq.is_null() {
        send + recv_queue_bytes(cap.max_recv_wr, cap.max_recv_sge)
    } else {
        send
    }
}

/// The attributes of a new queue pair, without the capacities of a receive queue if there is a shared one in its place.
fn effective(attr: &ffi::ibv_qp_init_attr) -> ffi::ibv_qp_init_attr {
    let mut attr = *attr;
    if !attr.srq.is_null() {
        attr.cap.max_recv_wr = 0;
        attr.cap.max_recv_sge = 0;
    }
    attr
}

/// The capacity of a queue pair with these attributes on a device: that of the request, or as a card grants it.
fn capacity(
    port: &Port,
    kind: QpKind,
    attr: &ffi::ibv_qp_init_attr,
    operations: Option<u64>,
) -> Result<Capacity, c_int> {
    let cap = &attr.cap;
    let requested = Capacity {
        max_send_wr: cap.max_send_wr as usize,
        max_recv_wr: cap.max_recv_wr as usize,
        max_send_sge: cap.max_send_sge as usize,
        max_recv_sge: cap.max_recv_sge as usize,
        max_inline: cap.max_inline_data as usize,
    };
    if let Some(card) = port.card() {
        let is_plain = matches!(kind, QpKind::Rc | QpKind::Uc | QpKind::Ud | QpKind::Srd);
        return card.qp_capacity(&QueueRequest {
            kind,
            operations: operations.map(qp_ex::lengthening),
            has_receives: is_plain && attr.srq.is_null(),
            capacity: requested,
        });
    }
    let fits = cap.max_send_wr <= MAX_WR
        && cap.max_recv_wr <= MAX_WR
        && cap.max_send_sge <= MAX_SGE
        && cap.max_recv_sge <= MAX_SGE
        && cap.max_inline_data <= MAX_INLINE;
    fits.then_some(requested).ok_or(libc::EINVAL)
}

/// Writes a granted capacity into attributes, as drivers do.
fn record_capacity(cap: &mut ffi::ibv_qp_cap, granted: Capacity) {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    cap.max_send_wr = number(granted.max_send_wr);
    cap.max_recv_wr = number(granted.max_recv_wr);
    cap.max_send_sge = number(granted.max_send_sge);
    cap.max_recv_sge = number(granted.max_recv_sge);
    cap.max_inline_data = number(granted.max_inline);
}

/// Converts the attributes of a new queue pair, except those of its transport.
fn init(kind: QpKind, capacity: Capacity, attr: &ffi::ibv_qp_init_attr) -> QpInit {
    QpInit {
        kind,
        pd: None,
        send_cq: None,
        recv_cq: None,
        srq: None,
        xrcd: None,
        dct_key: 0,
        capacity,
        signal_all: attr.sq_sig_all != 0,
    }
}

/// Identifier of a completion queue; `None` for null, or a queue of another device.
///
/// # Safety
/// - The queue is null or live.
unsafe fn cq_of(pd: &Pd, raw: *mut ffi::ibv_cq) -> Option<CqId> {
    if raw.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let cq = unsafe { Cq::borrow(raw) };
    cq.device.port.is(&pd.device.port).then_some(cq.id)
}

/// Converts the attributes of a new queue pair with queues of its own.
///
/// # Safety
/// - The queues in the attributes are live.
unsafe fn queued(
    (kind, capacity): (QpKind, Capacity),
    pd: &Pd,
    attr: &ffi::ibv_qp_init_attr,
) -> Option<QpInit> {
    let mut init = init(kind, capacity, attr);
    init.pd = Some(pd.id);
    // SAFETY: the caller's promise.
    init.send_cq = Some(unsafe { cq_of(pd, attr.send_cq) }?);
    if !matches!(kind, QpKind::XrcSend | QpKind::Dci) {
        // SAFETY: the caller's promise.
        init.recv_cq = Some(unsafe { cq_of(pd, attr.recv_cq) }?);
    }
    // The driver mlx5 accepts a shared queue of an initiator, which receives nothing.
    if !attr.srq.is_null() && kind != QpKind::Dci {
        // SAFETY: the caller's promise.
        let srq = unsafe { Srq::borrow(attr.srq) };
        init.srq = Some(srq.device.port.is(&pd.device.port).then_some(srq.id)?);
    }
    Some(init)
}

pub(super) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ffi::ibv_pd,
    attr: *mut ffi::ibv_qp_init_attr,
) -> *mut ffi::ibv_qp {
    // SAFETY: the caller's attributes, which drivers change, too.
    let attr = unsafe { &mut *attr };
    // SAFETY: the caller's domain and queues are live.
    unsafe { create(pd, attr, None, None) }
}

/// Creates a queue pair with queues of its own; `operations` are those of extended requests. The capacity that a card grants is
/// written to the attributes, unless the creation fails.
///
/// # Safety
/// - The domain and the queues in the attributes are live.
pub(super) unsafe fn create(
    raw_pd: *mut ffi::ibv_pd,
    requested: &mut ffi::ibv_qp_init_attr,
    operations: Option<u64>,
    vendor: Option<Vendor>,
) -> *mut ffi::ibv_qp {
    let kind = kind(requested.qp_type, vendor).filter(|kind| *kind != QpKind::XrcRecv);
    let Some(kind) = kind else {
        return null(libc::EOPNOTSUPP);
    };
    let mut attr = effective(requested);
    // SAFETY: the caller's promise.
    let pd = unsafe { Pd::borrow(raw_pd) };
    let granted = match capacity(&pd.device.port, kind, &attr, operations) {
        Ok(granted) => granted,
        Err(errno) => return null(errno),
    };
    if pd.device.port.card().is_some() {
        record_capacity(&mut attr.cap, granted);
    }
    // SAFETY: the caller's promise.
    let Some(mut init) = (unsafe { queued((kind, granted), pd, &attr) }) else {
        return null(libc::EINVAL);
    };
    init.dct_key = vendor.map_or(0, |vendor| vendor.dct_key);
    let accounts = pd.device.port.accounts();
    let charge = match accounts.charge_object(Resource::QueuePairs, queues_bytes(&attr)) {
        Ok(charge) => charge,
        Err(errno) => return null(errno),
    };
    match pd.device.port.look(|nic| nic.engine.create_qp(init)) {
        Ok(num) => {
            if let Some(checker) = pd.device.port.checker() {
                checker.created_qp(pd.device.port.host_qp(num), &init);
            }
            if pd.device.port.card().is_some() {
                requested.cap = attr.cap;
            }
            let context = (&pd.device, pd.context());
            adopt(context, charge, raw_pd, &attr, (num, kind), operations)
        }
        Err(error) => null(errno(error)),
    }
}

/// Creates the receiving end of an extended connection.
pub(super) fn create_xrc_receiver(xrcd: &Xrcd, attr: &ffi::ibv_qp_init_attr) -> *mut ffi::ibv_qp {
    let granted = match capacity(&xrcd.device.port, QpKind::XrcRecv, attr, None) {
        Ok(granted) => granted,
        Err(errno) => return null(errno),
    };
    let mut init = init(QpKind::XrcRecv, granted, attr);
    init.xrcd = Some(xrcd.id);
    let accounts = xrcd.device.port.accounts();
    let charge = match accounts.charge_object(Resource::QueuePairs, 0) {
        Ok(charge) => charge,
        Err(errno) => return null(errno),
    };
    match xrcd.device.port.look(|nic| nic.engine.create_qp(init)) {
        Ok(num) => {
            let context = (&xrcd.device, xrcd.context());
            let num = (num, QpKind::XrcRecv);
            adopt(context, charge, ptr::null_mut(), attr, num, None)
        }
        Err(error) => null(errno(error)),
    }
}

/// Opens the receiving end of an extended connection once more.
pub(super) unsafe extern "C" fn open_qp(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_qp_open_attr,
) -> *mut ffi::ibv_qp {
    use ffi::ibv_qp_open_attr_mask as has;
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    let needed = has::IBV_QP_OPEN_ATTR_NUM | has::IBV_QP_OPEN_ATTR_XRCD;
    let needed = (needed | has::IBV_QP_OPEN_ATTR_TYPE).0;
    let kind = ffi::ibv_qp_type::IBV_QPT_XRC_RECV;
    if attr.comp_mask & needed != needed || attr.qp_type != kind {
        return null(libc::EINVAL);
    }
    // SAFETY: the caller's domain is live.
    let xrcd = unsafe { Xrcd::borrow(attr.xrcd) };
    let num = QpNum(attr.qp_num);
    let accounts = xrcd.device.port.accounts();
    let charge = match accounts.charge_object(Resource::QueuePairs, 0) {
        Ok(charge) => charge,
        Err(errno) => return null(errno),
    };
    let opened = xrcd
        .device
        .port
        .look(|nic| nic.engine.open_qp(xrcd.id, num));
    if let Err(error) = opened {
        return null(errno(error));
    }
    let mut init = ffi::ibv_qp_init_attr::zeroed();
    init.qp_type = kind;
    if attr.comp_mask & has::IBV_QP_OPEN_ATTR_CONTEXT.0 != 0 {
        init.qp_context = attr.qp_context;
    }
    let context = (&xrcd.device, ctx);
    let num = (num, QpKind::XrcRecv);
    adopt(context, charge, ptr::null_mut(), &init, num, None)
}

/// Makes the C object of an engine's queue pair.
fn adopt(
    (device, ctx): (&Arc<OpenDevice>, *mut ffi::ibv_context),
    charge: ObjectCharge,
    pd: *mut ffi::ibv_pd,
    attr: &ffi::ibv_qp_init_attr,
    (num, transport): (QpNum, QpKind),
    operations: Option<u64>,
) -> *mut ffi::ibv_qp {
    let mut table: Table = zeroed();
    if let Some(operations) = operations {
        qp_ex::fill(&mut table, operations);
    }
    let raw = &mut table.ex.qp_base;
    raw.context = ctx;
    raw.qp_context = attr.qp_context;
    raw.pd = pd;
    raw.send_cq = attr.send_cq;
    raw.recv_cq = attr.recv_cq;
    raw.srq = attr.srq;
    raw.handle = num.0;
    raw.qp_num = match transport {
        QpKind::Dct => 0,
        _ => num.0,
    };
    raw.state = ffi::ibv_qp_state::IBV_QPS_RESET;
    raw.qp_type = attr.qp_type;
    let acks = Arc::new(Acks::default());
    let qp = Qp {
        raw: UnsafeCell::new(table),
        mlx5: mlx5::part(),
        device: Arc::clone(device),
        num,
        transport,
        init: *attr,
        acks: Arc::clone(&acks),
        is_extended: operations.is_some(),
        building: Sequence::default(),
        calls: Calls::default(),
        unheard: Mutex::default(),
        _charge: charge,
    };
    let raw = qp.into_raw();
    let subject = device.subject(raw.expose_provenance() as u64, &acks);
    let mut subjects = device.port.notifier().subjects();
    subjects.qps.entry(num).or_default().push(subject);
    raw
}

pub(super) unsafe extern "C" fn ibv_modify_qp(
    raw: *mut ffi::ibv_qp,
    attr: *mut ffi::ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::borrow(raw) };
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    let mask = AttributeMask(mask.cast_unsigned()).without(absent(qp.kind()));
    let port = &qp.device.port;
    let _in_call = qp.calls.enter(port);
    let attributes = match attributes(port, attr, mask) {
        Ok(attributes) => attributes,
        Err(errno) => return errno,
    };
    let result = port.call(|nic, now| {
        let (from, _) = nic.engine.query_qp(qp.num)?;
        if mask.contains(AttributeMask::CUR_STATE) && state(attr.cur_qp_state) != Some(from) {
            return None;
        }
        let to = if mask.contains(AttributeMask::STATE) {
            state(attr.qp_state)?
        } else {
            from
        };
        let change = (to, &attributes, mask);
        let changed = nic.engine.modify_qp(qp.num, change, now, nic.memory);
        if let Some(checker) = port.checker().filter(|_| changed.is_ok()) {
            let id = port.host_qp(qp.num);
            if to == State::Reset {
                checker.discarded(id, false);
            } else if let Some((state, attributes)) = nic.engine.query_qp(qp.num) {
                checker.connected(id, state, &attributes);
            }
        }
        Some((to, changed))
    });
    match result {
        Some((to, Ok(()))) => {
            qp.record_state(raw_state(to));
            if (qp.transport, to) == (QpKind::Dct, State::Rtr) {
                qp.record_number();
            }
            qp.hear(to);
            0
        }
        Some((_, Err(error))) => errno(error),
        None => libc::EINVAL,
    }
}

pub(super) unsafe extern "C" fn ibv_query_qp(
    raw: *mut ffi::ibv_qp,
    attr: *mut ffi::ibv_qp_attr,
    _mask: c_int,
    init: *mut ffi::ibv_qp_init_attr,
) -> c_int {
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::borrow(raw) };
    let Some((state, attributes)) = qp.device.port.look(|nic| nic.engine.query_qp(qp.num)) else {
        return libc::EINVAL;
    };
    let mut found = raw_attributes(&qp.device.port, state, &attributes);
    found.cap = qp.init.cap;
    // SAFETY: the caller's place.
    unsafe { *attr = found };
    // SAFETY: the caller's place.
    unsafe { *init = qp.init };
    qp.record_state(raw_state(state));
    0
}

pub(super) unsafe extern "C" fn ibv_destroy_qp(raw: *mut ffi::ibv_qp) -> c_int {
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::borrow(raw) };
    let port = &qp.device.port;
    let addr = raw.expose_provenance() as u64;
    let is_in_use = qp.is_destroyed_in_use();
    // The fabric is locked during the call, so no access to the memory of requests is in progress afterwards.
    let ret = outcome(port.look(|nic| {
        nic.engine.settle(nic.memory);
        nic.engine.destroy_qp(qp.num)?;
        if let Some(checker) = port.checker()
            && nic.engine.qp_kind(qp.num).is_none()
        {
            checker.discarded(port.host_qp(qp.num), true);
        }
        Ok(())
    }));
    let parent = Parent::Other("a multicast group");
    port.note_destruction(addr, ret, "ibv_destroy_qp", parent);
    if ret != 0 {
        return ret;
    }
    let subject = port.notifier().subjects().remove_qp(qp.num, addr);
    if let Some(subject) = subject {
        forget_async(&subject);
        if !acks::wait(port, &subject.acks, "ibv_destroy_qp") {
            return 0;
        }
    }
    if !is_in_use {
        // SAFETY: live until here; the caller gives the queue pair up.
        unsafe { Qp::free(raw) };
    }
    0
}

/// Flags of `ibv_query_qp_data_in_order`: a vector of capabilities is requested, or the device's part alone.
const RETURN_CAPS: u32 = 1 << 0;
const DEVICE_ONLY: u32 = 1 << 1;

/// Both capabilities: a message, and each of its aligned blocks, is written in order.
const IN_ORDER: c_int = 0b11;

/// Whether the bytes of a request are written in order. Peers' writes over reliable connections are, since packets are executed
/// once and by their numbers, and memory with rights for peers is written by words. It is promised on links that keep the order
/// of frames, without rules by which a write comes in steps or a packet of it late, and to programs on processors that keep the
/// order of loads. Other bytes are copied in any order.
pub(super) unsafe extern "C" fn ibv_query_qp_data_in_order(
    raw: *mut ffi::ibv_qp,
    op: ffi::ibv_wr_opcode,
    flags: u32,
) -> c_int {
    use ffi::ibv_wr_opcode as of;
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::borrow(raw) };
    let port = &qp.device.port;
    let is_write = [of::IBV_WR_RDMA_WRITE, of::IBV_WR_RDMA_WRITE_WITH_IMM].contains(&op);
    let is_ordered_cpu = cfg!(any(target_arch = "x86", target_arch = "x86_64"));
    let comes_in_steps = [Rule::Placement, Rule::Torn, Rule::NotVisible]
        .iter()
        .any(|rule| port.adversary().has(*rule));
    let is_promised = qp.kind() == ffi::ibv_qp_type::IBV_QPT_RC
        && is_write
        && port.keeps_order()
        && !comes_in_steps
        && flags & !(RETURN_CAPS | DEVICE_ONLY) == 0
        && (is_ordered_cpu || flags & DEVICE_ONLY != 0);
    match is_promised {
        true if flags & RETURN_CAPS != 0 => IN_ORDER,
        is_promised => c_int::from(is_promised),
    }
}

/// Null for a queue pair that was not made for extended requests.
pub(super) unsafe extern "C" fn ibv_qp_to_qp_ex(raw: *mut ffi::ibv_qp) -> *mut ffi::ibv_qp_ex {
    // SAFETY: a live queue pair.
    if unsafe { Qp::borrow(raw) }.is_extended {
        raw.cast()
    } else {
        ptr::null_mut()
    }
}

pub(super) unsafe extern "C" fn ibv_attach_mcast(
    raw: *mut ffi::ibv_qp,
    gid: *const ffi::ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::borrow(raw) };
    // SAFETY: the caller's GID.
    let group = addr(unsafe { *gid });
    let port = &qp.device.port;
    let attached = port.change_groups(|engine| engine.attach(qp.num, group));
    attached.map_or_else(
        |errno| {
            // Without the group of the system, no datagram would arrive.
            let _detached = port.look(|nic| nic.engine.detach(qp.num, group));
            errno
        },
        outcome,
    )
}

pub(super) unsafe extern "C" fn ibv_detach_mcast(
    raw: *mut ffi::ibv_qp,
    gid: *const ffi::ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::borrow(raw) };
    // SAFETY: the caller's GID.
    let group = addr(unsafe { *gid });
    let port = &qp.device.port;
    let detached = port.change_groups(|engine| engine.detach(qp.num, group));
    detached.map_or_else(|errno| errno, outcome)
}
