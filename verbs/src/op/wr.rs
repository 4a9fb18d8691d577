//! A C send work request, with only the used fields written.

use std::{mem::MaybeUninit, ptr};

use ibverbs_sys as ffi;

use super::Emit;
use crate::{
    ah::AddressHandle,
    bounded::{QpNum, SrqNum},
    mr::RemoteToken,
    wr_id::WrId,
};

/// One `ibv_send_wr`, on its way to the device.
///
/// Most of its 128 bytes belong to other opcodes, and are left unwritten.
#[derive(Debug)]
pub(crate) struct SendWr(MaybeUninit<ffi::ibv_send_wr>);

/// Sets one field.
macro_rules! set {
    ($wr:ident, $($field:ident).+ = $value:expr) => {{
        let value = $value;
        // SAFETY: the field is inside the request, borrowed exclusively. The field is plain data,
        // so the assignment drops no uninitialised value.
        unsafe { (*$wr.0.as_mut_ptr()).$($field).+ = value };
    }};
}

impl SendWr {
    /// An unwritten request. To be written in place: a move would copy all of the bytes.
    #[inline]
    pub(crate) fn unwritten() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// Writes all fields independent of the opcode: the request has `count` elements, at `sges`,
    /// and no successor.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        id: WrId,
        sges: *mut ffi::ibv_sge,
        count: i32,
        flags: ffi::ibv_send_flags,
    ) {
        self.begin_linked(id, sges, count, flags);
        // Last, since the compiler would extend a leading zero to all unwritten bytes.
        self.link(ptr::null_mut());
    }

    /// As [`begin`](Self::begin), for a request with a successor already linked.
    #[inline]
    pub(crate) fn begin_linked(
        &mut self,
        id: WrId,
        sges: *mut ffi::ibv_sge,
        count: i32,
        flags: ffi::ibv_send_flags,
    ) {
        set!(self, wr_id = id.0);
        set!(self, sg_list = sges);
        set!(self, num_sge = count);
        set!(self, send_flags = flags.0);
    }

    #[inline]
    fn opcode(&mut self, opcode: ffi::ibv_wr_opcode) {
        set!(self, opcode = opcode);
    }

    #[inline]
    fn imm_data(&mut self, imm_data: u32) {
        set!(
            self,
            __bindgen_anon_1.imm_data = ffi::__be32::from_ne(imm_data)
        );
    }

    #[inline]
    fn invalidate_rkey(&mut self, rkey: u32) {
        set!(self, __bindgen_anon_1.invalidate_rkey = rkey);
    }

    #[inline]
    fn rdma(&mut self, remote: RemoteToken) {
        set!(self, wr.rdma.remote_addr = remote.addr);
        set!(self, wr.rdma.rkey = remote.rkey);
    }

    #[inline]
    fn atomic(&mut self, remote: RemoteToken, compare_add: u64, swap: u64) {
        set!(self, wr.atomic.remote_addr = remote.addr);
        set!(self, wr.atomic.rkey = remote.rkey);
        set!(self, wr.atomic.compare_add = compare_add);
        set!(self, wr.atomic.swap = swap);
    }

    /// Writes the opcode and its fields, for a request that binds a memory window.
    pub(crate) fn bind_window(
        &mut self,
        mw: *mut ffi::ibv_mw,
        rkey: u32,
        bind_info: ffi::ibv_mw_bind_info,
    ) {
        self.opcode(ffi::ibv_wr_opcode::IBV_WR_BIND_MW);
        // Soft-RoCE insists on there being none.
        self.imm_data(0);
        set!(self, __bindgen_anon_2.bind_mw.mw = mw);
        set!(self, __bindgen_anon_2.bind_mw.rkey = rkey);
        set!(self, __bindgen_anon_2.bind_mw.bind_info = bind_info);
    }

    /// Makes `next` the request after this one.
    #[inline]
    pub(crate) fn link(&mut self, next: *mut ffi::ibv_send_wr) {
        set!(self, next = next);
    }

    #[inline]
    pub(crate) fn as_mut_ptr(&mut self) -> *mut ffi::ibv_send_wr {
        self.0.as_mut_ptr()
    }
}

impl Emit for SendWr {
    #[inline]
    fn send(&mut self) {
        self.opcode(ffi::ibv_wr_opcode::IBV_WR_SEND);
    }

    #[inline]
    fn send_imm(&mut self, imm_data: u32) {
        self.opcode(ffi::ibv_wr_opcode::IBV_WR_SEND_WITH_IMM);
        self.imm_data(imm_data);
    }

    #[inline]
    fn send_inv(&mut self, rkey: u32) {
        self.opcode(ffi::ibv_wr_opcode::IBV_WR_SEND_WITH_INV);
        self.invalidate_rkey(rkey);
    }

    #[inline]
    fn send_tso(&mut self, header: &[u8], mss: u16) {
        self.opcode(ffi::ibv_wr_opcode::IBV_WR_TSO);
        // No longer than the queue pair was made for: a `u16`.
        let len = u16::try_from(header.len()).unwrap_or(u16::MAX);
        set!(
            self,
            __bindgen_anon_2.tso.hdr = header.as_ptr().cast_mut().cast()
        );
        set!(self, __bindgen_anon_2.tso.hdr_sz = len);
        set!(self, __bindgen_anon_2.tso.mss = mss);
    }

    #[inline]
    fn rdma_write(&mut self, remote: RemoteToken) {
        self.opcode(ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE);
        self.rdma(remote);
    }

    #[inline]
    fn rdma_write_imm(&mut self, remote: RemoteToken, imm_data: u32) {
        self.opcode(ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM);
        self.rdma(remote);
        self.imm_data(imm_data);
    }

    #[inline]
    fn rdma_read(&mut self, remote: RemoteToken) {
        self.opcode(ffi::ibv_wr_opcode::IBV_WR_RDMA_READ);
        self.rdma(remote);
    }

    #[inline]
    fn atomic_cmp_swp(&mut self, remote: RemoteToken, compare: u64, swap: u64) {
        self.opcode(ffi::ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP);
        self.atomic(remote, compare, swap);
    }

    #[inline]
    fn atomic_fetch_add(&mut self, remote: RemoteToken, add: u64) {
        self.opcode(ffi::ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD);
        self.atomic(remote, add, 0);
    }

    #[inline]
    fn local_inv(&mut self, rkey: u32) {
        self.opcode(ffi::ibv_wr_opcode::IBV_WR_LOCAL_INV);
        self.invalidate_rkey(rkey);
    }

    #[inline]
    fn ud_addr(&mut self, ah: &AddressHandle, remote_qp: QpNum, qkey: u32) {
        set!(self, wr.ud.ah = ah.as_raw());
        set!(self, wr.ud.remote_qpn = remote_qp.get());
        set!(self, wr.ud.remote_qkey = qkey);
    }

    #[inline]
    fn xrc_srq(&mut self, srq: SrqNum) {
        set!(self, qp_type.xrc.remote_srqn = srq.get());
    }
}
