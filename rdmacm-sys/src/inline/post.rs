//! Posting work requests to the identifier's queues.
//!
//! Common safety requirement: until completion, the request's memory stays valid, and the program permits the accesses
//! of the operation.

use super::rdma_seterrno;
use crate::{RDMA_UDP_QKEY, rdma_cm_id};
use core::ffi::{c_int, c_void};
use core::ptr;
use ibverbs_sys::{
    ibv_ah, ibv_mr, ibv_post_recv, ibv_post_send, ibv_post_srq_recv, ibv_recv_wr, ibv_send_wr,
    ibv_sge, ibv_wr_opcode,
};

/// `rdma_post_recvv(id, context, sgl, nsge)`—Posts a receive into several buffers.
///
/// # Safety
///
/// `id` has a queue pair or shared receive queue, and `sgl` has `nsge` elements.
#[inline]
pub unsafe fn rdma_post_recvv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
) -> c_int {
    let mut wr = ibv_recv_wr {
        wr_id: context.expose_provenance() as u64,
        next: ptr::null_mut(),
        sg_list: sgl,
        num_sge: nsge,
    };
    let mut bad = ptr::null_mut();
    // SAFETY: as the caller promised; the request is copied before this returns.
    rdma_seterrno(unsafe {
        if (*id).srq.is_null() {
            ibv_post_recv((*id).qp, &raw mut wr, &raw mut bad)
        } else {
            ibv_post_srq_recv((*id).srq, &raw mut wr, &raw mut bad)
        }
    })
}

/// A send request without the fields specific to an operation.
#[expect(clippy::cast_sign_loss, reason = "the same bits, as in C")]
fn send_wr(
    opcode: ibv_wr_opcode,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
) -> ibv_send_wr {
    let mut wr = ibv_send_wr::zeroed();
    wr.wr_id = context.expose_provenance() as u64;
    wr.sg_list = sgl;
    wr.num_sge = nsge;
    wr.opcode = opcode;
    wr.send_flags = flags as u32;
    wr
}

/// # Safety
///
/// `id` has a queue pair, and `wr` is valid for it.
#[inline]
unsafe fn post_send(id: *mut rdma_cm_id, mut wr: ibv_send_wr) -> c_int {
    let mut bad = ptr::null_mut();
    // SAFETY: as the caller promised; the request is copied before this returns.
    rdma_seterrno(unsafe { ibv_post_send((*id).qp, &raw mut wr, &raw mut bad) })
}

/// `rdma_post_sendv(id, context, sgl, nsge, flags)`—Posts a send from several buffers.
///
/// # Safety
///
/// `id` has a queue pair, and `sgl` has `nsge` elements.
#[inline]
pub unsafe fn rdma_post_sendv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
) -> c_int {
    let wr = send_wr(ibv_wr_opcode::IBV_WR_SEND, context, sgl, nsge, flags);
    // SAFETY: as the caller promised.
    unsafe { post_send(id, wr) }
}

/// `rdma_post_readv(id, context, sgl, nsge, flags, remote_addr, rkey)`—Posts an RDMA read into several local
/// buffers.
///
/// # Safety
///
/// `id` has a queue pair, and `sgl` has `nsge` elements.
#[inline]
pub unsafe fn rdma_post_readv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    let mut wr = send_wr(ibv_wr_opcode::IBV_WR_RDMA_READ, context, sgl, nsge, flags);
    wr.wr.rdma.remote_addr = remote_addr;
    wr.wr.rdma.rkey = rkey;
    // SAFETY: as the caller promised.
    unsafe { post_send(id, wr) }
}

/// `rdma_post_writev(id, context, sgl, nsge, flags, remote_addr, rkey)`—Posts an RDMA write from several local
/// buffers.
///
/// # Safety
///
/// `id` has a queue pair, and `sgl` has `nsge` elements.
#[inline]
pub unsafe fn rdma_post_writev(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    let mut wr = send_wr(ibv_wr_opcode::IBV_WR_RDMA_WRITE, context, sgl, nsge, flags);
    wr.wr.rdma.remote_addr = remote_addr;
    wr.wr.rdma.rkey = rkey;
    // SAFETY: as the caller promised.
    unsafe { post_send(id, wr) }
}

/// The only scatter/gather element of a request.
///
/// # Safety
///
/// `mr` is live or NULL.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "as in C")]
unsafe fn sge(addr: *mut c_void, length: usize, mr: *mut ibv_mr) -> ibv_sge {
    let lkey = match mr.is_null() {
        true => 0,
        // SAFETY: not NULL, so live, as the caller promised.
        false => unsafe { (*mr).lkey },
    };
    ibv_sge {
        addr: addr.expose_provenance() as u64,
        length: length as u32,
        lkey,
    }
}

/// `rdma_post_recv(id, context, addr, length, mr)`—Posts a receive.
///
/// # Safety
///
/// `id` has a queue pair or shared receive queue, and `mr` is live.
#[inline]
pub unsafe fn rdma_post_recv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
) -> c_int {
    // SAFETY: as the caller promised.
    unsafe {
        debug_assert!(addr >= (*mr).addr, "the memory begins in the region");
        debug_assert!(
            addr.addr() + length <= (*mr).addr.addr() + (*mr).length,
            "the memory ends in the region"
        );
        let mut sge = sge(addr, length, mr);
        rdma_post_recvv(id, context, &raw mut sge, 1)
    }
}

/// `rdma_post_send(id, context, addr, length, mr, flags)`—Posts a send; `mr` is NULL for inline data.
///
/// # Safety
///
/// `id` has a queue pair, and `mr` is live or NULL.
#[inline]
pub unsafe fn rdma_post_send(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
) -> c_int {
    // SAFETY: as the caller promised.
    unsafe {
        let mut sge = sge(addr, length, mr);
        rdma_post_sendv(id, context, &raw mut sge, 1, flags)
    }
}

/// `rdma_post_read(id, context, addr, length, mr, flags, remote_addr, rkey)`—Posts an RDMA read.
///
/// # Safety
///
/// `id` has a queue pair, and `mr` is live.
#[inline]
#[expect(clippy::too_many_arguments, reason = "as in C")]
pub unsafe fn rdma_post_read(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: as the caller promised.
    unsafe {
        let mut sge = sge(addr, length, mr);
        rdma_post_readv(id, context, &raw mut sge, 1, flags, remote_addr, rkey)
    }
}

/// `rdma_post_write(id, context, addr, length, mr, flags, remote_addr, rkey)`—Posts an RDMA write; `mr` is NULL for
/// inline data.
///
/// # Safety
///
/// `id` has a queue pair, and `mr` is live or NULL.
#[inline]
#[expect(clippy::too_many_arguments, reason = "as in C")]
pub unsafe fn rdma_post_write(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: as the caller promised.
    unsafe {
        let mut sge = sge(addr, length, mr);
        rdma_post_writev(id, context, &raw mut sge, 1, flags, remote_addr, rkey)
    }
}

/// `rdma_post_ud_send(id, context, addr, length, mr, flags, ah, remote_qpn)`—Posts a UD send; `mr` is NULL for inline
/// data.
///
/// # Safety
///
/// `id` has a queue pair, `ah` is live, and `mr` is live or NULL.
#[inline]
#[expect(clippy::too_many_arguments, reason = "as in C")]
pub unsafe fn rdma_post_ud_send(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
    ah: *mut ibv_ah,
    remote_qpn: u32,
) -> c_int {
    // SAFETY: as the caller promised.
    unsafe {
        let mut sge = sge(addr, length, mr);
        let mut wr = send_wr(ibv_wr_opcode::IBV_WR_SEND, context, &raw mut sge, 1, flags);
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = remote_qpn;
        wr.wr.ud.remote_qkey = RDMA_UDP_QKEY;
        post_send(id, wr)
    }
}
