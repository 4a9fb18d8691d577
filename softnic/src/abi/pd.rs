//! Protection domains.

use std::{
    cell::UnsafeCell,
    ffi::c_int,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use ibverbs_sys as ffi;

use super::{
    context::{self, OpenDevice},
    null,
    object::{Object, zeroed},
    outcome,
};
use crate::{
    check::Parent,
    engine::PdId,
    fabric::{Charge, Resource},
};

/// A protection domain.
#[repr(C)]
pub(super) struct Pd {
    raw: UnsafeCell<ffi::ibv_pd>,
    pub(super) device: Arc<OpenDevice>,
    pub(super) id: PdId,
    /// Number of address handles in the domain.
    pub(super) handles: AtomicUsize,
    _charge: Charge,
}

// SAFETY: `repr(C)`, and the C struct comes first.
unsafe impl Object for Pd {
    type Raw = ffi::ibv_pd;
}

impl Pd {
    pub(super) fn context(&self) -> *mut ffi::ibv_context {
        // SAFETY: set at the domain's creation, and not changed.
        unsafe { (*self.raw.get()).context }
    }
}

pub(super) unsafe extern "C" fn ibv_alloc_pd(ctx: *mut ffi::ibv_context) -> *mut ffi::ibv_pd {
    // SAFETY: an open context.
    let device = unsafe { context::device(ctx) };
    let charge = match device
        .port
        .accounts()
        .charge(Resource::ProtectionDomains, 1)
    {
        Ok(charge) => charge,
        Err(errno) => return null(errno),
    };
    let id = device.port.look(|nic| nic.engine.alloc_pd());
    let mut raw: ffi::ibv_pd = zeroed();
    raw.context = ctx;
    raw.handle = id.0;
    let pd = Pd {
        raw: UnsafeCell::new(raw),
        device: Arc::clone(device),
        id,
        handles: AtomicUsize::new(0),
        _charge: charge,
    };
    pd.into_raw()
}

pub(super) unsafe extern "C" fn ibv_dealloc_pd(raw: *mut ffi::ibv_pd) -> c_int {
    // SAFETY: a live domain.
    let pd = unsafe { Pd::borrow(raw) };
    let port = &pd.device.port;
    let ret = match pd.handles.load(Ordering::Acquire) {
        0 => outcome(port.look(|nic| nic.engine.dealloc_pd(pd.id))),
        _ => libc::EBUSY,
    };
    let addr = raw.expose_provenance() as u64;
    port.note_destruction(addr, ret, "ibv_dealloc_pd", Parent::Pd(pd.id));
    if ret == 0 {
        // SAFETY: live until here; the caller gives the domain up.
        unsafe { Pd::free(raw) };
    }
    ret
}
