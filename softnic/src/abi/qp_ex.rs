//! Extended requests: each is built by several calls, and all are posted together.

use std::{
    ffi::{c_int, c_void},
    mem::offset_of,
    slice,
};

use ibverbs_sys as ffi;

use super::{
    ah::Ah,
    mw, null,
    object::{Object, Plain},
    post,
    qp::{self, Qp},
    xrcd::Xrcd,
};
use crate::engine::{Destination, Payload, Placement, Remote, SendOp, SendRequest, Sge};

/// The C struct of a queue pair, with the functions of extended requests.
#[repr(C)]
pub(super) struct Table {
    pub(super) ex: ffi::ibv_qp_ex,
    /// Room for functions newer than the headers.
    _newer: [usize; 2],
}

type AtomicWrite = unsafe extern "C" fn(*mut ffi::ibv_qp_ex, u32, u64, *const c_void);
type Flush = unsafe extern "C" fn(*mut ffi::ibv_qp_ex, u32, u64, usize, u8, u8);

/// Offset of the function for atomic writes, after the last one of rdma-core 39. The function for flushes follows.
const NEWER: usize = offset_of!(ffi::ibv_qp_ex, wr_abort) + size_of::<Option<AtomicWrite>>();
const _: () = assert!(NEWER + 2 * size_of::<Option<AtomicWrite>>() <= size_of::<Table>());

// SAFETY: a C struct of integers, pointers and functions, with `pthread` types made of integers.
unsafe impl Plain for Table {}

/// Requests not posted yet.
#[derive(Debug, Default)]
pub(super) struct Building {
    requests: Vec<SendRequest>,
    /// Whether an argument of a call was invalid.
    is_malformed: bool,
}

use ffi::ibv_qp_create_send_ops_flags as with;

/// Operations of datagrams.
const UD: u64 = (with::IBV_QP_EX_WITH_SEND.0 | with::IBV_QP_EX_WITH_SEND_WITH_IMM.0) as u64;

/// Operations of unreliable connections.
const UC: u64 = UD
    | (with::IBV_QP_EX_WITH_RDMA_WRITE.0
        | with::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0
        | with::IBV_QP_EX_WITH_LOCAL_INV.0
        | with::IBV_QP_EX_WITH_BIND_MW.0) as u64;

/// Operations of reliable connections.
const RC: u64 = UC
    | (with::IBV_QP_EX_WITH_RDMA_READ.0
        | with::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0
        | with::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0
        | with::IBV_QP_EX_WITH_SEND_WITH_INV.0
        | with::IBV_QP_EX_WITH_FLUSH.0
        | with::IBV_QP_EX_WITH_ATOMIC_WRITE.0) as u64;

/// Operations of a transport.
fn operations(kind: ffi::ibv_qp_type) -> u64 {
    match kind {
        ffi::ibv_qp_type::IBV_QPT_RC | ffi::ibv_qp_type::IBV_QPT_XRC_SEND => RC,
        ffi::ibv_qp_type::IBV_QPT_UC => UC,
        ffi::ibv_qp_type::IBV_QPT_UD => UD,
        _ => 0,
    }
}

pub(super) unsafe extern "C" fn create_qp_ex(
    _ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_qp_init_attr_ex,
) -> *mut ffi::ibv_qp {
    use ffi::ibv_qp_init_attr_mask as has;
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    let asked = |field: has| attr.comp_mask & field.0 != 0;
    let known = has::IBV_QP_INIT_ATTR_PD | has::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let known = (known | has::IBV_QP_INIT_ATTR_XRCD).0;
    let is_extended = asked(has::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
    let wanted = is_extended.then_some(attr.send_ops_flags);
    let unknown = wanted.unwrap_or(0) & !operations(attr.qp_type) != 0;
    if attr.comp_mask & !known != 0 || unknown {
        return null(libc::EOPNOTSUPP);
    }
    let plain = ffi::ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    };
    let is_receiver = attr.qp_type == ffi::ibv_qp_type::IBV_QPT_XRC_RECV;
    let (pd, xrcd) = (has::IBV_QP_INIT_ATTR_PD, has::IBV_QP_INIT_ATTR_XRCD);
    if is_receiver && asked(xrcd) {
        // SAFETY: the caller's domain is live.
        qp::create_xrc_receiver(unsafe { Xrcd::borrow(attr.xrcd) }, &plain)
    } else if !is_receiver && asked(pd) && !asked(xrcd) {
        // SAFETY: the caller's domain and queues are live.
        unsafe { qp::create(attr.pd, &plain, wanted) }
    } else {
        null(libc::EINVAL)
    }
}

impl Table {
    /// Adds the functions for building requests of these operations.
    pub(super) fn fill(&mut self, operations: u64) {
        let asked = |operation: with| operations & u64::from(operation.0) != 0;
        let newer: *mut Self = self;
        // SAFETY: within the struct: checked at `NEWER`.
        let newer = unsafe { newer.byte_add(NEWER) }.cast::<Option<AtomicWrite>>();
        let function: Option<AtomicWrite> =
            asked(with::IBV_QP_EX_WITH_ATOMIC_WRITE).then_some(atomic_write);
        // SAFETY: as above; the offset is that of a pointer.
        unsafe { newer.write(function) };
        let function: Option<Flush> = asked(with::IBV_QP_EX_WITH_FLUSH).then_some(flush);
        // SAFETY: within the struct: checked at `NEWER`.
        let newer = unsafe { newer.add(1) }.cast::<Option<Flush>>();
        // SAFETY: as above.
        unsafe { newer.write(function) };
        let qp = &mut self.ex;
        qp.wr_start = Some(start);
        qp.wr_complete = Some(complete);
        qp.wr_abort = Some(abort);
        qp.wr_set_ud_addr = Some(set_ud_addr);
        qp.wr_set_xrc_srqn = Some(set_xrc_srqn);
        qp.wr_set_inline_data = Some(set_inline_data);
        qp.wr_set_inline_data_list = Some(set_inline_data_list);
        qp.wr_set_sge = Some(set_sge);
        qp.wr_set_sge_list = Some(set_sge_list);
        qp.wr_send = asked(with::IBV_QP_EX_WITH_SEND).then_some(send);
        qp.wr_send_imm = asked(with::IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(send_imm);
        qp.wr_send_inv = asked(with::IBV_QP_EX_WITH_SEND_WITH_INV).then_some(send_inv);
        qp.wr_rdma_write = asked(with::IBV_QP_EX_WITH_RDMA_WRITE).then_some(rdma_write);
        qp.wr_rdma_write_imm =
            asked(with::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(rdma_write_imm);
        qp.wr_rdma_read = asked(with::IBV_QP_EX_WITH_RDMA_READ).then_some(rdma_read);
        qp.wr_atomic_cmp_swp =
            asked(with::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP).then_some(atomic_cmp_swp);
        qp.wr_atomic_fetch_add =
            asked(with::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD).then_some(atomic_fetch_add);
        qp.wr_local_inv = asked(with::IBV_QP_EX_WITH_LOCAL_INV).then_some(local_inv);
        qp.wr_bind_mw = asked(with::IBV_QP_EX_WITH_BIND_MW).then_some(bind_mw);
    }
}

unsafe extern "C" fn start(raw: *mut ffi::ibv_qp_ex) {
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::borrow(raw.cast()) };
    qp.building.begin(Building::default());
}

unsafe extern "C" fn complete(raw: *mut ffi::ibv_qp_ex) -> c_int {
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::borrow(raw.cast()) };
    // Posted before the end, so that batches of several threads are posted in the order of their starts.
    let posted = qp.building.with(|building| match building.is_malformed {
        true => libc::EINVAL,
        false => post::post_all(qp, std::mem::take(&mut building.requests)),
    });
    qp.building.end();
    posted.unwrap_or(libc::EINVAL)
}

unsafe extern "C" fn abort(raw: *mut ffi::ibv_qp_ex) {
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::borrow(raw.cast()) };
    qp.building.end();
}

/// Begins a request. Outside of `ibv_wr_start` and `ibv_wr_complete`, does nothing.
///
/// # Safety
/// - `raw` is a live queue pair, used by this thread alone.
unsafe fn begin(raw: *mut ffi::ibv_qp_ex, op: SendOp) {
    use ffi::ibv_send_flags as flags;
    // SAFETY: the caller's promise.
    let qp = unsafe { Qp::borrow(raw.cast()) };
    // SAFETY: the caller's promise; programs set the field before.
    let wr_id = unsafe { (*raw).wr_id };
    // SAFETY: as above.
    let wr_flags = unsafe { (*raw).wr_flags };
    let has = |flag: flags| wr_flags & flag.0 != 0;
    let request = SendRequest {
        wr_id,
        op,
        payload: Payload::Sges(Vec::new()),
        destination: None,
        xrc_srq: None,
        signaled: has(flags::IBV_SEND_SIGNALED),
        solicited: has(flags::IBV_SEND_SOLICITED),
        fence: has(flags::IBV_SEND_FENCE),
    };
    qp.building.with(|building| building.requests.push(request));
}

/// Adds to the last request begun.
///
/// # Safety
/// - `raw` is a live queue pair.
unsafe fn add(raw: *mut ffi::ibv_qp_ex, change: impl FnOnce(&mut SendRequest)) {
    // SAFETY: the caller's promise.
    let qp = unsafe { Qp::borrow(raw.cast()) };
    qp.building.with(|building| {
        if let Some(request) = building.requests.last_mut() {
            change(request);
        }
    });
}

macro_rules! operations {
    ($($name:ident($($arg:ident: $type:ty),*) = $op:expr;)*) => {$(
        unsafe extern "C" fn $name(raw: *mut ffi::ibv_qp_ex, $($arg: $type),*) {
            // SAFETY: a live queue pair. Programs build from one thread at a time.
            unsafe { begin(raw, $op) };
        }
    )*};
}

operations! {
    send() = SendOp::Send { imm: None, invalidate: None };
    send_imm(imm: ffi::__be32) = SendOp::Send { imm: Some(imm.to_ne()), invalidate: None };
    send_inv(rkey: u32) = SendOp::Send { imm: None, invalidate: Some(rkey) };
    rdma_write(rkey: u32, addr: u64) = SendOp::Write { remote: Remote { addr, rkey }, imm: None };
    rdma_write_imm(rkey: u32, addr: u64, imm: ffi::__be32) = SendOp::Write {
        remote: Remote { addr, rkey },
        imm: Some(imm.to_ne()),
    };
    rdma_read(rkey: u32, addr: u64) = SendOp::Read(Remote { addr, rkey });
    atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) = SendOp::CompareSwap {
        remote: Remote { addr, rkey },
        compare,
        swap,
    };
    atomic_fetch_add(rkey: u32, addr: u64, add: u64) = SendOp::FetchAdd {
        remote: Remote { addr, rkey },
        add,
    };
    local_inv(rkey: u32) = SendOp::LocalInvalidate(rkey);
}

unsafe extern "C" fn atomic_write(
    raw: *mut ffi::ibv_qp_ex,
    rkey: u32,
    addr: u64,
    value: *const c_void,
) {
    // SAFETY: the caller's eight bytes.
    let value = unsafe { value.cast::<[u8; 8]>().read() };
    let remote = Remote { addr, rkey };
    // SAFETY: as for the other operations.
    unsafe { begin(raw, SendOp::AtomicWrite { remote, value }) };
}

unsafe extern "C" fn flush(
    raw: *mut ffi::ibv_qp_ex,
    rkey: u32,
    addr: u64,
    len: usize,
    placement: u8,
    selectivity: u8,
) {
    let range = ffi::ibv_selectivity_level::IBV_FLUSH_RANGE.0;
    let region = ffi::ibv_selectivity_level::IBV_FLUSH_MR.0;
    let valid_len = u32::try_from(len);
    if valid_len.is_err() || ![range, region].contains(&selectivity.into()) {
        // SAFETY: a live queue pair.
        let qp = unsafe { Qp::borrow(raw.cast()) };
        qp.building.with(|building| building.is_malformed = true);
    }
    let op = SendOp::Flush {
        remote: Remote { addr, rkey },
        len: valid_len.unwrap_or(u32::MAX),
        placement: Placement(placement),
        whole_region: u32::from(selectivity) == region,
    };
    // SAFETY: as for the other operations.
    unsafe { begin(raw, op) };
}

unsafe extern "C" fn bind_mw(
    raw: *mut ffi::ibv_qp_ex,
    window: *mut ffi::ibv_mw,
    new_rkey: u32,
    info: *const ffi::ibv_mw_bind_info,
) {
    // SAFETY: a live window, bound by one thread at a time.
    let rkey = unsafe { (*window).rkey };
    // SAFETY: the caller's information.
    let info = unsafe { &*info };
    // SAFETY: the caller's region is live.
    let binding = unsafe { mw::binding(info) };
    let op = SendOp::Bind {
        rkey,
        new_rkey,
        binding,
    };
    // SAFETY: as for the other operations.
    unsafe { begin(raw, op) };
}

unsafe extern "C" fn set_ud_addr(
    raw: *mut ffi::ibv_qp_ex,
    ah: *mut ffi::ibv_ah,
    qp: u32,
    qkey: u32,
) {
    // SAFETY: the caller's address handle is live.
    let path = unsafe { Ah::borrow(ah) }.path;
    let destination = Destination { path, qp, qkey };
    // SAFETY: a live queue pair.
    unsafe { add(raw, |request| request.destination = Some(destination)) };
}

unsafe extern "C" fn set_xrc_srqn(raw: *mut ffi::ibv_qp_ex, number: u32) {
    // SAFETY: a live queue pair.
    unsafe { add(raw, |request| request.xrc_srq = Some(number)) };
}

/// Appends the bytes at an address.
///
/// # Safety
/// - `len` bytes are readable.
unsafe fn append(to: &mut Vec<u8>, from: *const c_void, len: usize) {
    if len > 0 {
        // SAFETY: the caller's promise.
        to.extend_from_slice(unsafe { slice::from_raw_parts(from.cast(), len) });
    }
}

unsafe extern "C" fn set_inline_data(raw: *mut ffi::ibv_qp_ex, data: *mut c_void, len: usize) {
    let mut bytes = Vec::new();
    // SAFETY: the caller's bytes.
    unsafe { append(&mut bytes, data, len) };
    // SAFETY: a live queue pair.
    unsafe { add(raw, |request| request.payload = Payload::Inline(bytes)) };
}

unsafe extern "C" fn set_inline_data_list(
    raw: *mut ffi::ibv_qp_ex,
    count: usize,
    list: *const ffi::ibv_data_buf,
) {
    let mut bytes = Vec::new();
    for index in 0..count {
        // SAFETY: the caller's list has `count` elements.
        let element = unsafe { list.add(index) };
        // SAFETY: as above.
        let element = unsafe { element.read() };
        // SAFETY: the caller's bytes.
        unsafe { append(&mut bytes, element.addr, element.length) };
    }
    // SAFETY: a live queue pair.
    unsafe { add(raw, |request| request.payload = Payload::Inline(bytes)) };
}

unsafe extern "C" fn set_sge(raw: *mut ffi::ibv_qp_ex, lkey: u32, addr: u64, len: u32) {
    let list = vec![Sge { addr, len, lkey }];
    // SAFETY: a live queue pair.
    unsafe { add(raw, |request| request.payload = Payload::Sges(list)) };
}

unsafe extern "C" fn set_sge_list(
    raw: *mut ffi::ibv_qp_ex,
    count: usize,
    list: *const ffi::ibv_sge,
) {
    // SAFETY: the caller's list has `count` elements.
    let list = unsafe { post::elements(list, c_int::try_from(count).unwrap_or(0)) };
    let list = post::sges(list);
    // SAFETY: a live queue pair.
    unsafe { add(raw, |request| request.payload = Payload::Sges(list)) };
}
