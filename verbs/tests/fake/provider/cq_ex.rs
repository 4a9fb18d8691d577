//! Extended completion queues.

use std::ffi::{c_int, c_uint};

use ibverbs_sys as ffi;

use super::{
    cq::Extra,
    state::{State, device_of, device_of_context, null},
};

pub(super) unsafe extern "C" fn create_cq_ex(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_cq_init_attr_ex,
) -> *mut ffi::ibv_cq_ex {
    // SAFETY: an open context, and the caller's attributes.
    let (shared, attr) = unsafe { (device_of_context(ctx), &*attr) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_create_cq_ex") {
        return null(errno);
    }
    if attr.cqe < 1 || attr.comp_vector > 1 {
        return null(libc::EINVAL);
    }
    if attr.wc_flags & !ffi::IBV_CREATE_CQ_SUP_WC_FLAGS != 0 {
        return null(libc::EOPNOTSUPP);
    }
    let has = |field: ffi::ibv_cq_init_attr_mask| attr.comp_mask & field.0 != 0;
    let domain = match has(ffi::ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_PD) {
        true => attr.parent_domain.addr(),
        false => 0,
    };
    let flags = match has(ffi::ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS) {
        true => attr.flags,
        false => 0,
    };
    let parents = [attr.channel.addr(), domain];
    let cq: *mut ffi::ibv_cq_ex = state.make("ibv_create_cq_ex", &parents);
    // SAFETY: fresh.
    let queue = unsafe { &mut *cq };
    queue.context = ctx;
    queue.channel = attr.channel;
    queue.cq_context = attr.cq_context;
    queue.cqe = attr.cqe as c_int;
    queue.handle = state.next();
    queue.start_poll = Some(start_poll);
    queue.next_poll = Some(next_poll);
    queue.end_poll = Some(end_poll);
    // These three are always present.
    queue.read_opcode = Some(read_opcode);
    queue.read_vendor_err = Some(read_vendor_err);
    queue.read_wc_flags = Some(read_wc_flags);
    use ffi::ibv_create_cq_wc_flags as with;
    let asked = |flag: ffi::ibv_create_cq_wc_flags| attr.wc_flags & u64::from(flag.0) != 0;
    queue.read_byte_len = asked(with::IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len);
    queue.read_imm_data = asked(with::IBV_WC_EX_WITH_IMM).then_some(read_imm_data);
    queue.read_qp_num = asked(with::IBV_WC_EX_WITH_QP_NUM).then_some(read_qp_num);
    queue.read_src_qp = asked(with::IBV_WC_EX_WITH_SRC_QP).then_some(read_src_qp);
    queue.read_slid = asked(with::IBV_WC_EX_WITH_SLID).then_some(read_slid);
    queue.read_sl = asked(with::IBV_WC_EX_WITH_SL).then_some(read_sl);
    queue.read_dlid_path_bits =
        asked(with::IBV_WC_EX_WITH_DLID_PATH_BITS).then_some(read_dlid_path_bits);
    queue.read_completion_ts =
        asked(with::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP).then_some(read_completion_ts);
    queue.read_completion_wallclock_ns =
        asked(with::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK).then_some(read_wallclock);
    queue.read_cvlan = asked(with::IBV_WC_EX_WITH_CVLAN).then_some(read_cvlan);
    queue.read_flow_tag = asked(with::IBV_WC_EX_WITH_FLOW_TAG).then_some(read_flow_tag);
    queue.read_tm_info = asked(with::IBV_WC_EX_WITH_TM_INFO).then_some(read_tm_info);
    state.adopt_cq(cq.cast(), attr.channel);
    state.cq_mut(cq.addr()).flags = flags;
    cq
}

/// Shows the first completion, if there is one.
///
/// # Safety
/// - `cq` is an extended queue of the fake, and its state is locked.
unsafe fn show(state: &mut State, cq: *mut ffi::ibv_cq_ex) -> c_int {
    let first = state.cq_mut(cq.addr()).ready.front().copied();
    match first {
        Some((wc, _)) => {
            state.copy_polled(cq.addr(), wc.wr_id);
            // SAFETY: the caller's promise; these fields are the provider's to write.
            unsafe {
                (*cq).status = wc.status;
                (*cq).wr_id = wc.wr_id;
            }
            0
        }
        None => libc::ENOENT,
    }
}

unsafe extern "C" fn start_poll(
    cq: *mut ffi::ibv_cq_ex,
    _attr: *mut ffi::ibv_poll_cq_attr,
) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(cq) };
    let mut state = shared.lock();
    state.used("ibv_start_poll", cq.addr());
    state.lock_send_queues("ibv_start_poll", cq.addr());
    if let Err(errno) = state.attempt("ibv_start_poll") {
        return errno;
    }
    if state.cq_mut(cq.addr()).polling {
        state.complain("`ibv_start_poll` on a queue that is being polled".to_owned());
    }
    // SAFETY: an extended queue, locked.
    let ret = unsafe { show(&mut state, cq) };
    state.cq_mut(cq.addr()).polling = ret == 0;
    ret
}

unsafe extern "C" fn next_poll(cq: *mut ffi::ibv_cq_ex) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(cq) };
    let mut state = shared.lock();
    state.next_polls += 1;
    if let Err(errno) = state.attempt("ibv_next_poll") {
        return errno;
    }
    let queue = state.cq_mut(cq.addr());
    queue.ready.pop_front();
    if !queue.polling {
        state.complain("`ibv_next_poll` on a queue that is not being polled".to_owned());
    }
    // SAFETY: an extended queue, locked.
    unsafe { show(&mut state, cq) }
}

unsafe extern "C" fn end_poll(cq: *mut ffi::ibv_cq_ex) {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(cq) };
    let mut state = shared.lock();
    let queue = state.cq_mut(cq.addr());
    // The current completion is consumed, unless the queue had run empty.
    queue.ready.pop_front();
    if !std::mem::take(&mut queue.polling) {
        state.complain("`ibv_end_poll` on a queue that is not being polled".to_owned());
    }
}

/// Reads a field of the completion being shown.
///
/// # Safety
/// - `cq` is a queue of the fake's.
unsafe fn read<R>(cq: *mut ffi::ibv_cq_ex, field: impl FnOnce(&ffi::ibv_wc, &Extra) -> R) -> R {
    // SAFETY: the caller's promise.
    let shared = unsafe { device_of(cq) };
    let mut state = shared.lock();
    let queue = state.cq_mut(cq.addr());
    assert!(queue.polling, "a field was read outside of a poll");
    let (wc, extra) = queue.ready.front().unwrap();
    field(wc, extra)
}

macro_rules! readers {
    ($($name:ident -> $ty:ty = |$wc:ident, $extra:ident| $value:expr;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ffi::ibv_cq_ex) -> $ty {
            // SAFETY: one of the fake's.
            unsafe { read(cq, |$wc, $extra| $value) }
        }
    )*};
}

readers! {
    read_opcode -> ffi::ibv_wc_opcode = |wc, _extra| wc.opcode;
    read_vendor_err -> u32 = |wc, _extra| wc.vendor_err;
    read_wc_flags -> c_uint = |wc, _extra| wc.wc_flags;
    read_byte_len -> u32 = |wc, _extra| wc.byte_len;
    read_imm_data -> ffi::__be32 = |wc, _extra| wc.imm_data();
    read_qp_num -> u32 = |wc, _extra| wc.qp_num;
    read_src_qp -> u32 = |wc, _extra| wc.src_qp;
    read_slid -> u32 = |wc, _extra| wc.slid.into();
    read_sl -> u8 = |wc, _extra| wc.sl;
    read_dlid_path_bits -> u8 = |wc, _extra| wc.dlid_path_bits;
    read_completion_ts -> u64 = |_wc, extra| extra.timestamp;
    read_wallclock -> u64 = |_wc, extra| extra.wallclock_ns;
    read_cvlan -> u16 = |_wc, extra| extra.cvlan;
    read_flow_tag -> u32 = |_wc, extra| extra.flow_tag;
}

unsafe extern "C" fn read_tm_info(cq: *mut ffi::ibv_cq_ex, info: *mut ffi::ibv_wc_tm_info) {
    // SAFETY: one of the fake's.
    let (tag, private) = unsafe { read(cq, |_, extra| (extra.tm_tag, extra.tm_priv)) };
    // SAFETY: the caller's place.
    unsafe {
        (*info).tag = tag;
        (*info).priv_ = private;
    }
}
