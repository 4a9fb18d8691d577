//! Posting requests.

use std::{ffi::c_int, mem, ptr, slice};

use ibverbs_sys as ffi;

use super::{ah::Ah, errno, object::Object, qp::Qp, scripted::PostedSend};
use crate::{
    card::Card,
    check::{CallSite, Checker},
    engine::{
        Access, Binding, Destination, Payload, Placement, RecvRequest, Remote, SendOp, SendRequest,
        Sge,
    },
    failure::Call,
};

fn post_one(qp: &Qp, request: SendRequest) -> c_int {
    let port = &qp.device.port;
    if let Some(checker) = port.checker() {
        return post_checked(qp, vec![request], checker);
    }
    let posted = port.call(|nic, now| nic.engine.post_send(qp.num, request, now, nic.memory));
    posted.map_or_else(errno, |()| 0)
}

/// Posts requests, all or none, with checks.
fn post_checked(qp: &Qp, requests: Vec<SendRequest>, checker: &Checker) -> c_int {
    let site = CallSite::here();
    let port = &qp.device.port;
    let id = port.host_qp(qp.num);
    let posted = port.call(|nic, now| {
        // Described with the device locked, so that the device has not read the memory yet.
        let describe = |request: &SendRequest| checker.describe_send(id, request, site.clone());
        let described: Vec<_> = requests.iter().map(describe).collect();
        let copies = requests.clone();
        let posted = nic.engine.post_sends(qp.num, requests, now, nic.memory);
        match posted {
            Ok(()) => described
                .into_iter()
                .for_each(|request| checker.sent(id, request)),
            Err(_) => copies
                .iter()
                .for_each(|request| checker.refused(id, request, &site)),
        }
        posted
    });
    posted.map_or_else(errno, |()| 0)
}

/// Posts a request behind those whose doorbell has failed, and returns 0 or an errno.
pub(super) fn post(qp: &Qp, request: SendRequest) -> c_int {
    let mut unheard = qp.unheard();
    if unheard.is_empty() {
        return post_one(qp, request);
    }
    unheard.push(request);
    post_all(qp, mem::take(&mut *unheard))
}

/// Posts requests, all or none, and returns 0 or an errno.
pub(super) fn post_all(qp: &Qp, requests: Vec<SendRequest>) -> c_int {
    let port = &qp.device.port;
    if let Some(checker) = port.checker() {
        return post_checked(qp, requests, checker);
    }
    let posted = port.call(|nic, now| nic.engine.post_sends(qp.num, requests, now, nic.memory));
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

fn sges(list: Vec<ffi::ibv_sge>) -> Vec<Sge> {
    let sge = |sge: ffi::ibv_sge| Sge {
        addr: sge.addr,
        len: sge.length,
        lkey: sge.lkey,
    };
    list.into_iter().map(sge).collect()
}

/// Copies the bytes of a list.
///
/// # Safety
/// - The elements are readable memory during the call.
pub(super) unsafe fn inline(list: &[ffi::ibv_sge]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for sge in list.iter().filter(|sge| sge.length > 0) {
        let start = ptr::with_exposed_provenance(usize::try_from(sge.addr).unwrap_or(0));
        // SAFETY: the caller's promise.
        bytes.extend_from_slice(unsafe { slice::from_raw_parts(start, sge.length as usize) });
    }
    bytes
}

/// Decodes a send request.
///
/// # Safety
/// - `wr` is a request of a queue pair of this kind, with the fields of its opcode.
pub(super) unsafe fn decode(wr: &ffi::ibv_send_wr, kind: ffi::ibv_qp_type) -> PostedSend {
    use ffi::ibv_wr_opcode as opcodes;
    // Only the fields of the opcode are read: the others need not be initialised.
    let (opcode, flags) = (wr.opcode, wr.send_flags);
    let mut posted = PostedSend::new(wr.wr_id, opcode, flags);
    if ![opcodes::IBV_WR_LOCAL_INV, opcodes::IBV_WR_BIND_MW].contains(&opcode) {
        // SAFETY: the caller's promise.
        posted.sges = unsafe { elements(wr.sg_list, wr.num_sge) }.to_vec();
    }
    if flags & ffi::ibv_send_flags::IBV_SEND_INLINE.0 != 0 {
        // SAFETY: the bytes of an inline request are the caller's during the call.
        posted.inline = Some(unsafe { inline(&posted.sges) });
    }
    match opcode {
        opcodes::IBV_WR_SEND_WITH_IMM | opcodes::IBV_WR_RDMA_WRITE_WITH_IMM => {
            // SAFETY: a field of these opcodes.
            let imm_data = unsafe { wr.__bindgen_anon_1.imm_data };
            posted.imm_data = Some(imm_data.to_ne());
        }
        opcodes::IBV_WR_SEND_WITH_INV | opcodes::IBV_WR_LOCAL_INV => {
            // SAFETY: a field of these opcodes.
            posted.invalidate_rkey = Some(unsafe { wr.__bindgen_anon_1.invalidate_rkey });
        }
        opcodes::IBV_WR_BIND_MW => {
            // SAFETY: a field of this opcode.
            let bind = unsafe { wr.__bindgen_anon_2.bind_mw };
            // SAFETY: the caller's window and region are live.
            unsafe { posted.set_bind(bind.mw, bind.rkey, &bind.bind_info) };
        }
        opcodes::IBV_WR_TSO => {
            // SAFETY: a field of this opcode.
            let tso = unsafe { wr.__bindgen_anon_2.tso };
            // SAFETY: the header is the caller's during the call.
            let header = unsafe { slice::from_raw_parts(tso.hdr.cast::<u8>(), tso.hdr_sz.into()) };
            posted.tso = Some((header.to_vec(), tso.mss));
        }
        _ => {}
    }
    match opcode {
        opcodes::IBV_WR_RDMA_WRITE
        | opcodes::IBV_WR_RDMA_WRITE_WITH_IMM
        | opcodes::IBV_WR_RDMA_READ => {
            // SAFETY: fields of these opcodes.
            let rdma = unsafe { wr.wr.rdma };
            posted.remote = Some((rdma.remote_addr, rdma.rkey));
        }
        opcodes::IBV_WR_ATOMIC_CMP_AND_SWP | opcodes::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            // SAFETY: a field of these opcodes.
            let addr = unsafe { wr.wr.atomic.remote_addr };
            // SAFETY: a field of these opcodes.
            let rkey = unsafe { wr.wr.atomic.rkey };
            posted.remote = Some((addr, rkey));
            // SAFETY: a field of these opcodes.
            posted.compare_add = Some(unsafe { wr.wr.atomic.compare_add });
            if opcode == opcodes::IBV_WR_ATOMIC_CMP_AND_SWP {
                // SAFETY: a field of this opcode.
                posted.swap = Some(unsafe { wr.wr.atomic.swap });
            }
        }
        _ if [
            ffi::ibv_qp_type::IBV_QPT_UD,
            ffi::ibv_qp_type::IBV_QPT_DRIVER,
        ]
        .contains(&kind) =>
        {
            // SAFETY: fields of every request of this kind of queue pair.
            let ud = unsafe { wr.wr.ud };
            let to = (ud.ah.expose_provenance(), ud.remote_qpn);
            posted.datagram = Some((to.0, to.1, ud.remote_qkey.into()));
        }
        _ => {}
    }
    if kind == ffi::ibv_qp_type::IBV_QPT_XRC_SEND {
        // SAFETY: a field of every request of this kind of queue pair.
        posted.remote_srqn = Some(unsafe { wr.qp_type.xrc.remote_srqn });
    }
    posted
}

/// The engine's operation of a request, or an errno.
fn operation(posted: &PostedSend) -> Result<SendOp, c_int> {
    use ffi::ibv_wr_opcode as opcodes;
    let (addr, rkey) = posted.remote.unwrap_or_default();
    let remote = Remote { addr, rkey };
    Ok(match posted.opcode {
        opcodes::IBV_WR_SEND | opcodes::IBV_WR_SEND_WITH_IMM | opcodes::IBV_WR_SEND_WITH_INV => {
            SendOp::Send {
                imm: posted.imm_data,
                invalidate: posted.invalidate_rkey,
            }
        }
        opcodes::IBV_WR_RDMA_WRITE | opcodes::IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::Write {
            remote,
            imm: posted.imm_data,
        },
        opcodes::IBV_WR_RDMA_READ => SendOp::Read(remote),
        opcodes::IBV_WR_ATOMIC_CMP_AND_SWP => SendOp::CompareSwap {
            remote,
            compare: posted.compare_add.unwrap_or(0),
            swap: posted.swap.unwrap_or(0),
        },
        opcodes::IBV_WR_ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd {
            remote,
            add: posted.compare_add.unwrap_or(0),
        },
        opcodes::IBV_WR_LOCAL_INV => SendOp::LocalInvalidate(posted.invalidate_rkey.unwrap_or(0)),
        opcodes::IBV_WR_BIND_MW => bind(posted).ok_or(libc::EINVAL)?,
        // Only extended requests have the value and the range.
        opcodes::IBV_WR_ATOMIC_WRITE => SendOp::AtomicWrite {
            remote,
            value: posted.atomic_write.ok_or(libc::EOPNOTSUPP)?,
        },
        opcodes::IBV_WR_FLUSH => flush(remote, posted.flush.ok_or(libc::EOPNOTSUPP)?)?,
        _ => return Err(libc::EOPNOTSUPP),
    })
}

fn bind(posted: &PostedSend) -> Option<SendOp> {
    let (_, new_rkey, bind) = posted.bind?;
    let (rkey, region) = posted.bind_keys;
    Some(SendOp::Bind {
        rkey,
        new_rkey,
        binding: Binding {
            region,
            addr: bind.addr,
            len: if bind.mr == 0 { 0 } else { bind.length },
            access: Access(bind.access),
        },
    })
}

fn flush(remote: Remote, (len, placement, level): (usize, u8, u8)) -> Result<SendOp, c_int> {
    let range = ffi::ibv_selectivity_level::IBV_FLUSH_RANGE.0;
    let region = ffi::ibv_selectivity_level::IBV_FLUSH_MR.0;
    if ![range, region].contains(&level.into()) {
        return Err(libc::EINVAL);
    }
    Ok(SendOp::Flush {
        remote,
        len: u32::try_from(len).map_err(|_| libc::EINVAL)?,
        placement: Placement(placement),
        whole_region: u32::from(level) == region,
    })
}

/// Converts a request for the engine, or returns an errno.
///
/// # Safety
/// - The address handle of a datagram is live.
pub(super) unsafe fn convert(qp: &Qp, posted: PostedSend) -> Result<SendRequest, c_int> {
    use ffi::ibv_send_flags as flags;
    let op = operation(&posted)?;
    let is_atomic = matches!(op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
    if is_atomic && !qp.device.port.card().is_none_or(Card::has_atomics) {
        return Err(libc::EINVAL);
    }
    // As libefa, whose descriptor of an RDMA request has one element (`EFA_IO_TX_DESC_NUM_RDMA_BUFS`).
    if qp.is_datagram() && posted.remote.is_some() && posted.sges.len() > 1 {
        return Err(libc::EINVAL);
    }
    let has = |flag: flags| posted.flags & flag.0 != 0;
    let destination = posted.datagram.filter(|_| qp.is_datagram());
    let destination = destination.map(|(ah, qp, key)| {
        // SAFETY: the caller's promise.
        let ah = unsafe { Ah::borrow(ptr::with_exposed_provenance_mut(ah)) };
        let path = ah.path;
        Destination { path, qp, key }
    });
    Ok(SendRequest {
        wr_id: posted.wr_id,
        op,
        destination,
        xrc_srq: posted.remote_srqn,
        signaled: has(flags::IBV_SEND_SIGNALED),
        solicited: has(flags::IBV_SEND_SOLICITED),
        fence: has(flags::IBV_SEND_FENCE),
        payload: match posted.inline {
            Some(bytes) => Payload::Inline(bytes),
            None => Payload::Sges(sges(posted.sges)),
        },
    })
}

/// Shows the new key of a posted binding in the program's window: its index with the low byte of the request.
///
/// # Safety
/// - A request to bind a live window.
unsafe fn show_key(wr: &ffi::ibv_send_wr) {
    const TAG: u32 = 0xff;
    // SAFETY: a field of this opcode.
    let bind = unsafe { wr.__bindgen_anon_2.bind_mw };
    // SAFETY: the caller's window is live, and bound by one thread at a time.
    let key = unsafe { (*bind.mw).rkey };
    // SAFETY: as above.
    unsafe { (*bind.mw).rkey = key & !TAG | bind.rkey & TAG };
}

pub(super) unsafe extern "C" fn post_send(
    raw: *mut ffi::ibv_qp,
    mut wr: *mut ffi::ibv_send_wr,
    bad: *mut *mut ffi::ibv_send_wr,
) -> c_int {
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::borrow(raw) };
    let adversary = qp.device.port.adversary();
    let _in_call = qp.calls.enter(&qp.device.port);
    let _reported: bool = qp.is_called_within("ibv_post_send");
    let doorbell = qp.device.port.attempt(Call::Doorbell);
    let first = wr;
    while !wr.is_null() {
        // SAFETY: a request of the caller's chain.
        let this = unsafe { &*wr };
        // SAFETY: as above.
        let posted = unsafe { decode(this, qp.kind()) };
        // SAFETY: the caller's address handle is live.
        let request = check_count(this.num_sge).and_then(|()| unsafe { convert(qp, posted) });
        let refused = match wr != first && adversary.fails_in_list() {
            true => Err(libc::ENOMEM),
            false => qp.device.port.attempt(Call::PostSend),
        };
        let ret = match refused.and(request) {
            Ok(request) if doorbell.is_ok() => {
                let ret = post(qp, request);
                if ret == 0 && this.opcode == ffi::ibv_wr_opcode::IBV_WR_BIND_MW {
                    // SAFETY: a request to bind a live window.
                    unsafe { show_key(this) };
                }
                ret
            }
            Ok(request) => {
                qp.unheard().push(request);
                0
            }
            Err(errno) => errno,
        };
        if ret != 0 {
            // SAFETY: the caller's place.
            unsafe { *bad = wr };
            return adversary.posting_errno(ret);
        }
        wr = this.next;
    }
    let Err(errno) = doorbell else {
        return 0;
    };
    // SAFETY: the caller's place.
    unsafe { *bad = ptr::null_mut() };
    adversary.posting_errno(errno)
}

/// Refuses a negative number of elements, where the operation has elements.
pub(super) fn check_count(num_sge: c_int) -> Result<(), c_int> {
    if num_sge < 0 {
        Err(libc::EINVAL)
    } else {
        Ok(())
    }
}

/// Converts a receive request.
///
/// # Safety
/// - The list has `num_sge` elements.
pub(super) unsafe fn recv_request(wr: &ffi::ibv_recv_wr) -> RecvRequest {
    RecvRequest {
        wr_id: wr.wr_id,
        // SAFETY: the caller's promise.
        sges: sges(unsafe { elements(wr.sg_list, wr.num_sge) }.to_vec()),
    }
}

/// Posts a receive with checks.
fn recv_checked(qp: &Qp, request: RecvRequest, checker: &Checker) -> Result<(), c_int> {
    let site = CallSite::here();
    let port = &qp.device.port;
    let id = port.host_qp(qp.num);
    let posted = port.call(|nic, now| {
        let described = checker.describe_recv(port.index(), &request, site);
        nic.engine.post_recv(qp.num, request, now, nic.memory)?;
        checker.received(id, described);
        Ok(())
    });
    posted.map_err(errno)
}

pub(super) unsafe extern "C" fn post_recv(
    raw: *mut ffi::ibv_qp,
    mut wr: *mut ffi::ibv_recv_wr,
    bad: *mut *mut ffi::ibv_recv_wr,
) -> c_int {
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::borrow(raw) };
    let _in_call = qp.calls.enter(&qp.device.port);
    let first = wr;
    while !wr.is_null() {
        // SAFETY: a request of the caller's chain.
        let this = unsafe { &*wr };
        // SAFETY: as above.
        let request = unsafe { recv_request(this) };
        let port = &qp.device.port;
        let refused = match wr != first && port.adversary().fails_in_list() {
            true => Err(libc::ENOMEM),
            false => port.attempt(Call::PostRecv),
        };
        let posted = refused.and(check_count(this.num_sge));
        let posted = posted.and_then(|()| match port.checker() {
            Some(checker) => recv_checked(qp, request, checker),
            None => port
                .call(|nic, now| nic.engine.post_recv(qp.num, request, now, nic.memory))
                .map_err(errno),
        });
        if let Err(errno) = posted {
            // SAFETY: the caller's place.
            unsafe { *bad = wr };
            return port.adversary().posting_errno(errno);
        }
        wr = this.next;
    }
    0
}
