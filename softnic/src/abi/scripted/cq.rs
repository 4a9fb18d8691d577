//! Completion queues and channels.

use std::{
    collections::{BTreeMap, VecDeque},
    ffi::{c_int, c_uint, c_void},
    os::fd::IntoRawFd,
};

use ibverbs_sys as ffi;

use super::{
    copies::Copied,
    qp::ScriptedQp,
    state::{Ptr, State, count_down, count_up, counter, device_of, state_of, state_of_context},
};
use crate::{abi::null, failure::Call};

/// A completion queue.
pub(super) struct ScriptedCq {
    pub(super) raw: Ptr<ffi::ibv_cq>,
    pub(super) ready: VecDeque<(ffi::ibv_wc, Extra)>,
    /// Messages that are copied when their completions are polled, by the identifiers of the receives.
    pub(super) copies: BTreeMap<u64, Copied>,
    /// Return values of the next polls, which take no completions.
    pub(super) returns: VecDeque<i32>,
    armed: Option<ScriptedArmed>,
    channel: Option<Ptr<ffi::ibv_comp_channel>>,
    /// Whether an extended poll has started and not ended.
    pub(super) polling: bool,
    /// Moderation: a number of completions, and microseconds.
    pub(super) moderation: (u16, u16),
    /// Of `ibv_create_cq_attr_flags`.
    pub(super) flags: u32,
}

#[derive(PartialEq)]
enum ScriptedArmed {
    Any,
    Solicited,
}

/// Fields of an extended completion.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extra {
    /// Time in ticks of the device.
    pub timestamp: u64,
    /// Time in nanoseconds since 1970.
    pub wallclock_ns: u64,
    /// Customer VLAN of a raw packet.
    pub cvlan: u16,
    /// Tag of the flow of a packet.
    pub flow_tag: u32,
    /// Tag of a matched message.
    pub tm_tag: u64,
    /// Application data of a matched message.
    pub tm_priv: u32,
}

/// A successful completion of the request with this identifier.
pub fn wc(wr_id: u64, opcode: ffi::ibv_wc_opcode) -> ffi::ibv_wc {
    let mut wc = ffi::ibv_wc::zeroed();
    wc.wr_id = wr_id;
    wc.opcode = opcode;
    wc
}

impl State {
    pub(super) fn cq_mut(&mut self, cq: usize) -> &mut ScriptedCq {
        let found = self.cqs.get_mut(&cq);
        found.unwrap_or_else(|| panic!("there is no completion queue at {cq:#x}"))
    }

    /// Enters a new queue into the books.
    pub(super) fn adopt_cq(&mut self, raw: *mut ffi::ibv_cq, channel: *mut ffi::ibv_comp_channel) {
        let cq = ScriptedCq {
            raw: Ptr(raw),
            ready: VecDeque::new(),
            copies: BTreeMap::new(),
            returns: VecDeque::new(),
            armed: None,
            channel: (!channel.is_null()).then_some(Ptr(channel)),
            polling: false,
            moderation: (0, 0),
            flags: 0,
        };
        self.cqs.insert(raw.addr(), cq);
    }

    /// Reports a call that takes a completion queue's lock during an extended poll: a thread with
    /// both would block on itself, and any thread on a forgotten poll.
    pub(super) fn lock_cq(&mut self, call: &'static str, cq: usize) {
        if self.cqs.get(&cq).is_some_and(|cq| cq.polling) {
            self.complain(format!("`{call}` waits for the lock of an open poll"));
        }
    }

    /// Complains if a call takes the lock of a send queue that is being built on. EFA's provider takes it when it polls a
    /// completion of the queue pair.
    pub(super) fn lock_send_queues(&mut self, call: &'static str, cq: usize) {
        let on_it = |qp: &ScriptedQp| qp.send_cq == cq && qp.building.is_some();
        if self.qps.values().any(on_it) {
            self.complain(format!("`{call}` waits for the lock of an open batch"));
        }
    }

    pub(super) fn push(&mut self, cq: usize, wc: ffi::ibv_wc, extra: Extra) {
        let Some(queue) = self.cqs.get_mut(&cq) else {
            return self.complain("a completion for a queue that does not exist".to_owned());
        };
        let Ptr(raw) = queue.raw;
        queue.ready.push_back((wc, extra));
        // SAFETY: live, since recorded.
        let cqe = unsafe { (*raw).cqe } as usize;
        if queue.ready.len() > cqe {
            return self.complain(format!("a completion queue of {cqe} entries overflowed"));
        }
        let failed = wc.status != ffi::ibv_wc_status::IBV_WC_SUCCESS;
        let notify = match queue.armed {
            Some(ScriptedArmed::Any) => true,
            Some(ScriptedArmed::Solicited) => failed,
            None => false,
        };
        if let (true, Some(Ptr(channel))) = (notify, &queue.channel) {
            queue.armed = None;
            self.channels
                .entry(channel.addr())
                .or_default()
                .push_back(Ptr(raw));
            // SAFETY: live: kept by its queues.
            let fd = unsafe { (**channel).fd };
            count_up(fd);
        }
    }
}

pub(in crate::abi) unsafe extern "C" fn create_cq(
    ctx: *mut ffi::ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ffi::ibv_comp_channel,
    vector: c_int,
) -> *mut ffi::ibv_cq {
    // SAFETY: an open context.
    let mut state = unsafe { state_of_context(ctx) };
    if !(1..=state.properties.attr.orig_attr.max_cqe).contains(&cqe) || !(0..2).contains(&vector) {
        return null(libc::EINVAL);
    }
    let cq = state.make(
        "ibv_create_cq",
        &[channel.addr()],
        |cq: &mut ffi::ibv_cq, number| {
            cq.context = ctx;
            cq.channel = channel;
            cq.cq_context = cq_context;
            cq.cqe = cqe;
            cq.handle = number;
        },
    );
    state.adopt_cq(cq, channel);
    cq
}

pub(in crate::abi) unsafe extern "C" fn resize_cq(cq: *mut ffi::ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(cq) };
    state.used("ibv_resize_cq", cq.addr());
    state.lock_cq("ibv_resize_cq", cq.addr());
    if cqe < 1 || (state.cq_mut(cq.addr()).ready.len() as c_int) > cqe {
        return libc::EINVAL;
    }
    // SAFETY: live, and the number is the provider's.
    unsafe { (*cq).cqe = cqe };
    0
}

pub(in crate::abi) unsafe extern "C" fn modify_cq(
    cq: *mut ffi::ibv_cq,
    attr: *mut ffi::ibv_modify_cq_attr,
) -> c_int {
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(cq) };
    state.used("ibv_modify_cq", cq.addr());
    if attr.attr_mask != ffi::ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0 {
        return libc::EINVAL;
    }
    let moderation = (attr.moderate.cq_count, attr.moderate.cq_period);
    state.cq_mut(cq.addr()).moderation = moderation;
    0
}

pub(in crate::abi) unsafe extern "C" fn destroy_cq(cq: *mut ffi::ibv_cq) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(cq) };
    let ret = state.unmake("ibv_destroy_cq", cq);
    if ret == 0 {
        if state.cqs.remove(&cq.addr()).is_some_and(|cq| cq.polling) {
            state.complain("a completion queue was destroyed while it was polled".to_owned());
        }
        // As in the kernel: pending events of the queue are discarded.
        for events in state.channels.values_mut() {
            events.retain(|event| event.0 != cq);
        }
    }
    ret
}

pub(super) unsafe extern "C" fn poll_cq(
    cq: *mut ffi::ibv_cq,
    max_entries: c_int,
    wcs: *mut ffi::ibv_wc,
) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(cq) };
    state.used("ibv_poll_cq", cq.addr());
    state.lock_send_queues("ibv_poll_cq", cq.addr());
    if let Err(errno) = state.attempt(Call::PollCq) {
        return errno;
    }
    let queue = state.cq_mut(cq.addr());
    if let Some(ret) = queue.returns.pop_front() {
        return ret;
    }
    let count = queue.ready.len().min(max_entries as usize);
    let polled: Vec<_> = queue.ready.drain(..count).collect();
    for (i, (wc, _)) in polled.into_iter().enumerate() {
        state.copy_polled(cq.addr(), wc.wr_id);
        // SAFETY: the caller's array has room for `max_entries`.
        let slot = unsafe { wcs.add(i) };
        // SAFETY: as above.
        unsafe { write(slot, wc) };
    }
    count as c_int
}

/// Writes a completion: of a failed request, only the fields promised by `ibv_poll_cq(3)`.
///
/// # Safety
/// - `slot` is valid for writes.
unsafe fn write(slot: *mut ffi::ibv_wc, wc: ffi::ibv_wc) {
    if wc.status == ffi::ibv_wc_status::IBV_WC_SUCCESS || has_more(wc.status) {
        // SAFETY: the caller's promise.
        unsafe { slot.write(wc) };
        return;
    }
    // SAFETY: the caller's promise, here and below.
    unsafe { (*slot).wr_id = wc.wr_id };
    // SAFETY: as above.
    unsafe { (*slot).status = wc.status };
    // SAFETY: as above.
    unsafe { (*slot).qp_num = wc.qp_num };
    // SAFETY: as above.
    unsafe { (*slot).vendor_err = wc.vendor_err };
}

/// Whether a status is no failure of the request: its flags are valid.
fn has_more(status: ffi::ibv_wc_status) -> bool {
    status == ffi::ibv_wc_status::IBV_WC_TM_RNDV_INCOMPLETE
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ffi::ibv_cq, solicited: c_int) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(cq) };
    state.used("ibv_req_notify_cq", cq.addr());
    state.lock_cq("ibv_req_notify_cq", cq.addr());
    if let Err(errno) = state.attempt(Call::ReqNotifyCq) {
        return errno;
    }
    let queue = state.cq_mut(cq.addr());
    // Asking for any completion is the stronger wish.
    if queue.armed != Some(ScriptedArmed::Any) {
        queue.armed = Some(if solicited == 0 {
            ScriptedArmed::Any
        } else {
            ScriptedArmed::Solicited
        });
    }
    0
}

pub(in crate::abi) unsafe extern "C" fn create_comp_channel(
    ctx: *mut ffi::ibv_context,
) -> *mut ffi::ibv_comp_channel {
    // SAFETY: an open context.
    let mut state = unsafe { state_of_context(ctx) };
    state.make(
        "ibv_create_comp_channel",
        &[],
        |channel: &mut ffi::ibv_comp_channel, _| {
            channel.context = ctx;
            channel.fd = counter().into_raw_fd();
        },
    )
}

pub(in crate::abi) unsafe extern "C" fn destroy_comp_channel(
    channel: *mut ffi::ibv_comp_channel,
) -> c_int {
    // SAFETY: an object of the device.
    let shared = unsafe { device_of(channel) };
    let ret = shared.lock().unmake("ibv_destroy_comp_channel", channel);
    if ret == 0 {
        // SAFETY: the memory of destroyed objects is kept.
        let fd = unsafe { (*channel).fd };
        // SAFETY: opened with the channel, and closed once, here.
        let _: c_int = unsafe { libc::close(fd) };
    }
    ret
}

pub(in crate::abi) unsafe extern "C" fn get_cq_event(
    channel: *mut ffi::ibv_comp_channel,
    cq: *mut *mut ffi::ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: an object of the device.
    let shared = unsafe { device_of(channel) };
    // SAFETY: live.
    let fd = unsafe { (*channel).fd };
    loop {
        // May block, so the state is not locked.
        if count_down(fd) != 0 {
            return -1;
        }
        let mut state = shared.lock();
        let events = state.channels.entry(channel.addr()).or_default();
        // An event whose queue is gone is counted, and no longer there.
        if let Some(Ptr(event)) = events.pop_front() {
            *state.unacknowledged.entry(event.addr()).or_default() += 1;
            // SAFETY: the queue is live, or its events would be gone.
            let context = unsafe { (*event).cq_context };
            // SAFETY: the caller's place.
            unsafe { *cq = event };
            // SAFETY: the caller's place.
            unsafe { *cq_context = context };
            return 0;
        }
    }
}

pub(in crate::abi) unsafe extern "C" fn ack_cq_events(cq: *mut ffi::ibv_cq, count: c_uint) {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(cq) };
    state.used("ibv_ack_cq_events", cq.addr());
    state.acknowledge(cq.addr(), count);
}

impl State {
    /// Takes acknowledgements into account.
    pub(super) fn acknowledge(&mut self, object: usize, count: u32) {
        let waiting = self.unacknowledged.entry(object).or_default();
        match waiting.checked_sub(count) {
            Some(rest) => *waiting = rest,
            None => self.complain("an event was acknowledged that had not been read".to_owned()),
        }
    }
}
