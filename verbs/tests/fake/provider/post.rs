//! Posting and completing.

use std::{ffi::c_int, ptr, slice};

use ibverbs_sys as ffi;

use super::{
    cq::Extra,
    state::{State, device_of},
};

/// A request in the device's view: the fields of its opcode.
#[derive(Clone, Debug)]
pub(crate) struct PostedSend {
    pub(crate) wr_id: u64,
    pub(crate) opcode: ffi::ibv_wr_opcode,
    /// Of `ibv_send_flags`.
    pub(crate) flags: u32,
    pub(crate) sges: Vec<ffi::ibv_sge>,
    /// The bytes of an inline request, copied at posting.
    pub(crate) inline: Option<Vec<u8>>,
    /// Immediate data, in the order of this machine.
    pub(crate) imm_data: Option<u32>,
    pub(crate) invalidate_rkey: Option<u32>,
    /// The address and key of the peer's memory.
    pub(crate) remote: Option<(u64, u32)>,
    /// The addend or the comparison value of an atomic.
    pub(crate) compare_add: Option<u64>,
    pub(crate) swap: Option<u64>,
    /// The address handle's address, and the peer's queue pair and key, of a datagram.
    pub(crate) datagram: Option<(usize, u32, u32)>,
    pub(crate) remote_srqn: Option<u32>,
    /// The window's address, its new key, and its binding.
    pub(crate) bind: Option<(usize, u32, Bind)>,
    /// The header, and the size of a segment.
    pub(crate) tso: Option<(Vec<u8>, u16)>,
    pub(crate) atomic_write: Option<[u8; 8]>,
    /// The length, the placement and the selectivity.
    pub(crate) flush: Option<(usize, u8, u8)>,
}

/// The target of a memory window's binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bind {
    pub(crate) mr: usize,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) access: u32,
}

impl From<&ffi::ibv_mw_bind_info> for Bind {
    fn from(info: &ffi::ibv_mw_bind_info) -> Self {
        Self {
            mr: info.mr.addr(),
            addr: info.addr,
            length: info.length,
            access: info.mw_access_flags,
        }
    }
}

/// A receive, in the device's view.
#[derive(Clone, Debug)]
pub(crate) struct PostedReceive {
    pub(crate) wr_id: u64,
    pub(crate) sges: Vec<ffi::ibv_sge>,
}

impl PostedSend {
    pub(super) fn new(wr_id: u64, opcode: ffi::ibv_wr_opcode, flags: u32) -> Self {
        Self {
            wr_id,
            opcode,
            flags,
            sges: Vec::new(),
            inline: None,
            imm_data: None,
            invalidate_rkey: None,
            remote: None,
            compare_add: None,
            swap: None,
            datagram: None,
            remote_srqn: None,
            bind: None,
            tso: None,
            atomic_write: None,
            flush: None,
        }
    }

    /// Whether the device was asked for a completion.
    pub(crate) fn is_signaled(&self) -> bool {
        self.flags & ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 != 0
    }

    /// The bytes that the request sends, or writes to the peer: read now, as by a device.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match &self.inline {
            Some(bytes) => bytes.clone(),
            // SAFETY: memory in flight stays registered, and is not written meanwhile: guaranteed
            // by `verbs`, and checked by these tests.
            None => unsafe { read(&self.sges) },
        }
    }

    fn wc_opcode(&self) -> ffi::ibv_wc_opcode {
        use ffi::{ibv_wc_opcode as done, ibv_wr_opcode as asked};
        match self.opcode {
            asked::IBV_WR_RDMA_WRITE | asked::IBV_WR_RDMA_WRITE_WITH_IMM => done::IBV_WC_RDMA_WRITE,
            asked::IBV_WR_RDMA_READ => done::IBV_WC_RDMA_READ,
            asked::IBV_WR_ATOMIC_CMP_AND_SWP => done::IBV_WC_COMP_SWAP,
            asked::IBV_WR_ATOMIC_FETCH_AND_ADD => done::IBV_WC_FETCH_ADD,
            asked::IBV_WR_LOCAL_INV => done::IBV_WC_LOCAL_INV,
            asked::IBV_WR_BIND_MW => done::IBV_WC_BIND_MW,
            asked::IBV_WR_TSO => done::IBV_WC_TSO,
            asked::IBV_WR_ATOMIC_WRITE => done::IBV_WC_ATOMIC_WRITE,
            asked::IBV_WR_FLUSH => done::IBV_WC_FLUSH,
            _ => done::IBV_WC_SEND,
        }
    }
}

impl PostedReceive {
    /// # Safety
    /// - `wr` is a request with `num_sge` elements in its list.
    pub(super) unsafe fn read(wr: &ffi::ibv_recv_wr) -> Self {
        Self {
            wr_id: wr.wr_id,
            // SAFETY: the caller's promise.
            sges: unsafe { list(wr.sg_list, wr.num_sge) },
        }
    }
}

/// # Safety
/// - There are `count` elements at `sges`.
pub(super) unsafe fn list(sges: *const ffi::ibv_sge, count: c_int) -> Vec<ffi::ibv_sge> {
    if count == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(sges, count as usize) }.to_vec()
}

/// # Safety
/// - The elements are readable memory.
pub(super) unsafe fn read(sges: &[ffi::ibv_sge]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for sge in sges {
        if sge.length > 0 {
            let start = ptr::with_exposed_provenance::<u8>(sge.addr as usize);
            // SAFETY: the caller's promise.
            bytes.extend_from_slice(unsafe { slice::from_raw_parts(start, sge.length as usize) });
        }
    }
    bytes
}

/// # Safety
/// - `wr` is a request of a queue pair of this kind, with the fields of its opcode.
unsafe fn understand(wr: *mut ffi::ibv_send_wr, kind: ffi::ibv_qp_type) -> PostedSend {
    use ffi::ibv_wr_opcode as asked;
    // Only the opcode's fields are read: the others need not be initialised. SAFETY: as the caller
    // promises, here and below.
    let (wr_id, opcode, flags) = unsafe { ((*wr).wr_id, (*wr).opcode, (*wr).send_flags) };
    let mut posted = PostedSend::new(wr_id, opcode, flags);
    // SAFETY: see above.
    posted.sges = unsafe { list((*wr).sg_list, (*wr).num_sge) };
    if flags & ffi::ibv_send_flags::IBV_SEND_INLINE.0 != 0 {
        // SAFETY: the bytes of an inline request are the caller's during the call.
        posted.inline = Some(unsafe { read(&posted.sges) });
    }
    match opcode {
        asked::IBV_WR_SEND_WITH_IMM | asked::IBV_WR_RDMA_WRITE_WITH_IMM => {
            // SAFETY: a field of these opcodes.
            let imm_data = unsafe { (*wr).__bindgen_anon_1.imm_data };
            posted.imm_data = Some(imm_data.to_ne());
        }
        asked::IBV_WR_SEND_WITH_INV | asked::IBV_WR_LOCAL_INV => {
            // SAFETY: a field of these opcodes.
            posted.invalidate_rkey = Some(unsafe { (*wr).__bindgen_anon_1.invalidate_rkey });
        }
        asked::IBV_WR_BIND_MW => {
            // SAFETY: a field of this opcode.
            let bind = unsafe { (*wr).__bindgen_anon_2.bind_mw };
            posted.bind = Some((bind.mw.addr(), bind.rkey, Bind::from(&bind.bind_info)));
        }
        asked::IBV_WR_TSO => {
            // SAFETY: a field of this opcode.
            let tso = unsafe { (*wr).__bindgen_anon_2.tso };
            // SAFETY: the header is the caller's during the call.
            let header = unsafe { slice::from_raw_parts(tso.hdr.cast::<u8>(), tso.hdr_sz.into()) };
            posted.tso = Some((header.to_vec(), tso.mss));
        }
        _ => {}
    }
    match opcode {
        asked::IBV_WR_RDMA_WRITE | asked::IBV_WR_RDMA_WRITE_WITH_IMM | asked::IBV_WR_RDMA_READ => {
            // SAFETY: fields of these opcodes.
            let rdma = unsafe { (*wr).wr.rdma };
            posted.remote = Some((rdma.remote_addr, rdma.rkey));
        }
        asked::IBV_WR_ATOMIC_CMP_AND_SWP | asked::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            // SAFETY: fields of these opcodes, the last of one of them.
            unsafe {
                posted.remote = Some(((*wr).wr.atomic.remote_addr, (*wr).wr.atomic.rkey));
                posted.compare_add = Some((*wr).wr.atomic.compare_add);
                if opcode == asked::IBV_WR_ATOMIC_CMP_AND_SWP {
                    posted.swap = Some((*wr).wr.atomic.swap);
                }
            }
        }
        _ if kind == ffi::ibv_qp_type::IBV_QPT_UD => {
            // SAFETY: fields of every request of this kind of queue pair.
            let ud = unsafe { (*wr).wr.ud };
            posted.datagram = Some((ud.ah.addr(), ud.remote_qpn, ud.remote_qkey));
        }
        _ => {}
    }
    if kind == ffi::ibv_qp_type::IBV_QPT_XRC_SEND {
        // SAFETY: a field of every request of this kind of queue pair.
        posted.remote_srqn = Some(unsafe { (*wr).qp_type.xrc.remote_srqn });
    }
    posted
}

impl State {
    /// Takes a request, or returns the error of posting.
    pub(super) fn take_send(&mut self, qp: usize, mut posted: PostedSend) -> c_int {
        self.used("ibv_post_send", qp);
        if let Err(errno) = self.attempt("ibv_post_send") {
            return errno;
        }
        if let Some((ah, ..)) = posted.datagram {
            self.used("ibv_post_send", ah);
        }
        // As mlx5's and mlx4's providers, which check there for a full queue.
        self.lock_cq("ibv_post_send", self.qps[&qp].send_cq);
        let this = self.qp_mut(qp);
        let ready = [
            ffi::ibv_qp_state::IBV_QPS_RTS,
            ffi::ibv_qp_state::IBV_QPS_SQD,
            ffi::ibv_qp_state::IBV_QPS_ERR,
            ffi::ibv_qp_state::IBV_QPS_SQE,
        ];
        let inline = posted.inline.as_ref().map_or(0, Vec::len);
        if !ready.contains(&this.state)
            || posted.sges.len() > this.cap.max_send_sge as usize
            || inline > this.cap.max_inline_data as usize
        {
            return libc::EINVAL;
        }
        if this.sends.len() >= this.cap.max_send_wr as usize {
            return libc::ENOMEM;
        }
        if this.signal_all {
            posted.flags |= ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        let (number, state) = (this.number, this.state);
        if posted.inline.is_none() {
            for sge in &posted.sges {
                if !self.is_registered(sge) {
                    self.complain(format!("{posted:?} names memory that is not registered"));
                    break;
                }
            }
        }
        if let Some((mw, _, bind)) = &posted.bind {
            self.bind(*mw, &[bind.mr, qp]);
        }
        self.qp_mut(qp).sends.push_back(posted);
        if state == ffi::ibv_qp_state::IBV_QPS_ERR {
            self.flush(number);
        }
        0
    }

    /// Takes the binding of a window by `ibv_bind_mw`.
    pub(super) fn post_bind(&mut self, qp: usize, bind: &ffi::ibv_mw_bind, rkey: u32) -> c_int {
        let opcode = ffi::ibv_wr_opcode::IBV_WR_BIND_MW;
        let mut posted = PostedSend::new(bind.wr_id, opcode, bind.send_flags);
        posted.bind = Some((0, rkey, Bind::from(&bind.bind_info)));
        self.take_send(qp, posted)
    }

    /// Takes a receive, or returns the error of posting.
    fn take_receive(&mut self, qp: usize, posted: PostedReceive) -> c_int {
        self.used("ibv_post_recv", qp);
        if let Err(errno) = self.attempt("ibv_post_recv") {
            return errno;
        }
        self.check_receive(&posted);
        self.lock_cq("ibv_post_recv", self.qps[&qp].recv_cq);
        let this = self.qp_mut(qp);
        if this.state == ffi::ibv_qp_state::IBV_QPS_RESET
            || this.srq != 0
            || posted.sges.len() > this.cap.max_recv_sge as usize
        {
            return libc::EINVAL;
        }
        if this.receives.len() >= this.cap.max_recv_wr as usize {
            return libc::ENOMEM;
        }
        this.receives.push_back(posted);
        let (number, state) = (this.number, this.state);
        if state == ffi::ibv_qp_state::IBV_QPS_ERR {
            self.flush(number);
        }
        0
    }

    pub(super) fn check_receive(&mut self, posted: &PostedReceive) {
        for sge in &posted.sges {
            if !self.is_registered(sge) {
                return self.complain(format!("{posted:?} names memory that is not registered"));
            }
        }
    }

    pub(super) fn complete_send(&mut self, qp_num: u32, index: usize, status: u32) {
        let this = self.qp_by_number(qp_num);
        let posted = this.sends.remove(index).unwrap();
        let cq = this.send_cq;
        let bytes: u32 = posted.sges.iter().map(|sge| sge.length).sum();
        let send = ffi::ibv_qp_attach_comp_cntr_op::IBV_QP_ATTACH_COMP_CNTR_OP_SEND;
        if posted.wc_opcode() == ffi::ibv_wc_opcode::IBV_WC_SEND {
            self.count(qp_num, send.0, bytes.into(), status != 0);
        }
        if posted.is_signaled() || status != 0 {
            let mut wc = super::wc(posted.wr_id, posted.wc_opcode());
            wc.status = ffi::ibv_wc_status(status);
            wc.qp_num = qp_num;
            wc.byte_len = bytes;
            self.push(cq, wc, Extra::default());
        }
    }

    pub(super) fn complete_receive(
        &mut self,
        qp_num: u32,
        message: &[u8],
        change: impl FnOnce(&mut ffi::ibv_wc),
    ) {
        let found = self.qps.iter().find(|(_, qp)| qp.number == qp_num);
        let owner = *found.unwrap().0;
        let this = self.qp_mut(owner);
        let (cq, srq) = (this.recv_cq, this.srq);
        let posted = match srq {
            0 => this.receives.pop_front().unwrap(),
            srq => self.take_from_srq(srq),
        };
        let mut wc = super::wc(posted.wr_id, ffi::ibv_wc_opcode::IBV_WC_RECV);
        wc.qp_num = qp_num;
        wc.byte_len = message.len() as u32;
        wc.status = self.deliver_to(owner, cq, &posted, message);
        change(&mut wc);
        let receive = ffi::ibv_qp_attach_comp_cntr_op::IBV_QP_ATTACH_COMP_CNTR_OP_RECV;
        let failed = wc.status != ffi::ibv_wc_status::IBV_WC_SUCCESS;
        self.count(qp_num, receive.0, wc.byte_len.into(), failed);
        self.push(cq, wc, Extra::default());
    }

    /// Takes the request with this identifier out of flight, and with guaranteed order also those
    /// before.
    pub(super) fn end_request(&mut self, wr_id: u64) {
        let iwarp = ffi::ibv_transport_type::IBV_TRANSPORT_IWARP;
        let ordered = self.properties.transport_type != iwarp;
        let first = |index: usize| if ordered { 0 } else { index };
        for qp in self.qps.values_mut() {
            if let Some(index) = qp.sends.iter().position(|send| send.wr_id == wr_id) {
                qp.sends.drain(first(index)..=index);
            }
            if let Some(index) = qp.receives.iter().position(|it| it.wr_id == wr_id) {
                qp.receives.drain(first(index)..=index);
            }
        }
        for srq in self.srqs.values_mut() {
            srq.receives.retain(|receive| receive.wr_id != wr_id);
        }
    }

    /// Does everything permitted to a device before its queue pair's destruction has returned:
    /// reads the memory of every request in flight once more, and leaves the completions not
    /// removed by a library.
    pub(super) fn last_moment(&mut self, qp: usize) {
        let this = self.qp_mut(qp);
        let (sends, receives) = (this.sends.clone(), this.receives.clone());
        for send in sends.iter().filter(|send| send.inline.is_none()) {
            self.touch("a queue pair", &send.sges);
        }
        for receive in &receives {
            self.touch("a queue pair", &receive.sges);
        }
        let number = self.qp_mut(qp).number;
        self.flush(number);
    }

    /// Reads the memory of elements, and complains if the memory is not registered any more.
    pub(super) fn touch(&mut self, owner: &str, sges: &[ffi::ibv_sge]) {
        if !sges.iter().all(|sge| self.is_registered(sge)) {
            return self.complain(format!(
                "{owner} had work in flight whose memory was given back"
            ));
        }
        std::hint::black_box(self.collect(sges));
    }

    pub(super) fn flush(&mut self, qp_num: u32) {
        let status = ffi::ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        while !self.qp_by_number(qp_num).sends.is_empty() {
            self.complete_send(qp_num, 0, status.0);
        }
        let this = self.qp_by_number(qp_num);
        let cq = this.recv_cq;
        for posted in std::mem::take(&mut this.receives) {
            let mut wc = super::wc(posted.wr_id, ffi::ibv_wc_opcode::IBV_WC_RECV);
            wc.status = status;
            wc.qp_num = qp_num;
            self.push(cq, wc, Extra::default());
        }
    }
}

/// Name for a failure of the doorbell call, after the requests have been posted. No request is
/// named as bad then, as by Soft-RoCE's and Soft-iWARP's providers.
pub(crate) const DOORBELL: &str = "the doorbell";

/// Name for a failure of the doorbell call by a provider that does not write `bad_wr`.
pub(crate) const SILENT_DOORBELL: &str = "the doorbell, in silence";

/// Rings the doorbell for posted requests.
///
/// # Safety
/// - `bad` is the caller's place.
pub(super) unsafe fn ring<W>(state: &mut State, bad: *mut *mut W) -> c_int {
    if let Err(errno) = state.attempt(DOORBELL) {
        // SAFETY: the caller's promise.
        unsafe { *bad = ptr::null_mut() };
        return errno;
    }
    state.attempt(SILENT_DOORBELL).err().unwrap_or(0)
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ffi::ibv_qp,
    mut wr: *mut ffi::ibv_send_wr,
    bad: *mut *mut ffi::ibv_send_wr,
) -> c_int {
    // SAFETY: one of the fake's.
    let (shared, kind) = unsafe { (device_of(qp), (*qp).qp_type) };
    let mut state = shared.lock();
    state.doorbells += 1;
    if state.qps[&qp.addr()].building.is_some() {
        state.complain("`ibv_post_send` waits for the lock of an open batch".to_owned());
    }
    while !wr.is_null() {
        // SAFETY: the caller's chain of requests.
        let posted = unsafe { understand(wr, kind) };
        let ret = state.take_send(qp.addr(), posted);
        if ret != 0 {
            // SAFETY: the caller's place.
            unsafe { *bad = wr };
            return ret;
        }
        // SAFETY: the caller's chain of requests.
        wr = unsafe { (*wr).next };
    }
    // SAFETY: the caller's place.
    unsafe { ring(&mut state, bad) }
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ffi::ibv_qp,
    mut wr: *mut ffi::ibv_recv_wr,
    bad: *mut *mut ffi::ibv_recv_wr,
) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(qp) };
    let mut state = shared.lock();
    state.doorbells += 1;
    while !wr.is_null() {
        // SAFETY: the caller's chain of requests.
        let posted = unsafe { PostedReceive::read(&*wr) };
        let ret = state.take_receive(qp.addr(), posted);
        if ret != 0 {
            // SAFETY: the caller's place.
            unsafe { *bad = wr };
            return ret;
        }
        // SAFETY: the caller's chain of requests.
        wr = unsafe { (*wr).next };
    }
    // SAFETY: the caller's place.
    unsafe { ring(&mut state, bad) }
}
