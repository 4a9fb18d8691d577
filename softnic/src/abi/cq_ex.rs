//! Extended completion queues: polling one completion at a time, field by field.

use std::{
    ffi::{c_int, c_uint},
    net::IpAddr,
    time::Duration,
};

use ibverbs_sys as ffi;

use super::{
    cq::{self, Cq},
    functions::Kind,
    null,
    object::Object,
    scripted::{Extra, functions as scripted},
};
use crate::{engine::Completion, failure::Call};

/// Completion fields of extended queues, beside those of all queues.
const FIELDS: u64 = ffi::IBV_WC_STANDARD_FLAGS
    | ffi::ibv_create_cq_wc_flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0 as u64
    | ffi::ibv_create_cq_wc_flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0 as u64;

/// The completion of a poll.
#[derive(Clone, Copy)]
pub(super) struct Polled {
    wc: ffi::ibv_wc,
    time: Duration,
    src: Option<IpAddr>,
}

impl Polled {
    pub(super) fn new(completion: &Completion, wc: ffi::ibv_wc) -> Self {
        Self {
            wc,
            time: completion.time,
            src: completion.src,
        }
    }

    /// Address of the sender.
    pub(super) fn src(&self) -> Option<IpAddr> {
        self.src
    }
}

/// Nanoseconds of a duration; wraps around after 584 years.
pub(super) fn nanos(time: Duration) -> u64 {
    let subsec = u64::from(time.subsec_nanos());
    time.as_secs()
        .wrapping_mul(1_000_000_000)
        .wrapping_add(subsec)
}

pub(super) unsafe extern "C" fn create_cq_ex(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_cq_init_attr_ex,
) -> *mut ffi::ibv_cq_ex {
    use ffi::ibv_cq_init_attr_mask as has;
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    // All queues have locks, so the promise of a single thread changes nothing.
    let single = ffi::ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_SINGLE_THREADED.0;
    let has_flags = attr.comp_mask & has::IBV_CQ_INIT_ATTR_MASK_FLAGS.0 != 0;
    let flags = if has_flags { attr.flags } else { 0 };
    let supported = attr.comp_mask & !has::IBV_CQ_INIT_ATTR_MASK_FLAGS.0 == 0
        && attr.wc_flags & !FIELDS == 0
        && flags & !single == 0;
    if !supported {
        return null(libc::EOPNOTSUPP);
    }
    let request = cq::CqRequest {
        cqe: c_int::try_from(attr.cqe).unwrap_or(c_int::MAX),
        cq_context: attr.cq_context,
        channel: attr.channel,
        vector: c_int::try_from(attr.comp_vector).unwrap_or(c_int::MAX),
        is_single_threaded: flags & single != 0,
    };
    // SAFETY: an open context, and a live channel.
    unsafe {
        cq::create(ctx, request, |raw| {
            raw.start_poll = Some(start_poll);
            raw.next_poll = Some(next_poll);
            raw.end_poll = Some(end_poll);
            fill(raw, attr.wc_flags);
        })
    }
}

/// Fills the table of a queue with the functions of the requested fields, for queues of any device.
pub(super) fn fill(raw: &mut ffi::ibv_cq_ex, fields: u64) {
    use ffi::ibv_create_cq_wc_flags as with;
    let requested = |field: with| fields & u64::from(field.0) != 0;
    raw.read_opcode = Some(read_opcode);
    raw.read_vendor_err = Some(read_vendor_err);
    raw.read_wc_flags = Some(read_wc_flags);
    raw.read_byte_len = requested(with::IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len);
    raw.read_imm_data = requested(with::IBV_WC_EX_WITH_IMM).then_some(read_imm_data);
    raw.read_qp_num = requested(with::IBV_WC_EX_WITH_QP_NUM).then_some(read_qp_num);
    raw.read_src_qp = requested(with::IBV_WC_EX_WITH_SRC_QP).then_some(read_src_qp);
    raw.read_slid = requested(with::IBV_WC_EX_WITH_SLID).then_some(read_slid);
    raw.read_sl = requested(with::IBV_WC_EX_WITH_SL).then_some(read_sl);
    raw.read_dlid_path_bits =
        requested(with::IBV_WC_EX_WITH_DLID_PATH_BITS).then_some(read_dlid_path_bits);
    raw.read_completion_ts =
        requested(with::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP).then_some(read_completion_ts);
    raw.read_completion_wallclock_ns =
        requested(with::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK).then_some(read_wallclock);
    raw.read_cvlan = requested(with::IBV_WC_EX_WITH_CVLAN).then_some(read_cvlan);
    raw.read_flow_tag = requested(with::IBV_WC_EX_WITH_FLOW_TAG).then_some(read_flow_tag);
    raw.read_tm_info = requested(with::IBV_WC_EX_WITH_TM_INFO).then_some(read_tm_info);
}

/// Writes the fields that programs read without a call.
///
/// # Safety
/// - `raw` is a live queue, polled by this thread.
pub(super) unsafe fn show(raw: *mut ffi::ibv_cq_ex, wc: &ffi::ibv_wc) {
    // SAFETY: live; the field is the library's to change during a poll, and the poll is this thread's.
    unsafe { (*raw).status = wc.status };
    // SAFETY: as above.
    unsafe { (*raw).wr_id = wc.wr_id };
}

unsafe extern "C" fn start_poll(
    raw: *mut ffi::ibv_cq_ex,
    attr: *mut ffi::ibv_poll_cq_attr,
) -> c_int {
    // SAFETY: the caller's attributes.
    if unsafe { (*attr).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: a live queue.
    let cq = unsafe { Cq::borrow(raw.cast()) };
    let _in_call = cq.enter();
    cq.leave_poll();
    if let Err(errno) = cq.device.port.attempt(Call::StartPoll) {
        return errno;
    }
    let Some(polled) = cq.poll_one() else {
        return libc::ENOENT;
    };
    cq.polled.begin(polled);
    // SAFETY: live, and the poll is this thread's.
    unsafe { show(raw, &polled.wc) };
    0
}

unsafe extern "C" fn next_poll(raw: *mut ffi::ibv_cq_ex) -> c_int {
    // SAFETY: a live queue.
    let cq = unsafe { Cq::borrow(raw.cast()) };
    let _in_call = cq.enter();
    if let Err(errno) = cq.device.port.attempt(Call::NextPoll) {
        return errno;
    }
    let Some(polled) = cq.poll_one() else {
        return libc::ENOENT;
    };
    cq.polled.with(|current| *current = polled);
    // SAFETY: live, and the poll is this thread's.
    unsafe { show(raw, &polled.wc) };
    0
}

unsafe extern "C" fn end_poll(raw: *mut ffi::ibv_cq_ex) {
    // SAFETY: a live queue.
    let cq = unsafe { Cq::borrow(raw.cast()) };
    cq.polled.end();
}

/// The completion of a queue's poll, and the fields of extended queues; zeros outside of a poll of an engine's queue.
///
/// # Safety
/// - `raw` is a live queue while the result is used.
unsafe fn current(raw: *mut ffi::ibv_cq_ex) -> (ffi::ibv_wc, Extra) {
    // SAFETY: the caller's promise.
    let ctx = unsafe { (*raw).context };
    // SAFETY: the context of a live object is open.
    if let Kind::Scripted(_) = unsafe { Kind::of(ctx) } {
        // SAFETY: a queue of a scripted device.
        return unsafe { scripted::current(raw) };
    }
    // SAFETY: the caller's promise.
    let cq = unsafe { Cq::borrow(raw.cast()) };
    let Some(polled) = cq.polled.with(|polled| *polled) else {
        return (ffi::ibv_wc::zeroed(), Extra::default());
    };
    let extra = Extra {
        timestamp: nanos(polled.time),
        wallclock_ns: nanos(cq.device.port.since_1970(polled.time)),
        ..Extra::default()
    };
    (polled.wc, extra)
}

macro_rules! readers {
    ($($name:ident -> $type:ty = |$wc:pat_param, $extra:pat_param| $value:expr;)*) => {$(
        unsafe extern "C" fn $name(raw: *mut ffi::ibv_cq_ex) -> $type {
            // SAFETY: a live queue.
            let ($wc, $extra) = unsafe { current(raw) };
            $value
        }
    )*};
}

readers! {
    read_opcode -> ffi::ibv_wc_opcode = |wc, _| wc.opcode;
    read_vendor_err -> u32 = |wc, _| wc.vendor_err;
    read_wc_flags -> c_uint = |wc, _| wc.wc_flags;
    read_byte_len -> u32 = |wc, _| wc.byte_len;
    read_imm_data -> ffi::__be32 = |wc, _| wc.imm_data();
    read_qp_num -> u32 = |wc, _| wc.qp_num;
    read_src_qp -> u32 = |wc, _| wc.src_qp;
    read_slid -> u32 = |wc, _| wc.slid.into();
    read_sl -> u8 = |wc, _| wc.sl;
    read_dlid_path_bits -> u8 = |wc, _| wc.dlid_path_bits;
    read_completion_ts -> u64 = |_, extra| extra.timestamp;
    read_wallclock -> u64 = |_, extra| extra.wallclock_ns;
    read_cvlan -> u16 = |_, extra| extra.cvlan;
    read_flow_tag -> u32 = |_, extra| extra.flow_tag;
}

unsafe extern "C" fn read_tm_info(raw: *mut ffi::ibv_cq_ex, out: *mut ffi::ibv_wc_tm_info) {
    // SAFETY: a live queue.
    let (_, extra) = unsafe { current(raw) };
    // SAFETY: the caller's place.
    let info = unsafe { &mut *out };
    info.tag = extra.tm_tag;
    info.priv_ = extra.tm_priv;
}
