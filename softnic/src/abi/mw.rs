//! Memory windows.

use std::{cell::UnsafeCell, ffi::c_int, sync::Arc};

use ibverbs_sys as ffi;

use super::{
    context::OpenDevice,
    errno, null,
    object::{Object, zeroed},
    outcome,
    pd::Pd,
    post,
    qp::Qp,
};
use crate::{
    card::Card,
    engine::{Access, Binding, Payload, SendOp, SendRequest, WindowKind},
    fabric::{Charge, Resource},
};

/// A memory window.
#[repr(C)]
pub(super) struct Mw {
    raw: UnsafeCell<ffi::ibv_mw>,
    device: Arc<OpenDevice>,
    _charge: Charge,
}

// SAFETY: `repr(C)`, and the C struct comes first.
unsafe impl Object for Mw {
    type Raw = ffi::ibv_mw;
}

pub(super) unsafe extern "C" fn alloc_mw(
    raw_pd: *mut ffi::ibv_pd,
    kind: ffi::ibv_mw_type,
) -> *mut ffi::ibv_mw {
    // SAFETY: a live domain.
    let pd = unsafe { Pd::borrow(raw_pd) };
    let card = pd.device.port.card().map(Card::specification);
    if card.is_some_and(|row| !row.has_windows) {
        return null(libc::EOPNOTSUPP);
    }
    let window = match kind {
        ffi::ibv_mw_type::IBV_MW_TYPE_1 => WindowKind::Type1,
        ffi::ibv_mw_type::IBV_MW_TYPE_2 => WindowKind::Type2,
        _ => return null(libc::EINVAL),
    };
    let accounts = pd.device.port.accounts();
    let charge = match accounts.charge(Resource::MemoryWindows, 1) {
        Ok(charge) => charge,
        Err(errno) => return null(errno),
    };
    let key = match pd
        .device
        .port
        .look(|nic| nic.engine.alloc_window(pd.id, window))
    {
        Ok(key) => key,
        Err(error) => return null(errno(error)),
    };
    let mut raw: ffi::ibv_mw = zeroed();
    raw.context = pd.context();
    raw.pd = raw_pd;
    raw.rkey = key;
    raw.handle = key;
    raw.type_ = kind;
    let mw = Mw {
        raw: UnsafeCell::new(raw),
        device: Arc::clone(&pd.device),
        _charge: charge,
    };
    mw.into_raw()
}

pub(super) unsafe extern "C" fn dealloc_mw(raw: *mut ffi::ibv_mw) -> c_int {
    // SAFETY: a live window.
    let mw = unsafe { Mw::borrow(raw) };
    // SAFETY: live; the handle does not change.
    let handle = unsafe { (*mw.raw.get()).handle };
    let ret = outcome(mw.device.port.look(|nic| nic.engine.dealloc_window(handle)));
    if ret == 0 {
        // SAFETY: live until here; the caller gives the window up.
        unsafe { Mw::free(raw) };
    }
    ret
}

/// Converts binding information from C.
///
/// # Safety
/// - The region is null or live.
unsafe fn binding(info: &ffi::ibv_mw_bind_info) -> Binding {
    let region = if info.mr.is_null() {
        0
    } else {
        // SAFETY: the caller's promise.
        unsafe { (*info.mr).lkey }
    };
    Binding {
        region,
        addr: info.addr,
        len: if info.mr.is_null() { 0 } else { info.length },
        access: Access(info.mw_access_flags),
    }
}

/// Binds a type 1 window: posts a request, and increments the window's key.
pub(super) unsafe extern "C" fn bind_mw(
    raw_qp: *mut ffi::ibv_qp,
    raw: *mut ffi::ibv_mw,
    bind: *mut ffi::ibv_mw_bind,
) -> c_int {
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::borrow(raw_qp) };
    // SAFETY: the caller's arguments.
    let bind = unsafe { &*bind };
    // SAFETY: the caller's region is live.
    let binding = unsafe { binding(&bind.bind_info) };
    // SAFETY: a live window, bound by one thread at a time.
    let rkey = unsafe { (*raw).rkey };
    let new_rkey = ffi::ibv_inc_rkey(rkey);
    let op = SendOp::Bind {
        rkey,
        new_rkey,
        binding,
    };
    let request = SendRequest {
        wr_id: bind.wr_id,
        op,
        payload: Payload::Sges(Vec::new()),
        destination: None,
        xrc_srq: None,
        signaled: bind.send_flags & ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 != 0,
        solicited: false,
        fence: bind.send_flags & ffi::ibv_send_flags::IBV_SEND_FENCE.0 != 0,
    };
    let ret = post::post(qp, request);
    if ret == 0 {
        // SAFETY: as above.
        unsafe { (*raw).rkey = new_rkey };
    }
    ret
}
