//! Completion queues.

use std::{
    cell::UnsafeCell,
    ffi::{c_int, c_void},
    mem::offset_of,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use efa_sys::efadv_cq;
use ibverbs_sys as ffi;

use super::{
    acks::{self, Acks},
    calls::{Calls, InCall},
    channel::Channel,
    context::{self, OpenDevice},
    cq_ex::Polled,
    efa,
    notifier::{AsyncEvent, CqSubject, Subject},
    null,
    object::{Object, zeroed},
    outcome,
    query::MAX_CQE,
    sequence::Sequence,
    undefined::{undefined, write_defined},
};
use crate::{
    adversary::{Adversary, Rule},
    check::{Parent, Used},
    engine::{Armed, Completion, CompletionOp, CqId, Engine, Moderation, NetworkHeader, QpNum},
    fabric::{ObjectCharge, Port, Resource, locked},
    failure::Call,
};

/// One failed poll in this number of polls with completions, by an adversary, and the result.
const POLL_ERRORS: u64 = 16;
const POLL_ERROR: c_int = -2;

/// Bytes of a completion in locked memory.
const COMPLETION_BYTES: u64 = 64;

/// A completion queue, plain or extended.
#[repr(C)]
pub(super) struct Cq {
    raw: UnsafeCell<ffi::ibv_cq_ex>,
    /// Where libefa's functions find the queue.
    pub(super) efa: efadv_cq,
    pub(super) device: Arc<OpenDevice>,
    pub(super) id: CqId,
    /// Unacknowledged completion events.
    pub(super) acks: Arc<Acks>,
    /// Unacknowledged asynchronous events.
    pub(super) async_acks: Arc<Acks>,
    channel: *mut ffi::ibv_comp_channel,
    /// The poll in progress of an extended queue.
    pub(super) polled: Sequence<Polled>,
    calls: Calls,
    /// Whether the program has promised to use the queue from one thread at a time.
    is_single_threaded: bool,
    charge: Mutex<ObjectCharge>,
}

// SAFETY: `repr(C)`, and the extended C struct comes first, with all fields of the plain one before its own (checked
// below).
unsafe impl Object for Cq {
    type Raw = ffi::ibv_cq;
}

const _: () = assert!(
    offset_of!(ffi::ibv_cq, async_events_completed)
        == offset_of!(ffi::ibv_cq_ex, async_events_completed)
);

/// Requested properties of a queue.
pub(super) struct CqRequest {
    pub(super) cqe: c_int,
    pub(super) cq_context: *mut c_void,
    pub(super) channel: *mut ffi::ibv_comp_channel,
    pub(super) vector: c_int,
    pub(super) is_single_threaded: bool,
}

/// Capacity of a queue for at least `cqe` completions, for the engine and for C: as a card grants it, or one less than a power
/// of two, as on Soft-RoCE. Fails with an errno if `cqe` is zero, negative or above the limit.
fn capacity(port: &Port, cqe: c_int) -> Result<(usize, c_int), c_int> {
    let max = usize::try_from(MAX_CQE).unwrap_or(0);
    let request = usize::try_from(cqe).unwrap_or(0);
    let capacity = match port.card() {
        Some(card) => card.cq_capacity(request, max)?,
        None if (1..=max).contains(&request) => (request + 1).next_power_of_two() - 1,
        None => return Err(libc::EINVAL),
    };
    Ok((capacity, c_int::try_from(capacity).unwrap_or(c_int::MAX)))
}

/// Bytes of locked memory of a queue with this capacity: one entry stays unused.
fn queue_bytes(capacity: usize) -> u64 {
    locked(0, (capacity as u64 + 1).saturating_mul(COMPLETION_BYTES))
}

pub(super) unsafe extern "C" fn ibv_create_cq(
    ctx: *mut ffi::ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ffi::ibv_comp_channel,
    vector: c_int,
) -> *mut ffi::ibv_cq {
    let request = CqRequest {
        cqe,
        cq_context,
        channel,
        vector,
        is_single_threaded: false,
    };
    // SAFETY: an open context, and a live channel.
    unsafe { create(ctx, request, |_| {}) }.cast()
}

/// Creates a queue; `fill` completes the C struct.
///
/// # Safety
/// - The context is open, and the channel null or live.
pub(super) unsafe fn create(
    ctx: *mut ffi::ibv_context,
    request: CqRequest,
    fill: impl FnOnce(&mut ffi::ibv_cq_ex),
) -> *mut ffi::ibv_cq_ex {
    // SAFETY: the caller's promise.
    let device = unsafe { context::device(ctx) };
    let channel = request.channel;
    let granted = match request.vector {
        0 => capacity(&device.port, request.cqe),
        _ => Err(libc::EINVAL),
    };
    let (capacity, cqe) = match granted {
        Ok(granted) => granted,
        Err(errno) => return null(errno),
    };
    let accounts = device.port.accounts();
    let charge = match accounts.charge_object(Resource::CompletionQueues, queue_bytes(capacity)) {
        Ok(charge) => charge,
        Err(errno) => return null(errno),
    };
    let id = device.port.look(|nic| nic.engine.create_cq(capacity));
    if let Some(checker) = device.port.checker() {
        checker.created_cq(device.port.index(), id, capacity);
    }
    let mut raw: ffi::ibv_cq_ex = zeroed();
    raw.context = ctx;
    raw.channel = channel;
    raw.cq_context = request.cq_context;
    raw.handle = id.0;
    raw.cqe = cqe;
    fill(&mut raw);
    let (acks, async_acks) = (Arc::new(Acks::default()), Arc::new(Acks::default()));
    let cq = Cq {
        raw: UnsafeCell::new(raw),
        efa: efa::part(),
        device: Arc::clone(device),
        id,
        acks: Arc::clone(&acks),
        async_acks: Arc::clone(&async_acks),
        channel,
        polled: Sequence::default(),
        calls: Calls::default(),
        is_single_threaded: request.is_single_threaded,
        charge: Mutex::new(charge),
    };
    let raw = cq.into_raw();
    let events = if channel.is_null() {
        None
    } else {
        // SAFETY: a live channel.
        let channel = unsafe { Channel::borrow(channel) };
        channel.users.fetch_add(1, Ordering::AcqRel);
        Some(Arc::clone(&channel.events))
    };
    let addr = raw.expose_provenance() as u64;
    let subject = CqSubject {
        addr,
        channel: events,
        acks,
        errors: device.subject(addr, &async_acks),
    };
    device.port.notifier().subjects().cqs.insert(id, subject);
    raw.cast()
}

impl Cq {
    /// The queue, for checks.
    fn used(&self) -> Used {
        Used::Cq(self.device.port.index(), self.id)
    }

    /// Counts a call until the result is dropped, on a fabric with checks. Reports overlapping calls on a queue for one thread.
    pub(super) fn enter(&self) -> InCall<'_> {
        let port = &self.device.port;
        let (in_call, others) = self.calls.enter(port);
        let is_polled = || self.polled.owner().is_some() && !self.polled.is_of_this_thread();
        if let Some(checker) = port.checker()
            && self.is_single_threaded
            && (others > 0 || is_polled())
        {
            checker.overlapping(
                self.used(),
                "is used by two threads at once, and was created with IBV_CREATE_CQ_ATTR_SINGLE_THREADED",
            );
        }
        in_call
    }

    /// Ends a poll in progress of the same thread, which would block for ever, on a fabric with checks.
    pub(super) fn leave_poll(&self) {
        if let Some(checker) = self.device.port.checker()
            && self.polled.is_of_this_thread()
        {
            checker.overlapping(
                self.used(),
                "is polled by ibv_start_poll before this thread has called ibv_end_poll: the call blocks for ever",
            );
            self.polled.end();
        }
    }

    /// Reports a destruction during a call or a poll. Returns whether there is one.
    fn is_destroyed_in_use(&self) -> bool {
        let sequence = self
            .polled
            .owner()
            .map(|_| "between ibv_start_poll and ibv_end_poll");
        let port = &self.device.port;
        self.calls.report_destruction(port, self.used(), sequence)
    }

    /// Takes the oldest completion.
    pub(super) fn poll_one(&self) -> Option<Polled> {
        let port = &self.device.port;
        let poll = || {
            port.look(|nic| {
                let completion = nic.engine.poll_cq_into(self.id, nic.memory)?;
                if let Some(checker) = port.checker() {
                    checker.polled(port.index(), &completion);
                }
                let found = match port.adversary().has(Rule::StaleFields) {
                    true => {
                        let kind = nic.engine.qp_kind(QpNum(completion.qp));
                        undefined(&completion, kind, port.adversary())
                    }
                    false => None,
                };
                let found = found.unwrap_or_else(|| wc(&completion));
                Some(Polled::new(&completion, found))
            })
        };
        poll().or_else(|| {
            // Expired timers and arrived frames may complete requests.
            port.advance();
            poll()
        })
    }
}

pub(super) unsafe extern "C" fn ibv_resize_cq(raw: *mut ffi::ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: a live queue.
    let cq = unsafe { Cq::borrow(raw) };
    let request = usize::try_from(cqe).unwrap_or(0);
    let port = &cq.device.port;
    if port
        .card()
        .is_some_and(|card| !card.specification().resizes_cqs)
    {
        return libc::EOPNOTSUPP;
    }
    let (capacity, cqe) = match capacity(port, cqe) {
        Ok(granted) => granted,
        Err(errno) => return errno,
    };
    let bytes = queue_bytes(capacity);
    let memory = match cq
        .device
        .port
        .accounts()
        .charge(Resource::LockedMemory, bytes)
    {
        Ok(memory) => memory,
        Err(errno) => return errno,
    };
    let ret = cq.device.port.look(|nic| {
        // The pending completions must fit the requested size, not the rounded one.
        match nic.engine.cq_len(cq.id) {
            Some(len) if len <= request => outcome(nic.engine.resize_cq(cq.id, capacity)),
            _ => libc::EINVAL,
        }
    });
    if ret == 0 {
        if let Some(checker) = cq.device.port.checker() {
            checker.resized_cq(cq.device.port.index(), cq.id, capacity);
        }
        // SAFETY: live; the field is the library's to change, and the caller resizes from one thread at a time.
        unsafe { (*raw).cqe = cqe };
        cq.charge
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .memory = memory;
    }
    ret
}

/// Sets the moderation of notifications; a period is in microseconds.
pub(super) unsafe extern "C" fn modify_cq(
    raw: *mut ffi::ibv_cq,
    attr: *mut ffi::ibv_modify_cq_attr,
) -> c_int {
    // SAFETY: a live queue.
    let cq = unsafe { Cq::borrow(raw) };
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    if attr.attr_mask != ffi::ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0 {
        return libc::EINVAL;
    }
    let moderation = Moderation {
        count: attr.moderate.cq_count,
        period: Duration::from_micros(attr.moderate.cq_period.into()),
    };
    outcome(
        cq.device
            .port
            .look(|nic| nic.engine.moderate_cq(cq.id, moderation)),
    )
}

pub(super) unsafe extern "C" fn ibv_destroy_cq(raw: *mut ffi::ibv_cq) -> c_int {
    // SAFETY: a live queue.
    let cq = unsafe { Cq::borrow(raw) };
    let port = &cq.device.port;
    let addr = raw.expose_provenance() as u64;
    let is_in_use = cq.is_destroyed_in_use();
    let ret = outcome(port.look(|nic| nic.engine.destroy_cq(cq.id)));
    port.note_destruction(addr, ret, "ibv_destroy_cq", Parent::Cq(cq.id));
    if ret != 0 {
        return ret;
    }
    if let Some(checker) = port.checker() {
        checker.destroyed_cq(port.index(), cq.id);
    }
    // The engine raises the queue's events, and has already destroyed the queue.
    let subject = port.notifier().subjects().cqs.remove(&cq.id);
    if let Some(subject) = subject {
        forget_async(&subject.errors);
        if let Some(channel) = &subject.channel {
            for _removed in channel.remove(|addr| *addr == subject.addr) {
                subject.acks.remove(1);
            }
        }
        let call = "ibv_destroy_cq";
        if !acks::wait(port, &subject.acks, call) || !acks::wait(port, &subject.errors.acks, call) {
            return 0;
        }
    }
    if !cq.channel.is_null() {
        // SAFETY: live: a channel in use is not destroyed.
        let channel = unsafe { Channel::borrow(cq.channel) };
        channel.users.fetch_sub(1, Ordering::AcqRel);
    }
    if !is_in_use {
        // SAFETY: live until here; the caller gives the queue up.
        unsafe { Cq::free(raw) };
    }
    0
}

/// Removes the asynchronous events of a destroyed object.
pub(super) fn forget_async(subject: &Subject) {
    let is_own = |event: &AsyncEvent| event.addr == subject.addr;
    for _removed in subject.events.remove(is_own) {
        subject.acks.remove(1);
    }
}

pub(super) unsafe extern "C" fn req_notify_cq(raw: *mut ffi::ibv_cq, solicited: c_int) -> c_int {
    // SAFETY: a live queue.
    let cq = unsafe { Cq::borrow(raw) };
    let _in_call = cq.enter();
    if let Err(errno) = cq.device.port.attempt(Call::ReqNotifyCq) {
        return errno;
    }
    let request = if solicited == 0 {
        Armed::Next
    } else {
        Armed::Solicited
    };
    let port = &cq.device.port;
    // An adversary may raise an event at once.
    outcome(match port.adversary().has(Rule::Coalesced) {
        true => port.call(|nic, _| nic.engine.arm_cq(cq.id, request)),
        false => port.look(|nic| nic.engine.arm_cq(cq.id, request)),
    })
}

pub(super) unsafe extern "C" fn poll_cq(
    raw: *mut ffi::ibv_cq,
    max_entries: c_int,
    wcs: *mut ffi::ibv_wc,
) -> c_int {
    // SAFETY: a live queue.
    let cq = unsafe { Cq::borrow(raw) };
    let port = &cq.device.port;
    let _in_call = cq.enter();
    if let Err(errno) = port.attempt(Call::PollCq) {
        return -errno;
    }
    let mut count = 0;
    let mut poll = || {
        port.look(|nic| {
            while count < max_entries
                && let Some(completion) = nic.engine.poll_cq_into(cq.id, nic.memory)
            {
                if let Some(checker) = port.checker() {
                    checker.polled(port.index(), &completion);
                }
                let at = usize::try_from(count).unwrap_or(0);
                // SAFETY: the caller's array has room for `max_entries`, and `count` is below that.
                let slot = unsafe { wcs.add(at) };
                // SAFETY: as above.
                unsafe { write(slot, &completion, nic.engine, port.adversary()) };
                count += 1;
            }
        });
        count
    };
    if poll() == 0 {
        // Expired timers and arrived frames may complete requests.
        port.advance();
        poll();
    }
    if count > 0 && port.adversary().choose(Rule::PollError, POLL_ERRORS) == 1 {
        // The completions are lost, as with mlx5's provider.
        return POLL_ERROR;
    }
    count
}

/// Writes a completion to the caller's memory.
///
/// # Safety
/// - `slot` is writable.
unsafe fn write(
    slot: *mut ffi::ibv_wc,
    completion: &Completion,
    engine: &Engine,
    adversary: &Adversary,
) {
    let found = if adversary.has(Rule::StaleFields) {
        let kind = engine.qp_kind(QpNum(completion.qp));
        let found = undefined(completion, kind, adversary);
        if found.is_none() {
            // SAFETY: the caller's promise.
            unsafe { write_defined(slot, completion, kind) };
        }
        found
    } else {
        Some(wc(completion))
    };
    if let Some(found) = found {
        // SAFETY: the caller's promise.
        unsafe { slot.write(found) };
    }
}

/// Converts a completion to C.
pub(super) fn wc(completion: &Completion) -> ffi::ibv_wc {
    use ffi::{ibv_wc_flags as flags, ibv_wc_opcode as op};
    let mut wc = ffi::ibv_wc::zeroed();
    wc.wr_id = completion.wr_id;
    wc.status = ffi::ibv_wc_status(completion.status.code());
    wc.opcode = match completion.op {
        CompletionOp::Send => op::IBV_WC_SEND,
        CompletionOp::Write => op::IBV_WC_RDMA_WRITE,
        CompletionOp::Read => op::IBV_WC_RDMA_READ,
        CompletionOp::CompareSwap => op::IBV_WC_COMP_SWAP,
        CompletionOp::FetchAdd => op::IBV_WC_FETCH_ADD,
        CompletionOp::Flush => op::IBV_WC_FLUSH,
        CompletionOp::AtomicWrite => op::IBV_WC_ATOMIC_WRITE,
        CompletionOp::Bind => op::IBV_WC_BIND_MW,
        CompletionOp::LocalInvalidate => op::IBV_WC_LOCAL_INV,
        CompletionOp::Receive => op::IBV_WC_RECV,
        CompletionOp::ReceiveWrite => op::IBV_WC_RECV_RDMA_WITH_IMM,
    };
    wc.byte_len = completion.byte_len;
    wc.qp_num = completion.qp;
    wc.src_qp = completion.src_qp;
    if let Some(header) = completion.header {
        wc.wc_flags |= flags::IBV_WC_GRH.0;
        // The kind of the header, which a completion of RoCE v2 has (InfiniBand, A17.4.5.1), as devices of mlx5 report it: the bit
        // of UDP, and the network header. UCX drops datagrams over IPv4 without it.
        wc.sl = match header {
            NetworkHeader::Ipv4 => 0b1010,
            NetworkHeader::Ipv6 => 0b1001,
        };
    }
    if let Some(imm) = completion.imm {
        wc.wc_flags |= flags::IBV_WC_WITH_IMM.0;
        wc.__bindgen_anon_1.imm_data = ffi::__be32::from_ne(imm);
    }
    if let Some(rkey) = completion.invalidated {
        wc.wc_flags |= flags::IBV_WC_WITH_INV.0;
        wc.__bindgen_anon_1.invalidated_rkey = rkey;
    }
    wc
}
