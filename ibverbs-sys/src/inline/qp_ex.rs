//! Work requests built by a sequence of calls.
//!
//! From `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort`, only the calling thread may use the send queue. An
//! operation must have been requested at creation of the queue pair, with `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`. Errors are
//! returned by `ibv_wr_complete`.

use super::dispatch;
use crate::{__be32, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};
use core::ffi::{c_int, c_void};
use core::mem::offset_of;

dispatch! {
    /// `ibv_wr_atomic_cmp_swp(qp, rkey, remote_addr, compare, swap)`—Adds an atomic compare and swap.
    pub fn ibv_wr_atomic_cmp_swp(
        qp: *mut ibv_qp_ex,
        rkey: u32,
        remote_addr: u64,
        compare: u64,
        swap: u64,
    )
        => (*qp).wr_atomic_cmp_swp;

    /// `ibv_wr_atomic_fetch_add(qp, rkey, remote_addr, add)`—Adds an atomic fetch and add.
    pub fn ibv_wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64)
        => (*qp).wr_atomic_fetch_add;

    /// `ibv_wr_bind_mw(qp, mw, rkey, bind_info)`—Adds the binding of a type 2 window.
    pub fn ibv_wr_bind_mw(
        qp: *mut ibv_qp_ex,
        mw: *mut ibv_mw,
        rkey: u32,
        bind_info: *const ibv_mw_bind_info,
    )
        => (*qp).wr_bind_mw;

    /// `ibv_wr_local_inv(qp, invalidate_rkey)`—Adds the invalidation of a local key.
    pub fn ibv_wr_local_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) => (*qp).wr_local_inv;

    /// `ibv_wr_rdma_read(qp, rkey, remote_addr)`—Adds an RDMA read.
    pub fn ibv_wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)
        => (*qp).wr_rdma_read;

    /// `ibv_wr_rdma_write(qp, rkey, remote_addr)`—Adds an RDMA write.
    pub fn ibv_wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)
        => (*qp).wr_rdma_write;

    /// `ibv_wr_rdma_write_imm(qp, rkey, remote_addr, imm_data)`—Adds an RDMA write with immediate data.
    pub fn ibv_wr_rdma_write_imm(
        qp: *mut ibv_qp_ex,
        rkey: u32,
        remote_addr: u64,
        imm_data: __be32,
    )
        => (*qp).wr_rdma_write_imm;

    /// `ibv_wr_send(qp)`—Adds a send.
    pub fn ibv_wr_send(qp: *mut ibv_qp_ex) => (*qp).wr_send;

    /// `ibv_wr_send_imm(qp, imm_data)`—Adds a send with immediate data.
    pub fn ibv_wr_send_imm(qp: *mut ibv_qp_ex, imm_data: __be32) => (*qp).wr_send_imm;

    /// `ibv_wr_send_inv(qp, invalidate_rkey)`—Adds a send that invalidates a key of the peer.
    pub fn ibv_wr_send_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) => (*qp).wr_send_inv;

    /// `ibv_wr_send_tso(qp, hdr, hdr_sz, mss)`—Adds a send segmented by the device.
    pub fn ibv_wr_send_tso(qp: *mut ibv_qp_ex, hdr: *mut c_void, hdr_sz: u16, mss: u16)
        => (*qp).wr_send_tso;

    /// `ibv_wr_set_ud_addr(qp, ah, remote_qpn, remote_qkey)`—Sets the destination of a datagram.
    pub fn ibv_wr_set_ud_addr(
        qp: *mut ibv_qp_ex,
        ah: *mut ibv_ah,
        remote_qpn: u32,
        remote_qkey: u32,
    )
        => (*qp).wr_set_ud_addr;

    /// `ibv_wr_set_xrc_srqn(qp, remote_srqn)`—Sets the peer's shared receive queue.
    pub fn ibv_wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) => (*qp).wr_set_xrc_srqn;

    /// `ibv_wr_set_inline_data(qp, addr, length)`—Copies the data into the request.
    pub fn ibv_wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize)
        => (*qp).wr_set_inline_data;

    /// `ibv_wr_set_inline_data_list(qp, num_buf, buf_list)`—Copies several buffers into the request.
    pub fn ibv_wr_set_inline_data_list(
        qp: *mut ibv_qp_ex,
        num_buf: usize,
        buf_list: *const ibv_data_buf,
    )
        => (*qp).wr_set_inline_data_list;

    /// `ibv_wr_set_sge(qp, lkey, addr, length)`—Sets the data buffer.
    pub fn ibv_wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32)
        => (*qp).wr_set_sge;

    /// `ibv_wr_set_sge_list(qp, num_sge, sg_list)`—Sets a list of data buffers.
    pub fn ibv_wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge)
        => (*qp).wr_set_sge_list;

    /// `ibv_wr_start(qp)`—Starts a batch of work requests.
    pub fn ibv_wr_start(qp: *mut ibv_qp_ex) => (*qp).wr_start;

    /// `ibv_wr_complete(qp)`—Posts the batch: all requests or none.
    pub fn ibv_wr_complete(qp: *mut ibv_qp_ex) -> c_int => (*qp).wr_complete;

    /// `ibv_wr_abort(qp)`—Discards the batch.
    pub fn ibv_wr_abort(qp: *mut ibv_qp_ex) => (*qp).wr_abort;

    /// `ibv_wr_atomic_write(qp, rkey, remote_addr, atomic_wr)`—Adds an atomic write of 8 bytes.
    pub fn ibv_wr_atomic_write(
        qp: *mut ibv_qp_ex,
        rkey: u32,
        remote_addr: u64,
        atomic_wr: *const c_void,
    )
        => slot_after_abort::<AtomicWrite>(qp, 1);

    /// `ibv_wr_flush(qp, rkey, remote_addr, len, type, level)`—Adds a flush: earlier writes to the range reach the
    /// peer's memory.
    pub fn ibv_wr_flush(
        qp: *mut ibv_qp_ex,
        rkey: u32,
        remote_addr: u64,
        len: usize,
        placement_type: u8,
        selectivity_level: u8,
    )
        => slot_after_abort::<Flush>(qp, 2);
}

/// Whether a queue pair has [`ibv_wr_atomic_write`], a slot possibly newer than the headers.
///
/// # Safety
///
/// `qp` was created with the operation.
#[inline]
#[must_use]
pub unsafe fn has_wr_atomic_write(qp: *const ibv_qp_ex) -> bool {
    // SAFETY: as the caller promised.
    unsafe { slot_after_abort::<AtomicWrite>(qp, 1) }.is_some()
}

/// Whether a queue pair has [`ibv_wr_flush`], a slot possibly newer than the headers.
///
/// # Safety
///
/// `qp` was created with the operation.
#[inline]
#[must_use]
pub unsafe fn has_wr_flush(qp: *const ibv_qp_ex) -> bool {
    // SAFETY: as the caller promised.
    unsafe { slot_after_abort::<Flush>(qp, 2) }.is_some()
}

/// Type of `ibv_qp_ex::wr_atomic_write`, in the headers since rdma-core 44.
type AtomicWrite = unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void);
/// Type of `ibv_qp_ex::wr_flush`, in the headers since rdma-core 45.
type Flush = unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8);

#[cfg(ibv_atomic_write)]
const _: () = assert!(offset_of!(ibv_qp_ex, wr_atomic_write) == offset_after_abort(1));
#[cfg(ibv_flush)]
const _: () = assert!(offset_of!(ibv_qp_ex, wr_flush) == offset_after_abort(2));

/// Offset of the `n`th slot after `wr_abort`. The table grows at its end.
const fn offset_after_abort(n: usize) -> usize {
    offset_of!(ibv_qp_ex, wr_abort) + n * size_of::<Option<Flush>>()
}

/// Reads a slot possibly newer than the headers. A provider that created the queue pair with the operation has the
/// slot.
///
/// # Safety
///
/// `qp` was created with the operation, which has the type `F`.
#[inline]
unsafe fn slot_after_abort<F: Copy>(qp: *const ibv_qp_ex, n: usize) -> Option<F> {
    // SAFETY: a provider with the operation has a table with the slot.
    unsafe {
        qp.byte_add(offset_after_abort(n))
            .cast::<Option<F>>()
            .read()
    }
}
