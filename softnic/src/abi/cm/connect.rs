//! Connecting, accepting, rejecting and disconnecting.

use std::ffi::{c_int, c_void};

use ibverbs_sys::ibv_event_type;
use rdmacm_sys as ffi;

use super::{
    endpoint, failed,
    id::Id,
    outcome,
    qp::{self, Depths},
};
use crate::{
    abi::object::Object,
    cm::{ConnParam, Reject},
    failure::Call,
};

/// The parameters of a call, and its private data.
///
/// # Safety
/// - `param` is null, or points to parameters with `private_data_len` bytes of private data.
unsafe fn read(param: *const ffi::rdma_conn_param) -> (ConnParam, Vec<u8>) {
    if param.is_null() {
        let all = ConnParam {
            responder_resources: ConnParam::DEVICE_MAX,
            initiator_depth: ConnParam::DEVICE_MAX,
            retry_count: 7,
            rnr_retry_count: 7,
            ..ConnParam::default()
        };
        return (all, Vec::new());
    }
    // SAFETY: the caller's parameters.
    let raw = unsafe { &*param };
    let param = ConnParam {
        qp_num: raw.qp_num,
        responder_resources: raw.responder_resources,
        initiator_depth: raw.initiator_depth,
        flow_control: raw.flow_control != 0,
        retry_count: raw.retry_count.min(7),
        rnr_retry_count: raw.rnr_retry_count.min(7),
        srq: raw.srq != 0,
    };
    // SAFETY: the caller's bytes.
    (param, unsafe {
        bytes(raw.private_data, raw.private_data_len)
    })
}

/// A copy of private data.
///
/// # Safety
/// - `data` is null, or points to `len` bytes.
unsafe fn bytes(data: *const c_void, len: u8) -> Vec<u8> {
    if data.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: as the caller promised; the bytes are copied at once.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len.into()) }.to_vec()
}

/// Names the identifier's own queue pair in the parameters, if there is one. Returns whether there is.
///
/// # Safety
/// - `raw` is a live identifier.
unsafe fn name_qp(raw: *mut ffi::rdma_cm_id, param: &mut ConnParam) -> bool {
    // SAFETY: as the caller promised.
    let qp = unsafe { qp::of(raw) };
    if qp.is_null() {
        return false;
    }
    // SAFETY: the queue pair of a live identifier is live; the field does not change.
    param.qp_num = unsafe { (*qp).qp_num };
    // SAFETY: as above.
    param.srq = !unsafe { (*qp).srq }.is_null();
    true
}

/// Whether an identifier is for datagrams.
fn is_datagram(id: &Id) -> bool {
    let space = id.port().look(|nic| nic.manager.port_space(id.num()));
    space.is_some_and(|space| space.kind() == crate::engine::QpKind::Ud)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_connect(
    raw: *mut ffi::rdma_cm_id,
    param: *mut ffi::rdma_conn_param,
) -> c_int {
    // SAFETY: a live identifier.
    let id = unsafe { Id::borrow(raw) };
    if let Err(errno) = id.port().attempt(Call::Connect) {
        return failed(errno);
    }
    // SAFETY: null, or the caller's parameters.
    let (mut param, data) = unsafe { read(param) };
    // SAFETY: a live identifier.
    unsafe { name_qp(raw, &mut param) };
    let is_datagram = is_datagram(id);
    let ret = outcome(id.port().call(|nic, now| {
        if is_datagram {
            nic.manager.resolve_service(id.num(), &data, now)
        } else {
            nic.engine.begin_time_wait(param.qp_num);
            nic.manager.connect(id.num(), param, &data, now)
        }
    }));
    // SAFETY: a live identifier.
    unsafe { endpoint::finish(raw, ret) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_accept(
    raw: *mut ffi::rdma_cm_id,
    param: *mut ffi::rdma_conn_param,
) -> c_int {
    // SAFETY: a live identifier.
    let id = unsafe { Id::borrow(raw) };
    if let Err(errno) = id.port().attempt(Call::Accept) {
        return failed(errno);
    }
    // SAFETY: null, or the caller's parameters.
    let (mut param, data) = unsafe { read(param) };
    // SAFETY: a live identifier.
    let has_qp = unsafe { name_qp(raw, &mut param) };
    let is_datagram = is_datagram(id);
    if has_qp && !is_datagram {
        let requested = |count| (count != ConnParam::DEVICE_MAX).then_some(count);
        let depths = Depths {
            responder_resources: requested(param.responder_resources),
            initiator_depth: requested(param.initiator_depth),
        };
        // SAFETY: a live identifier with a queue pair.
        let ret = unsafe { qp::bring_up(raw, depths) };
        if ret != 0 {
            return ret;
        }
    }
    if is_datagram {
        return outcome(
            id.port()
                .call(|nic, _| nic.manager.accept_service(id.num(), param.qp_num, &data)),
        );
    }
    let ret = outcome(id.port().call(|nic, now| {
        nic.engine.begin_time_wait(param.qp_num);
        nic.manager.accept(id.num(), param, &data, now)
    }));
    // SAFETY: a live identifier.
    unsafe { endpoint::finish(raw, ret) }
}

/// Rejects a request with a reason.
///
/// # Safety
/// - `raw` is a live identifier, and `data` is null or points to `len` bytes.
unsafe fn reject(
    raw: *mut ffi::rdma_cm_id,
    (call, reason): (Call, u16),
    data: *const c_void,
    len: u8,
) -> c_int {
    // SAFETY: as the caller promised.
    let id = unsafe { Id::borrow(raw) };
    if let Err(errno) = id.port().attempt(call) {
        return failed(errno);
    }
    // SAFETY: as the caller promised.
    let data = unsafe { bytes(data, len) };
    outcome(
        id.port()
            .call(|nic, now| nic.manager.reject(id.num(), reason, &data, now)),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject(raw: *mut ffi::rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the caller's identifier and bytes.
    unsafe { reject(raw, (Call::Reject, Reject::CONSUMER), data, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject_ece(
    raw: *mut ffi::rdma_cm_id,
    data: *const c_void,
    len: u8,
) -> c_int {
    // SAFETY: the caller's identifier and bytes.
    unsafe { reject(raw, (Call::RejectEce, Reject::VENDOR_OPTION), data, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_establish(raw: *mut ffi::rdma_cm_id) -> c_int {
    // SAFETY: a live identifier.
    let id = unsafe { Id::borrow(raw) };
    if let Err(errno) = id.port().attempt(Call::Establish) {
        return failed(errno);
    }
    outcome(id.call(|manager| manager.establish(id.num())))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_disconnect(raw: *mut ffi::rdma_cm_id) -> c_int {
    // SAFETY: a live identifier.
    let id = unsafe { Id::borrow(raw) };
    if let Err(errno) = id.port().attempt(Call::Disconnect) {
        return failed(errno);
    }
    // SAFETY: a live identifier.
    unsafe { qp::fail(raw) };
    let ret = outcome(
        id.port()
            .call(|nic, now| nic.manager.disconnect(id.num(), now)),
    );
    // SAFETY: a live identifier.
    unsafe { endpoint::finish(raw, ret) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_notify(raw: *mut ffi::rdma_cm_id, event: ibv_event_type) -> c_int {
    // SAFETY: a live identifier.
    let id = unsafe { Id::borrow(raw) };
    if let Err(errno) = id.port().attempt(Call::Notify) {
        return failed(errno);
    }
    if event != ibv_event_type::IBV_EVENT_COMM_EST {
        return failed(libc::EINVAL);
    }
    outcome(id.call(|manager| manager.note_established(id.num())))
}
