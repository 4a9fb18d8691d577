//! Posting and completing.

use std::{ffi::c_int, ptr, sync::Weak};

use ibverbs_sys as ffi;

use super::{
    cq::Extra,
    state::{Shared, State, state_of},
};
use crate::{
    abi::post::{decode, elements},
    failure::Call,
};

/// A send request, with the fields of its opcode.
#[derive(Clone, Debug)]
pub struct PostedSend {
    /// Dangling until the device takes the request.
    pub(super) device: Weak<Shared>,
    /// Number among the requests of the device; 0 until the device takes the request.
    number: u64,
    /// Identifier of the request.
    pub wr_id: u64,
    /// Operation.
    pub opcode: ffi::ibv_wr_opcode,
    /// Flags of `ibv_send_flags`.
    pub flags: u32,
    /// Scatter/gather elements.
    pub sges: Vec<ffi::ibv_sge>,
    /// The bytes of an inline request, copied at posting.
    pub inline: Option<Vec<u8>>,
    /// Immediate data, in the order of this machine.
    pub imm_data: Option<u32>,
    /// The key to invalidate.
    pub invalidate_rkey: Option<u32>,
    /// The address and key of the peer's memory.
    pub remote: Option<(u64, u32)>,
    /// The addend or the comparison value of an atomic.
    pub compare_add: Option<u64>,
    /// The new value of a comparison and exchange.
    pub swap: Option<u64>,
    /// The address handle's address, and the peer's queue pair and key, of a datagram.
    pub datagram: Option<(usize, u32, u64)>,
    /// The number of the peer's shared receive queue (XRC).
    pub remote_srqn: Option<u32>,
    /// The window's address, its new key, and its binding.
    pub bind: Option<(usize, u32, Bind)>,
    /// The key of the window before its binding, and the local key of the region.
    pub(in crate::abi) bind_keys: (u32, u32),
    /// The header, and the size of a segment.
    pub tso: Option<(Vec<u8>, u16)>,
    /// The value of an atomic write.
    pub atomic_write: Option<[u8; 8]>,
    /// The length, the placement and the selectivity.
    pub flush: Option<(usize, u8, u8)>,
}

/// The target of a memory window's binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Address of the region's C struct.
    pub mr: usize,
    /// First address.
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
    /// Flags of `ibv_access_flags`.
    pub access: u32,
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

/// A receive request.
#[derive(Clone, Debug)]
pub struct PostedReceive {
    /// Identifier of the request.
    pub wr_id: u64,
    /// Scatter/gather elements.
    pub sges: Vec<ffi::ibv_sge>,
}

impl PostedSend {
    pub(in crate::abi) fn new(wr_id: u64, opcode: ffi::ibv_wr_opcode, flags: u32) -> Self {
        Self {
            device: Weak::new(),
            number: 0,
            bind_keys: (0, 0),
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

    /// Whether the request asks for a completion.
    pub fn is_signaled(&self) -> bool {
        self.flags & ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 != 0
    }

    /// Copies the bytes that the request sends, or writes to the peer: read now, as by a device.
    ///
    /// # Panics
    /// If the request is not in flight any more, so that its memory is the program's again, or the memory is not registered
    /// any more. Inline data have no such condition.
    pub fn bytes(&self) -> Vec<u8> {
        if let Some(bytes) = &self.inline {
            return bytes.clone();
        }
        let device = self.device.upgrade();
        let device = device.unwrap_or_else(|| panic!("the device of a request is gone"));
        device.lock().bytes_of(self)
    }

    /// Sets the window to bind, its new key, and the binding.
    ///
    /// # Safety
    /// - The window is live, and the region null or live.
    pub(in crate::abi) unsafe fn set_bind(
        &mut self,
        mw: *mut ffi::ibv_mw,
        rkey: u32,
        info: &ffi::ibv_mw_bind_info,
    ) {
        // SAFETY: the caller's promise.
        self.bind_keys.0 = unsafe { (*mw).rkey };
        if !info.mr.is_null() {
            // SAFETY: the caller's promise.
            self.bind_keys.1 = unsafe { (*info.mr).lkey };
        }
        self.bind = Some((mw.addr(), rkey, Bind::from(info)));
    }

    fn wc_opcode(&self) -> ffi::ibv_wc_opcode {
        use ffi::{ibv_wc_opcode as done, ibv_wr_opcode as opcodes};
        match self.opcode {
            opcodes::IBV_WR_RDMA_WRITE | opcodes::IBV_WR_RDMA_WRITE_WITH_IMM => {
                done::IBV_WC_RDMA_WRITE
            }
            opcodes::IBV_WR_RDMA_READ => done::IBV_WC_RDMA_READ,
            opcodes::IBV_WR_ATOMIC_CMP_AND_SWP => done::IBV_WC_COMP_SWAP,
            opcodes::IBV_WR_ATOMIC_FETCH_AND_ADD => done::IBV_WC_FETCH_ADD,
            opcodes::IBV_WR_LOCAL_INV => done::IBV_WC_LOCAL_INV,
            opcodes::IBV_WR_BIND_MW => done::IBV_WC_BIND_MW,
            opcodes::IBV_WR_TSO => done::IBV_WC_TSO,
            opcodes::IBV_WR_ATOMIC_WRITE => done::IBV_WC_ATOMIC_WRITE,
            opcodes::IBV_WR_FLUSH => done::IBV_WC_FLUSH,
            _ => done::IBV_WC_SEND,
        }
    }
}

impl PostedReceive {
    /// # Safety
    /// - `wr` is a request with `num_sge` elements in its list.
    unsafe fn read(wr: &ffi::ibv_recv_wr) -> Self {
        Self {
            wr_id: wr.wr_id,
            // SAFETY: the caller's promise.
            sges: unsafe { elements(wr.sg_list, wr.num_sge) }.to_vec(),
        }
    }
}

impl State {
    /// Takes a request, or returns the error of posting.
    pub(super) fn take_send(&mut self, qp: usize, mut posted: PostedSend) -> c_int {
        self.used("ibv_post_send", qp);
        if let Err(errno) = self.attempt(Call::PostSend) {
            return errno;
        }
        posted.device = Weak::clone(&self.device);
        posted.number = self.next_posted();
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
        if let Err(errno) = self.attempt(Call::PostRecv) {
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

    /// The bytes of a request in flight, of its elements at the time of posting.
    pub(super) fn bytes_of(&self, send: &PostedSend) -> Vec<u8> {
        let is_own = Weak::ptr_eq(&send.device, &self.device);
        let mut sends = self.qps.values().flat_map(|qp| &qp.sends);
        let found = sends.find(|posted| is_own && posted.number == send.number);
        let found = found.unwrap_or_else(|| {
            panic!(
                "the request {:#x} is not in flight on this device: its memory is the program's",
                send.wr_id
            )
        });
        self.collect(&found.sges)
    }

    pub(super) fn complete_send(&mut self, qp_num: u32, index: usize, status: u32) {
        let is_ordered = self.is_ordered();
        let this = self.qp_by_number(qp_num);
        assert!(
            index == 0 || !is_ordered,
            "request {index} overtakes earlier ones: only over iWARP"
        );
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

    /// The address of a queue pair.
    fn owner(&self, qp_num: u32) -> usize {
        let found = self.qps.iter().find(|(_, qp)| qp.number == qp_num);
        let found = found.unwrap_or_else(|| panic!("there is no queue pair {qp_num:#x}"));
        *found.0
    }

    /// Writes a message to the oldest receive, which stays in flight. Returns its completion.
    pub(super) fn fill_receive(&mut self, qp_num: u32, message: &[u8]) -> ffi::ibv_wc {
        let owner = self.owner(qp_num);
        let posted = match self.qp_mut(owner).srq {
            0 => self.qp_mut(owner).receives.front(),
            srq => self.srq_mut(srq).receives.front(),
        };
        let posted = posted.unwrap().clone();
        let mut wc = super::wc(posted.wr_id, ffi::ibv_wc_opcode::IBV_WC_RECV);
        wc.qp_num = qp_num;
        wc.byte_len = message.len() as u32;
        wc.status = self.deliver(&posted.sges, message);
        wc
    }

    /// Completes the oldest receive, filled by [`fill_receive`](Self::fill_receive) with a message, by a completion that the
    /// test may have changed since.
    pub(super) fn complete_receive(
        &mut self,
        qp_num: u32,
        (filled, message): (u64, &[u8]),
        wc: ffi::ibv_wc,
    ) {
        let owner = self.owner(qp_num);
        let this = self.qp_mut(owner);
        let (cq, srq) = (this.recv_cq, this.srq);
        let posted = match srq {
            0 => this.receives.pop_front().unwrap(),
            srq => self.take_from_srq(srq),
        };
        assert_eq!(
            posted.wr_id, filled,
            "the receive has been completed within the closure of `complete_receive_with`"
        );
        self.deliver_to(owner, cq, &posted, message);
        let receive = ffi::ibv_qp_attach_comp_cntr_op::IBV_QP_ATTACH_COMP_CNTR_OP_RECV;
        let failed = wc.status != ffi::ibv_wc_status::IBV_WC_SUCCESS;
        self.count(qp_num, receive.0, wc.byte_len.into(), failed);
        self.push(cq, wc, Extra::default());
    }

    /// Takes the request with this identifier out of flight, and with guaranteed order also those
    /// before.
    pub(super) fn end_request(&mut self, wr_id: u64) {
        let ordered = self.is_ordered();
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

/// The vendor ID of Soft-iWARP.
const SOFT_IWARP: u32 = 0x62_6d74;

/// Rings the doorbell for posted requests.
///
/// # Safety
/// - `bad` is the caller's place.
pub(super) unsafe fn ring<W>(state: &mut State, bad: *mut *mut W) -> c_int {
    if let Err(errno) = state.attempt(Call::Doorbell) {
        // SAFETY: the caller's promise.
        unsafe { *bad = ptr::null_mut() };
        return errno;
    }
    state.attempt(Call::SilentDoorbell).err().unwrap_or(0)
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ffi::ibv_qp,
    mut wr: *mut ffi::ibv_send_wr,
    bad: *mut *mut ffi::ibv_send_wr,
) -> c_int {
    // SAFETY: live.
    let kind = unsafe { (*qp).qp_type };
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(qp) };
    state.doorbells += 1;
    if state.qps[&qp.addr()].building.is_some() {
        state.complain("`ibv_post_send` waits for the lock of an open batch".to_owned());
    }
    let first = wr;
    while !wr.is_null() {
        // SAFETY: a request of the caller's chain.
        let this = unsafe { &*wr };
        // SAFETY: as above.
        let posted = unsafe { decode(this, kind) };
        let ret = state.take_send(qp.addr(), posted);
        if ret != 0 {
            // SAFETY: the caller's place.
            unsafe { *bad = wr };
            // As `siw_post_send`: after a posted request, the result of the doorbell replaces the error.
            let replaced = wr != first && state.properties.attr.orig_attr.vendor_id == SOFT_IWARP;
            return if replaced { 0 } else { ret };
        }
        wr = this.next;
    }
    // SAFETY: the caller's place.
    unsafe { ring(&mut state, bad) }
}

/// Takes the receives of a chain up to the first refused one, which is named in `bad`, and rings the doorbell.
///
/// # Safety
/// - `wr` is null or a chain of requests with `num_sge` elements in their lists, and `bad` the caller's place.
pub(super) unsafe fn post_receives(
    state: &mut State,
    mut wr: *mut ffi::ibv_recv_wr,
    bad: *mut *mut ffi::ibv_recv_wr,
    take: impl Fn(&mut State, PostedReceive) -> c_int,
) -> c_int {
    while !wr.is_null() {
        // SAFETY: a request of the caller's chain.
        let this = unsafe { &*wr };
        // SAFETY: as above.
        let posted = unsafe { PostedReceive::read(this) };
        let ret = take(state, posted);
        if ret != 0 {
            // SAFETY: the caller's place.
            unsafe { *bad = wr };
            return ret;
        }
        wr = this.next;
    }
    // SAFETY: the caller's place.
    unsafe { ring(state, bad) }
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ffi::ibv_qp,
    wr: *mut ffi::ibv_recv_wr,
    bad: *mut *mut ffi::ibv_recv_wr,
) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(qp) };
    state.doorbells += 1;
    let take = |state: &mut State, posted| state.take_receive(qp.addr(), posted);
    // SAFETY: the caller's chain and place.
    unsafe { post_receives(&mut state, wr, bad, take) }
}
