//! Posting requests.

use std::{ffi::c_int, ptr, slice};

use ibverbs_sys as ffi;

use super::{ah::Ah, errno, mw, object::Object, qp::Qp};
use crate::engine::{Destination, Payload, RecvRequest, Remote, SendOp, SendRequest, Sge};

/// Posts a request, and returns 0 or an errno.
pub(super) fn post(qp: &Qp, request: SendRequest) -> c_int {
    let posted = qp
        .device
        .port
        .call(|nic| nic.engine.post_send(qp.num, request, nic.now, nic.memory));
    posted.map_or_else(errno, |()| 0)
}

/// Posts requests, all or none, and returns 0 or an errno.
pub(super) fn post_all(qp: &Qp, requests: Vec<SendRequest>) -> c_int {
    let posted = qp
        .device
        .port
        .call(|nic| nic.engine.post_sends(qp.num, requests, nic.now, nic.memory));
    posted.map_or_else(errno, |()| 0)
}

/// The elements of a scatter/gather list.
///
/// # Safety
/// - `list` points to `count` elements.
pub(super) unsafe fn elements<'a>(list: *const ffi::ibv_sge, count: c_int) -> &'a [ffi::ibv_sge] {
    match usize::try_from(count) {
        // SAFETY: the caller's promise.
        Ok(count) if count > 0 => unsafe { slice::from_raw_parts(list, count) },
        _ => &[],
    }
}

pub(super) fn sges(list: &[ffi::ibv_sge]) -> Vec<Sge> {
    let sge = |sge: &ffi::ibv_sge| Sge {
        addr: sge.addr,
        len: sge.length,
        lkey: sge.lkey,
    };
    list.iter().map(sge).collect()
}

/// Copies the bytes of a list.
///
/// # Safety
/// - The elements are readable memory during the call.
unsafe fn inline(list: &[ffi::ibv_sge]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for sge in list.iter().filter(|sge| sge.length > 0) {
        let start = ptr::with_exposed_provenance(usize::try_from(sge.addr).unwrap_or(0));
        // SAFETY: the caller's promise.
        bytes.extend_from_slice(unsafe { slice::from_raw_parts(start, sge.length as usize) });
    }
    bytes
}

/// Converts the operation of a request; `None` if unsupported by the engine.
///
/// # Safety
/// - The fields of the request's opcode are initialised.
unsafe fn operation(wr: &ffi::ibv_send_wr) -> Option<SendOp> {
    use ffi::ibv_wr_opcode as asked;
    let imm = || {
        // SAFETY: a field of opcodes with immediate data (the caller's promise).
        unsafe { wr.__bindgen_anon_1.imm_data }.to_ne()
    };
    let invalidated = || {
        // SAFETY: a field of opcodes that invalidate (the caller's promise).
        unsafe { wr.__bindgen_anon_1.invalidate_rkey }
    };
    let rdma = || {
        // SAFETY: a field of RDMA opcodes (the caller's promise).
        let rdma = unsafe { wr.wr.rdma };
        Remote {
            addr: rdma.remote_addr,
            rkey: rdma.rkey,
        }
    };
    Some(match wr.opcode {
        asked::IBV_WR_SEND => SendOp::Send {
            imm: None,
            invalidate: None,
        },
        asked::IBV_WR_SEND_WITH_IMM => SendOp::Send {
            imm: Some(imm()),
            invalidate: None,
        },
        asked::IBV_WR_SEND_WITH_INV => SendOp::Send {
            imm: None,
            invalidate: Some(invalidated()),
        },
        asked::IBV_WR_RDMA_WRITE => SendOp::Write {
            remote: rdma(),
            imm: None,
        },
        asked::IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::Write {
            remote: rdma(),
            imm: Some(imm()),
        },
        asked::IBV_WR_RDMA_READ => SendOp::Read(rdma()),
        // SAFETY: the fields of this opcode (the caller's promise).
        asked::IBV_WR_ATOMIC_CMP_AND_SWP => unsafe { compare_swap(wr) },
        // SAFETY: the fields of this opcode (the caller's promise).
        asked::IBV_WR_ATOMIC_FETCH_AND_ADD => unsafe { fetch_add(wr) },
        asked::IBV_WR_LOCAL_INV => SendOp::LocalInvalidate(invalidated()),
        // SAFETY: the fields of this opcode (the caller's promise).
        asked::IBV_WR_BIND_MW => unsafe { bind(wr) },
        _ => return None,
    })
}

/// # Safety
/// - The fields of an atomic operation are initialised.
unsafe fn number(wr: &ffi::ibv_send_wr) -> Remote {
    // SAFETY: the caller's promise.
    let addr = unsafe { wr.wr.atomic.remote_addr };
    // SAFETY: the caller's promise.
    let rkey = unsafe { wr.wr.atomic.rkey };
    Remote { addr, rkey }
}

/// # Safety
/// - The fields of a comparison and exchange are initialised.
unsafe fn compare_swap(wr: &ffi::ibv_send_wr) -> SendOp {
    SendOp::CompareSwap {
        // SAFETY: the caller's promise.
        remote: unsafe { number(wr) },
        // SAFETY: the caller's promise.
        compare: unsafe { wr.wr.atomic.compare_add },
        // SAFETY: the caller's promise.
        swap: unsafe { wr.wr.atomic.swap },
    }
}

/// # Safety
/// - The fields of an addition are initialised.
unsafe fn fetch_add(wr: &ffi::ibv_send_wr) -> SendOp {
    SendOp::FetchAdd {
        // SAFETY: the caller's promise.
        remote: unsafe { number(wr) },
        // SAFETY: the caller's promise.
        add: unsafe { wr.wr.atomic.compare_add },
    }
}

/// # Safety
/// - The fields of a binding are initialised, and its window and region live.
unsafe fn bind(wr: &ffi::ibv_send_wr) -> SendOp {
    // SAFETY: the caller's promise.
    let bind = unsafe { wr.__bindgen_anon_2.bind_mw };
    SendOp::Bind {
        // SAFETY: the caller's window is live.
        rkey: unsafe { (*bind.mw).rkey },
        new_rkey: bind.rkey,
        // SAFETY: the caller's region is live.
        binding: unsafe { mw::binding(&bind.bind_info) },
    }
}

/// Converts a send request; `None` if the operation is unsupported by the engine.
///
/// # Safety
/// - `wr` is a request to this queue pair, with all fields of its opcode initialised.
unsafe fn request(qp: &Qp, wr: &ffi::ibv_send_wr) -> Option<SendRequest> {
    use ffi::ibv_send_flags as flags;
    // SAFETY: the caller's promise.
    let op = unsafe { operation(wr) }?;
    let has = |flag: flags| wr.send_flags & flag.0 != 0;
    let list = match op {
        SendOp::LocalInvalidate(_) | SendOp::Bind { .. } => &[],
        // SAFETY: the caller's promise.
        _ => unsafe { elements(wr.sg_list, wr.num_sge) },
    };
    let payload = if has(flags::IBV_SEND_INLINE) {
        // SAFETY: the memory of an inline request is readable during the call.
        Payload::Inline(unsafe { inline(list) })
    } else {
        Payload::Sges(sges(list))
    };
    let destination = if qp.is_datagram() {
        // SAFETY: a field of every request to a UD queue pair.
        let ud = unsafe { wr.wr.ud };
        // SAFETY: the caller's address handle is live.
        let ah = unsafe { Ah::borrow(ud.ah) };
        Some(Destination {
            path: ah.path,
            qp: ud.remote_qpn,
            qkey: ud.remote_qkey,
        })
    } else {
        None
    };
    let xrc_srq = if qp.is_xrc_sender() {
        // SAFETY: a field of every request to an XRC queue pair.
        Some(unsafe { wr.qp_type.xrc.remote_srqn })
    } else {
        None
    };
    Some(SendRequest {
        wr_id: wr.wr_id,
        op,
        payload,
        destination,
        xrc_srq,
        signaled: has(flags::IBV_SEND_SIGNALED),
        solicited: has(flags::IBV_SEND_SOLICITED),
        fence: has(flags::IBV_SEND_FENCE),
    })
}

pub(super) unsafe extern "C" fn post_send(
    raw: *mut ffi::ibv_qp,
    mut wr: *mut ffi::ibv_send_wr,
    bad: *mut *mut ffi::ibv_send_wr,
) -> c_int {
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::borrow(raw) };
    while !wr.is_null() {
        // SAFETY: a request of the caller's chain.
        let this = unsafe { &*wr };
        // SAFETY: as above.
        let ret = match unsafe { request(qp, this) } {
            Some(request) => post(qp, request),
            None => libc::EOPNOTSUPP,
        };
        if ret != 0 {
            // SAFETY: the caller's place.
            unsafe { *bad = wr };
            return ret;
        }
        wr = this.next;
    }
    0
}

/// Converts a receive request.
///
/// # Safety
/// - The list has `num_sge` elements.
pub(super) unsafe fn recv_request(wr: &ffi::ibv_recv_wr) -> RecvRequest {
    RecvRequest {
        wr_id: wr.wr_id,
        // SAFETY: the caller's promise.
        sges: sges(unsafe { elements(wr.sg_list, wr.num_sge) }),
    }
}

pub(super) unsafe extern "C" fn post_recv(
    raw: *mut ffi::ibv_qp,
    mut wr: *mut ffi::ibv_recv_wr,
    bad: *mut *mut ffi::ibv_recv_wr,
) -> c_int {
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::borrow(raw) };
    while !wr.is_null() {
        // SAFETY: a request of the caller's chain.
        let this = unsafe { &*wr };
        // SAFETY: as above.
        let request = unsafe { recv_request(this) };
        let posted = qp
            .device
            .port
            .call(|nic| nic.engine.post_recv(qp.num, request, nic.now, nic.memory));
        if let Err(error) = posted {
            // SAFETY: the caller's place.
            unsafe { *bad = wr };
            return errno(error);
        }
        wr = this.next;
    }
    0
}
