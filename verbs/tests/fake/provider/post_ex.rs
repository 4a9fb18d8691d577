//! Posting by the extended interface, one call for each part of a request.

use std::{
    ffi::{c_int, c_void},
    mem::offset_of,
    slice,
};

use ibverbs_sys as ffi;

use super::{
    device::Properties,
    post::{Bind, DOORBELL, PostedSend, list, read},
    state::device_of,
};

/// Requests started and not posted yet.
#[derive(Default)]
pub(super) struct Building {
    requests: Vec<PostedSend>,
}

/// Fills the table for the requested operations.
///
/// # Safety
/// - Behind `qp` is room for the slots of the newest layout.
pub(super) unsafe fn fill(qp: *mut ffi::ibv_qp_ex, operations: u64, device: &Properties) {
    if operations == 0 {
        return;
    }
    use ffi::ibv_qp_create_send_ops_flags as with;
    let asked = |flag: with| operations & !device.promised & u64::from(flag.0) != 0;
    // SAFETY: as the caller promises: the two slots behind are the newest.
    unsafe {
        let newest = qp.byte_add(offset_of!(ffi::ibv_qp_ex, wr_abort));
        let newest = newest.cast::<*const ()>().add(1);
        if asked(with::IBV_QP_EX_WITH_ATOMIC_WRITE) {
            newest.write(atomic_write as *const ());
        }
        if asked(with::IBV_QP_EX_WITH_FLUSH) {
            newest.add(1).write(flush as *const ());
        }
    }
    // SAFETY: the caller's queue pair.
    let qp = unsafe { &mut *qp };
    qp.wr_start = Some(start);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(abort);
    qp.wr_set_ud_addr = Some(set_ud_addr);
    qp.wr_set_xrc_srqn = Some(set_xrc_srqn);
    qp.wr_set_inline_data = Some(set_inline_data);
    qp.wr_set_inline_data_list = Some(set_inline_data_list);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_rdma_write = asked(with::IBV_QP_EX_WITH_RDMA_WRITE).then_some(rdma_write);
    qp.wr_rdma_write_imm =
        asked(with::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(rdma_write_imm);
    qp.wr_send = asked(with::IBV_QP_EX_WITH_SEND).then_some(send);
    qp.wr_send_imm = asked(with::IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(send_imm);
    qp.wr_rdma_read = asked(with::IBV_QP_EX_WITH_RDMA_READ).then_some(rdma_read);
    qp.wr_atomic_cmp_swp = asked(with::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP).then_some(cmp_swp);
    qp.wr_atomic_fetch_add = asked(with::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD).then_some(fetch_add);
    qp.wr_local_inv = asked(with::IBV_QP_EX_WITH_LOCAL_INV).then_some(local_inv);
    qp.wr_bind_mw = asked(with::IBV_QP_EX_WITH_BIND_MW).then_some(bind_mw);
    qp.wr_send_inv = asked(with::IBV_QP_EX_WITH_SEND_WITH_INV).then_some(send_inv);
    qp.wr_send_tso = asked(with::IBV_QP_EX_WITH_TSO).then_some(send_tso);
}

unsafe extern "C" fn start(qp: *mut ffi::ibv_qp_ex) {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(qp) };
    let mut state = shared.lock();
    state.used("ibv_wr_start", qp.addr());
    if state
        .qp_mut(qp.addr())
        .building
        .replace(Building::default())
        .is_some()
    {
        state.complain("`ibv_wr_start` twice: a device would hang".to_owned());
    }
}

unsafe extern "C" fn complete(qp: *mut ffi::ibv_qp_ex) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(qp) };
    let mut state = shared.lock();
    let Some(building) = state.qp_mut(qp.addr()).building.take() else {
        state.complain("`ibv_wr_complete` without `ibv_wr_start`".to_owned());
        return libc::EINVAL;
    };
    state.doorbells += 1;
    if let Err(errno) = state.attempt("ibv_wr_complete") {
        return errno;
    }
    // All of them are posted, or none.
    let before = state.qp_mut(qp.addr()).sends.clone();
    for posted in building.requests {
        let ret = state.take_send(qp.addr(), posted);
        if ret != 0 {
            state.qp_mut(qp.addr()).sends = before;
            return ret;
        }
    }
    state.attempt(DOORBELL).err().unwrap_or(0)
}

unsafe extern "C" fn abort(qp: *mut ffi::ibv_qp_ex) {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(qp) };
    let mut state = shared.lock();
    if state.qp_mut(qp.addr()).building.take().is_none() {
        state.complain("`ibv_wr_abort` without `ibv_wr_start`".to_owned());
    }
}

/// Begins a request with this opcode.
///
/// # Safety
/// - `qp` is one of the fake's.
unsafe fn begin(
    qp: *mut ffi::ibv_qp_ex,
    opcode: ffi::ibv_wr_opcode,
    fill: impl FnOnce(&mut PostedSend),
) {
    // SAFETY: the caller's promise; the two fields are the program's to write.
    let (shared, wr_id, flags) = unsafe { (device_of(qp), (*qp).wr_id, (*qp).wr_flags) };
    let mut state = shared.lock();
    let mut posted = PostedSend::new(wr_id, opcode, flags);
    fill(&mut posted);
    match &mut state.qp_mut(qp.addr()).building {
        Some(building) => building.requests.push(posted),
        None => state.complain(format!("{opcode:?} without `ibv_wr_start`")),
    }
}

/// Adds to the last request begun.
///
/// # Safety
/// - `qp` is one of the fake's.
unsafe fn add(qp: *mut ffi::ibv_qp_ex, fill: impl FnOnce(&mut PostedSend)) {
    // SAFETY: the caller's promise.
    let shared = unsafe { device_of(qp) };
    let mut state = shared.lock();
    let building = state.qp_mut(qp.addr()).building.as_mut();
    match building.and_then(|building| building.requests.last_mut()) {
        Some(posted) => fill(posted),
        None => state.complain("a part of no request".to_owned()),
    }
}

macro_rules! operations {
    ($($name:ident($($arg:ident: $ty:ty),*) = $opcode:ident, |$posted:ident| $fill:expr;)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ffi::ibv_qp_ex, $($arg: $ty),*) {
            // SAFETY: one of the fake's.
            unsafe { begin(qp, ffi::ibv_wr_opcode::$opcode, |$posted| $fill) };
        }
    )*};
}

operations! {
    send() = IBV_WR_SEND, |_posted| {};
    send_imm(imm: ffi::__be32) = IBV_WR_SEND_WITH_IMM, |posted| posted.imm_data = Some(imm.to_ne());
    send_inv(rkey: u32) = IBV_WR_SEND_WITH_INV, |posted| posted.invalidate_rkey = Some(rkey);
    local_inv(rkey: u32) = IBV_WR_LOCAL_INV, |posted| posted.invalidate_rkey = Some(rkey);
    rdma_write(rkey: u32, addr: u64) = IBV_WR_RDMA_WRITE, |posted| posted.remote = Some((addr, rkey));
    rdma_write_imm(rkey: u32, addr: u64, imm: ffi::__be32) = IBV_WR_RDMA_WRITE_WITH_IMM, |posted| {
        posted.remote = Some((addr, rkey));
        posted.imm_data = Some(imm.to_ne());
    };
    rdma_read(rkey: u32, addr: u64) = IBV_WR_RDMA_READ, |posted| posted.remote = Some((addr, rkey));
    cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) = IBV_WR_ATOMIC_CMP_AND_SWP, |posted| {
        posted.remote = Some((addr, rkey));
        posted.compare_add = Some(compare);
        posted.swap = Some(swap);
    };
    fetch_add(rkey: u32, addr: u64, amount: u64) = IBV_WR_ATOMIC_FETCH_AND_ADD, |posted| {
        posted.remote = Some((addr, rkey));
        posted.compare_add = Some(amount);
    };
    bind_mw(mw: *mut ffi::ibv_mw, rkey: u32, info: *const ffi::ibv_mw_bind_info) = IBV_WR_BIND_MW,
        |posted| {
            assert_ne!((*mw).rkey, rkey, "the provider names the window by its old key");
            posted.bind = Some((mw.addr(), rkey, Bind::from(&*info)));
        };
    send_tso(header: *mut c_void, len: u16, mss: u16) = IBV_WR_TSO, |posted| {
        let header = slice::from_raw_parts(header.cast::<u8>(), len.into());
        posted.tso = Some((header.to_vec(), mss));
    };
    atomic_write(rkey: u32, addr: u64, value: *const c_void) = IBV_WR_ATOMIC_WRITE, |posted| {
        posted.remote = Some((addr, rkey));
        posted.atomic_write = Some(value.cast::<[u8; 8]>().read());
    };
    flush(rkey: u32, addr: u64, len: usize, placement: u8, selectivity: u8) = IBV_WR_FLUSH,
        |posted| {
            posted.remote = Some((addr, rkey));
            posted.flush = Some((len, placement, selectivity));
        };
}

unsafe extern "C" fn set_ud_addr(
    qp: *mut ffi::ibv_qp_ex,
    ah: *mut ffi::ibv_ah,
    qpn: u32,
    qkey: u32,
) {
    // SAFETY: one of the fake's.
    unsafe { add(qp, |posted| posted.datagram = Some((ah.addr(), qpn, qkey))) };
}

unsafe extern "C" fn set_xrc_srqn(qp: *mut ffi::ibv_qp_ex, srqn: u32) {
    // SAFETY: one of the fake's.
    unsafe { add(qp, |posted| posted.remote_srqn = Some(srqn)) };
}

unsafe extern "C" fn set_inline_data(qp: *mut ffi::ibv_qp_ex, data: *mut c_void, len: usize) {
    // SAFETY: the caller's bytes, during the call.
    let bytes = unsafe { slice::from_raw_parts(data.cast::<u8>(), len) };
    // SAFETY: one of the fake's.
    unsafe { add(qp, |posted| posted.inline = Some(bytes.to_vec())) };
}

unsafe extern "C" fn set_inline_data_list(
    qp: *mut ffi::ibv_qp_ex,
    count: usize,
    list: *const ffi::ibv_data_buf,
) {
    let mut bytes = Vec::new();
    for i in 0..count {
        // SAFETY: the caller's list, and the bytes of its elements, during the call.
        unsafe {
            let buf = &*list.add(i);
            bytes.extend_from_slice(slice::from_raw_parts(buf.addr.cast::<u8>(), buf.length));
        }
    }
    // SAFETY: one of the fake's.
    unsafe { add(qp, |posted| posted.inline = Some(bytes)) };
}

unsafe extern "C" fn set_sge(qp: *mut ffi::ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = ffi::ibv_sge { addr, length, lkey };
    // SAFETY: one of the fake's.
    unsafe { add(qp, |posted| posted.set_sges(vec![sge])) };
}

unsafe extern "C" fn set_sge_list(
    qp: *mut ffi::ibv_qp_ex,
    count: usize,
    sges: *const ffi::ibv_sge,
) {
    // SAFETY: the caller's list.
    let sges = unsafe { list(sges, count as c_int) };
    // SAFETY: one of the fake's.
    unsafe { add(qp, |posted| posted.set_sges(sges)) };
}

impl PostedSend {
    fn set_sges(&mut self, sges: Vec<ffi::ibv_sge>) {
        if self.flags & ffi::ibv_send_flags::IBV_SEND_INLINE.0 != 0 {
            // SAFETY: the bytes of an inline request are the caller's during the call.
            self.inline = Some(unsafe { read(&sges) });
        }
        self.sges = sges;
    }
}
