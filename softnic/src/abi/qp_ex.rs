//! Extended requests: each is built by several calls, and all are posted together.

use std::{
    ffi::{c_int, c_void},
    mem::offset_of,
    slice,
};

use ibverbs_sys as ffi;

use super::{
    context,
    functions::Kind,
    null,
    object::{Object, Plain},
    post,
    qp::{self, Qp, Vendor},
    scripted::PostedSend,
    xrcd::Xrcd,
};
use crate::{
    card::{Card, SendOperations},
    engine::QpKind,
    fabric::Port,
    failure::Call,
};

/// The C struct of a queue pair, with the functions of extended requests.
#[repr(C)]
pub(super) struct Table {
    pub(super) ex: ffi::ibv_qp_ex,
    /// Room for functions newer than the headers. Moves of integers would lose the functions, by the rules of Rust.
    _newer: [Option<unsafe extern "C" fn()>; 2],
}

type AtomicWrite = unsafe extern "C" fn(*mut ffi::ibv_qp_ex, u32, u64, *const c_void);
type Flush = unsafe extern "C" fn(*mut ffi::ibv_qp_ex, u32, u64, usize, u8, u8);

/// Offset of the function for atomic writes, after the last one of rdma-core 39. The function for flushes follows.
const NEWER: usize = offset_of!(ffi::ibv_qp_ex, wr_abort) + size_of::<Option<AtomicWrite>>();
const _: () = assert!(NEWER + 2 * size_of::<Option<AtomicWrite>>() <= size_of::<Table>());

// SAFETY: a C struct of integers, pointers and functions, with `pthread` types made of integers.
unsafe impl Plain for Table {
    fn name() -> &'static str {
        "ibv_qp_ex"
    }
}

use ffi::ibv_qp_create_send_ops_flags as with;

/// Operations of datagrams.
const UD: u64 = (with::IBV_QP_EX_WITH_SEND.0 | with::IBV_QP_EX_WITH_SEND_WITH_IMM.0) as u64;

/// Operations of reliable datagrams.
const SRD: u64 = UD
    | (with::IBV_QP_EX_WITH_RDMA_WRITE.0
        | with::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0
        | with::IBV_QP_EX_WITH_RDMA_READ.0) as u64;

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

/// Flushes and atomic writes.
const PLACEMENT: u64 = (with::IBV_QP_EX_WITH_FLUSH.0 | with::IBV_QP_EX_WITH_ATOMIC_WRITE.0) as u64;

/// Operations of a transport on a device.
fn operations(kind: QpKind, card: Option<Card>) -> u64 {
    const ATOMICS: u64 = (with::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0
        | with::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0) as u64;
    let mut absent = 0;
    if card.is_some_and(|card| !card.specification().has_placement) {
        absent |= PLACEMENT;
    }
    if !card.is_none_or(Card::has_atomics) {
        absent |= ATOMICS;
    }
    !absent
        & match kind {
            QpKind::Rc | QpKind::XrcSend => RC,
            QpKind::Dci => RC & !PLACEMENT,
            QpKind::Uc => UC,
            QpKind::Ud => UD,
            QpKind::Srd => SRD,
            QpKind::XrcRecv | QpKind::Dct => 0,
        }
}

/// Operations that lengthen requests on some cards.
pub(super) fn lengthening(operations: u64) -> SendOperations {
    let has = |of: with| operations & u64::from(of.0) != 0;
    SendOperations {
        rdma: has(with::IBV_QP_EX_WITH_RDMA_WRITE
            | with::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
            | with::IBV_QP_EX_WITH_RDMA_READ),
        atomics: has(
            with::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | with::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        ),
        windows: has(with::IBV_QP_EX_WITH_BIND_MW | with::IBV_QP_EX_WITH_LOCAL_INV),
    }
}

/// Whether a device is of the vendor with a transport: without a card, or with a card that has the transport.
pub(super) fn is_of_vendor(port: &Port, kind: QpKind) -> bool {
    let card = port.card();
    card.is_none_or(|card| card.specification().kinds.contains(&kind))
}

/// Whether the functions of a vendor with a transport serve a device.
///
/// # Safety
/// - `ctx` is an open context.
pub(super) unsafe fn serves(ctx: *mut ffi::ibv_context, kind: QpKind) -> bool {
    // SAFETY: the caller's promise.
    if let Kind::Scripted(_) = unsafe { Kind::of(ctx) } {
        return false;
    }
    // SAFETY: as above, of the engine.
    is_of_vendor(&unsafe { context::device(ctx) }.port, kind)
}

pub(super) unsafe extern "C" fn create_qp_ex(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_qp_init_attr_ex,
) -> *mut ffi::ibv_qp {
    // SAFETY: the caller's attributes, which drivers change, too.
    let attr = unsafe { &mut *attr };
    // SAFETY: an open context, and attributes of the caller's.
    unsafe { create(ctx, attr, None) }
}

/// Creates a queue pair of any type, that of a vendor included.
///
/// # Safety
/// - The context is open. The objects in the attributes are live.
pub(super) unsafe fn create(
    ctx: *mut ffi::ibv_context,
    attr: &mut ffi::ibv_qp_init_attr_ex,
    vendor: Option<Vendor>,
) -> *mut ffi::ibv_qp {
    use ffi::ibv_qp_init_attr_mask as has;
    let Some(kind) = qp::kind(attr.qp_type, vendor) else {
        return null(libc::EOPNOTSUPP);
    };
    // SAFETY: an open context.
    let card = unsafe { context::device(ctx) }.port.card();
    let comp_mask = attr.comp_mask;
    let requested = |field: has| comp_mask & field.0 != 0;
    let supported = has::IBV_QP_INIT_ATTR_PD | has::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let supported = supported | has::IBV_QP_INIT_ATTR_XRCD | has::IBV_QP_INIT_ATTR_CREATE_FLAGS;
    // No flag is supported: the field may be present, and must be zero, as for Linux's rxe.
    let has_flags = requested(has::IBV_QP_INIT_ATTR_CREATE_FLAGS) && attr.create_flags != 0;
    let is_extended = requested(has::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
    let send_ops = is_extended.then_some(attr.send_ops_flags);
    let unknown = send_ops.unwrap_or(0) & !operations(kind, card) != 0;
    if attr.comp_mask & !supported.0 != 0 || has_flags || unknown {
        return null(libc::EOPNOTSUPP);
    }
    let mut plain = ffi::ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    };
    let is_receiver = kind == QpKind::XrcRecv;
    let (pd, xrcd) = (has::IBV_QP_INIT_ATTR_PD, has::IBV_QP_INIT_ATTR_XRCD);
    if is_receiver && requested(xrcd) {
        // SAFETY: the caller's domain is live.
        qp::create_xrc_receiver(unsafe { Xrcd::borrow(attr.xrcd) }, &plain)
    } else if !is_receiver && requested(pd) && !requested(xrcd) {
        // SAFETY: the caller's domain and queues are live.
        let qp = unsafe { qp::create(attr.pd, &mut plain, send_ops, vendor) };
        attr.cap = plain.cap;
        qp
    } else {
        null(libc::EINVAL)
    }
}

impl Table {
    /// Writes the functions newer than the headers.
    fn fill_newer(&mut self, atomic_write: Option<AtomicWrite>, flush: Option<Flush>) {
        let newer: *mut Self = self;
        // SAFETY: within the struct: checked at `NEWER`.
        let newer = unsafe { newer.byte_add(NEWER) }.cast::<Option<AtomicWrite>>();
        // SAFETY: as above; the offset is that of a pointer.
        unsafe { newer.write(atomic_write) };
        // SAFETY: within the struct: checked at `NEWER`.
        let newer = unsafe { newer.add(1) }.cast::<Option<Flush>>();
        // SAFETY: as above.
        unsafe { newer.write(flush) };
    }
}

/// Adds the functions for building requests of these operations, for queue pairs of any device.
pub(super) fn fill_operations(table: &mut Table, operations: u64) {
    let requested = |operation: with| operations & u64::from(operation.0) != 0;
    table.fill_newer(
        requested(with::IBV_QP_EX_WITH_ATOMIC_WRITE).then_some(atomic_write),
        requested(with::IBV_QP_EX_WITH_FLUSH).then_some(flush),
    );
    let qp = &mut table.ex;
    qp.wr_set_ud_addr = Some(set_ud_addr);
    qp.wr_set_xrc_srqn = Some(set_xrc_srqn);
    qp.wr_set_inline_data = Some(set_inline_data);
    qp.wr_set_inline_data_list = Some(set_inline_data_list);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_send = requested(with::IBV_QP_EX_WITH_SEND).then_some(send);
    qp.wr_send_imm = requested(with::IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(send_imm);
    qp.wr_send_inv = requested(with::IBV_QP_EX_WITH_SEND_WITH_INV).then_some(send_inv);
    qp.wr_rdma_write = requested(with::IBV_QP_EX_WITH_RDMA_WRITE).then_some(rdma_write);
    qp.wr_rdma_write_imm =
        requested(with::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(rdma_write_imm);
    qp.wr_rdma_read = requested(with::IBV_QP_EX_WITH_RDMA_READ).then_some(rdma_read);
    qp.wr_atomic_cmp_swp =
        requested(with::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP).then_some(atomic_cmp_swp);
    qp.wr_atomic_fetch_add =
        requested(with::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD).then_some(atomic_fetch_add);
    qp.wr_local_inv = requested(with::IBV_QP_EX_WITH_LOCAL_INV).then_some(local_inv);
    qp.wr_bind_mw = requested(with::IBV_QP_EX_WITH_BIND_MW).then_some(bind_mw);
    qp.wr_send_tso = requested(with::IBV_QP_EX_WITH_TSO).then_some(send_tso);
}

/// Fills the table of an engine's queue pair.
pub(super) fn fill(table: &mut Table, operations: u64) {
    table.ex.wr_start = Some(start);
    table.ex.wr_complete = Some(complete);
    table.ex.wr_abort = Some(abort);
    fill_operations(table, operations);
}

unsafe extern "C" fn start(raw: *mut ffi::ibv_qp_ex) {
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::borrow(raw.cast()) };
    if qp.is_called_within("ibv_wr_start") {
        qp.building.end();
    }
    qp.building.begin(Vec::new());
}

unsafe extern "C" fn complete(raw: *mut ffi::ibv_qp_ex) -> c_int {
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::borrow(raw.cast()) };
    // Posted before the end, so that batches of several threads are posted in the order of their starts.
    let posted = qp.building.with(|building| {
        let requests = std::mem::take(building).into_iter();
        if let Err(errno) = qp.device.port.attempt(Call::WrComplete) {
            return errno;
        }
        // SAFETY: the address handles of datagrams are live until the requests are posted.
        let requests = requests.map(|request| unsafe { post::convert(qp, request) });
        match requests.collect() {
            Ok(requests) => post::post_all(qp, requests),
            Err(errno) => errno,
        }
    });
    qp.building.end();
    posted.unwrap_or(libc::EINVAL)
}

unsafe extern "C" fn abort(raw: *mut ffi::ibv_qp_ex) {
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::borrow(raw.cast()) };
    qp.building.end();
}

/// Begins a request. Outside of `ibv_wr_start` and `ibv_wr_complete`, does nothing on an engine's queue pair.
///
/// # Safety
/// - `raw` is a live queue pair, used by this thread alone.
unsafe fn begin(
    raw: *mut ffi::ibv_qp_ex,
    opcode: ffi::ibv_wr_opcode,
    fill: impl FnOnce(&mut PostedSend),
) {
    // SAFETY: the caller's promise; programs set the field before.
    let wr_id = unsafe { (*raw).wr_id };
    // SAFETY: as above.
    let flags = unsafe { (*raw).wr_flags };
    let mut posted = PostedSend::new(wr_id, opcode, flags);
    fill(&mut posted);
    let qp: *mut ffi::ibv_qp = raw.cast();
    // SAFETY: live; the field does not change.
    let ctx = unsafe { (*qp).context };
    // SAFETY: the context of a live object is open.
    match unsafe { Kind::of(ctx) } {
        Kind::Engine(_) => {
            // SAFETY: the caller's promise.
            let qp = unsafe { Qp::borrow(qp) };
            qp.building.with(|building| building.push(posted));
        }
        Kind::Scripted(device) => device.begin(qp.addr(), posted),
    }
}

/// Adds to the last request begun.
///
/// # Safety
/// - `raw` is a live queue pair.
pub(super) unsafe fn add(raw: *mut ffi::ibv_qp_ex, change: impl FnOnce(&mut PostedSend)) {
    let qp: *mut ffi::ibv_qp = raw.cast();
    // SAFETY: live; the field does not change.
    let ctx = unsafe { (*qp).context };
    // SAFETY: the context of a live object is open.
    match unsafe { Kind::of(ctx) } {
        Kind::Engine(_) => {
            // SAFETY: the caller's promise.
            let qp = unsafe { Qp::borrow(qp) };
            qp.building.with(|building| building.last_mut().map(change));
        }
        Kind::Scripted(device) => device.add(qp.addr(), change),
    }
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

/// Copies the bytes of a list of buffers.
///
/// # Safety
/// - The list has `count` elements, whose bytes are readable.
unsafe fn bytes_of_list(count: usize, list: *const ffi::ibv_data_buf) -> Vec<u8> {
    let mut bytes = Vec::new();
    for index in 0..count {
        // SAFETY: the caller's list has `count` elements.
        let element = unsafe { list.add(index) };
        // SAFETY: as above.
        let element = unsafe { element.read() };
        // SAFETY: the caller's bytes.
        unsafe { append(&mut bytes, element.addr, element.length) };
    }
    bytes
}

macro_rules! operations {
    ($($name:ident($($arg:ident: $ty:ty),*) = $opcode:ident, |$posted:ident| $fill:expr;)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ffi::ibv_qp_ex, $($arg: $ty),*) {
            // SAFETY: a live queue pair.
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
    atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) = IBV_WR_ATOMIC_CMP_AND_SWP, |posted| {
        posted.remote = Some((addr, rkey));
        posted.compare_add = Some(compare);
        posted.swap = Some(swap);
    };
    atomic_fetch_add(rkey: u32, addr: u64, amount: u64) = IBV_WR_ATOMIC_FETCH_AND_ADD, |posted| {
        posted.remote = Some((addr, rkey));
        posted.compare_add = Some(amount);
    };
    bind_mw(mw: *mut ffi::ibv_mw, rkey: u32, info: *const ffi::ibv_mw_bind_info) = IBV_WR_BIND_MW,
        |posted| {
            posted.set_bind(mw, rkey, &*info);
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
    // SAFETY: a live queue pair.
    unsafe {
        add(qp, |posted| {
            posted.datagram = Some((ah.expose_provenance(), qpn, qkey.into()))
        })
    };
}

unsafe extern "C" fn set_xrc_srqn(qp: *mut ffi::ibv_qp_ex, srqn: u32) {
    // SAFETY: a live queue pair.
    unsafe { add(qp, |posted| posted.remote_srqn = Some(srqn)) };
}

unsafe extern "C" fn set_inline_data(qp: *mut ffi::ibv_qp_ex, data: *mut c_void, len: usize) {
    let mut bytes = Vec::new();
    // SAFETY: the caller's bytes, during the call.
    unsafe { append(&mut bytes, data, len) };
    // SAFETY: a live queue pair.
    unsafe { add(qp, |posted| posted.inline = Some(bytes)) };
}

unsafe extern "C" fn set_inline_data_list(
    qp: *mut ffi::ibv_qp_ex,
    count: usize,
    list: *const ffi::ibv_data_buf,
) {
    // SAFETY: the caller's list, and the bytes of its elements, during the call.
    let bytes = unsafe { bytes_of_list(count, list) };
    // SAFETY: a live queue pair.
    unsafe { add(qp, |posted| posted.inline = Some(bytes)) };
}

unsafe extern "C" fn set_sge(qp: *mut ffi::ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = ffi::ibv_sge { addr, length, lkey };
    // SAFETY: a live queue pair.
    unsafe { add(qp, |posted| posted.set_sges(vec![sge])) };
}

unsafe extern "C" fn set_sge_list(
    qp: *mut ffi::ibv_qp_ex,
    count: usize,
    sges: *const ffi::ibv_sge,
) {
    // SAFETY: the caller's list.
    let sges = unsafe { post::elements(sges, c_int::try_from(count).unwrap_or(0)) }.to_vec();
    // SAFETY: a live queue pair.
    unsafe { add(qp, |posted| posted.set_sges(sges)) };
}

impl PostedSend {
    fn set_sges(&mut self, sges: Vec<ffi::ibv_sge>) {
        if self.flags & ffi::ibv_send_flags::IBV_SEND_INLINE.0 != 0 {
            // SAFETY: the bytes of an inline request are the caller's during the call.
            self.inline = Some(unsafe { post::inline(&sges) });
        }
        self.sges = sges;
    }
}
