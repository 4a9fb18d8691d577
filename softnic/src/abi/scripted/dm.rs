//! Device memory.

use std::{
    ffi::{c_int, c_uint, c_void},
    ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ibverbs_sys as ffi;

use super::{
    mr::Place,
    state::{state_of, state_of_context},
};
use crate::{abi::null, failure::Call};

/// Device memory, shared with its importers.
#[derive(Clone)]
pub(super) struct Dm {
    handle: u32,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Dm {
    fn new(handle: u32, len: usize) -> Self {
        Self {
            handle,
            bytes: Arc::new(Mutex::new(vec![0; len])),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(in crate::abi) unsafe extern "C" fn alloc_dm(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_alloc_dm_attr,
) -> *mut ffi::ibv_dm {
    // SAFETY: the caller's attributes.
    let length = unsafe { (*attr).length };
    // SAFETY: an open context.
    let mut state = unsafe { state_of_context(ctx) };
    if length as u64 > state.properties.attr.max_dm_size {
        return null(libc::ENOMEM);
    }
    let dm = state.make("ibv_alloc_dm", &[], |dm: &mut ffi::ibv_dm, number| {
        dm.context = ctx;
        dm.memcpy_to_dm = Some(memcpy_to_dm);
        dm.memcpy_from_dm = Some(memcpy_from_dm);
        dm.handle = number;
    });
    // SAFETY: fresh.
    let handle = unsafe { (*dm).handle };
    state.dms.insert(dm.addr(), Dm::new(handle, length));
    dm
}

pub(in crate::abi) unsafe extern "C" fn free_dm(dm: *mut ffi::ibv_dm) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(dm) };
    state.unmake("ibv_free_dm", dm)
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ffi::ibv_dm,
    offset: u64,
    host: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(dm) };
    if let Err(errno) = state.called(Call::MemcpyToDm) {
        return errno;
    }
    let mut memory = state.dms[&dm.addr()].lock();
    match memory
        .get_mut(offset as usize..)
        .and_then(|rest| rest.get_mut(..length))
    {
        Some(to) => {
            // SAFETY: the caller's `length` bytes, and as many of the device's.
            unsafe { ptr::copy_nonoverlapping(host.cast(), to.as_mut_ptr(), length) };
            0
        }
        None => libc::EFAULT,
    }
}

unsafe extern "C" fn memcpy_from_dm(
    host: *mut c_void,
    dm: *mut ffi::ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(dm) };
    if let Err(errno) = state.called(Call::MemcpyFromDm) {
        return errno;
    }
    let memory = state.dms[&dm.addr()].lock();
    match memory
        .get(offset as usize..)
        .and_then(|rest| rest.get(..length))
    {
        Some(from) => {
            // SAFETY: the caller's place for `length` bytes, and as many of the device's.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr(), host.cast(), length) };
            0
        }
        None => libc::EFAULT,
    }
}

pub(in crate::abi) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ffi::ibv_pd,
    dm: *mut ffi::ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ffi::ibv_mr {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(pd) };
    let zero_based = ffi::ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
    if offset as usize + length > state.dms[&dm.addr()].lock().len() || access & zero_based == 0 {
        return null(libc::EINVAL);
    }
    let backing = Place::Device(dm.addr(), offset);
    state.region("ibv_reg_dm_mr", pd, (0, length), access, backing)
}

pub(in crate::abi) unsafe extern "C" fn import_dm(
    ctx: *mut ffi::ibv_context,
    handle: u32,
) -> *mut ffi::ibv_dm {
    // SAFETY: an open context.
    let mut state = unsafe { state_of_context(ctx) };
    let dm = state.make("ibv_import_dm", &[], |dm: &mut ffi::ibv_dm, _| {
        dm.context = ctx;
        dm.memcpy_to_dm = Some(memcpy_to_dm);
        dm.memcpy_from_dm = Some(memcpy_from_dm);
        dm.handle = handle;
    });
    // The imported memory may be of a device unknown to the test.
    let found = state.dms.values().find(|dm| dm.handle == handle).cloned();
    let memory = found.unwrap_or_else(|| Dm::new(handle, 4096));
    state.dms.insert(dm.addr(), memory);
    dm
}

pub(in crate::abi) unsafe extern "C" fn unimport_dm(dm: *mut ffi::ibv_dm) {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(dm) };
    let _: c_int = state.unmake("ibv_unimport_dm", dm);
}
