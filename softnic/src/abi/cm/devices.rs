//! Devices opened by the library: one context for each host, while the host lives, one of its objects exists, or a program
//! lists the device.

use std::{
    ffi::c_int,
    ptr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use ibverbs_sys as ffi;

use crate::{
    abi::{context, device, functions, null},
    fabric::{self, Port},
    failure::Call,
};

/// An open context.
struct Opened {
    port: Port,
    context: usize,
    /// Number of lists with the context.
    lists: usize,
    /// Protection domain of identifiers for programs without one; 0 without such identifiers.
    pd: usize,
    /// Number of identifiers with the domain.
    pd_users: usize,
}

static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

/// Lists not yet freed: address and length.
static LISTS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The context of a host's device, opened by the first call; null with `errno` set if opening fails.
pub(super) fn context(port: &Port) -> *mut ffi::ibv_context {
    context_among(&mut lock(&OPENED), port)
}

/// The context of a host's device among the open ones.
fn context_among(opened: &mut Vec<Opened>, port: &Port) -> *mut ffi::ibv_context {
    let entry = opened.iter().find(|entry| entry.port.is(port));
    if let Some(entry) = entry {
        return ptr::with_exposed_provenance_mut(entry.context);
    }
    let device = device::listed(port);
    let context = context::open(port, device);
    device::release(device);
    if !context.is_null() {
        opened.push(Opened {
            port: port.clone(),
            context: context.expose_provenance(),
            lists: 0,
            pd: 0,
            pd_users: 0,
        });
    }
    context
}

/// The protection domain of a host's device for an identifier, allocated for the first one, until [`release_pd`]; null with
/// `errno` set if it cannot be allocated.
pub(super) fn pd(port: &Port) -> *mut ffi::ibv_pd {
    let mut opened = lock(&OPENED);
    let context = context_among(&mut opened, port);
    let entry = opened.iter_mut().find(|entry| entry.port.is(port));
    let Some(entry) = entry.filter(|_| !context.is_null()) else {
        return ptr::null_mut();
    };
    if entry.pd_users == 0 {
        // SAFETY: an open context.
        let pd = unsafe { functions::ibv_alloc_pd(context) };
        if pd.is_null() {
            return pd;
        }
        entry.pd = pd.expose_provenance();
    }
    entry.pd_users += 1;
    ptr::with_exposed_provenance_mut(entry.pd)
}

/// Ends the use of the domain by an identifier. The last use frees the domain.
pub(super) fn release_pd(port: &Port) {
    let mut opened = lock(&OPENED);
    let Some(entry) = opened.iter_mut().find(|entry| entry.port.is(port)) else {
        return;
    };
    entry.pd_users = entry.pd_users.saturating_sub(1);
    if entry.pd_users == 0 && entry.pd != 0 {
        let pd = ptr::with_exposed_provenance_mut(std::mem::take(&mut entry.pd));
        // SAFETY: allocated by `pd`, and freed once. A domain with objects of the program stays.
        unsafe { functions::ibv_dealloc_pd(pd) };
    }
}

/// Lists the device of the thread's host, unless the host has been killed. A thread on no host, such as a worker of a
/// runtime, gets all open devices, and so can use identifiers of any host.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ffi::ibv_context {
    let port = fabric::current();
    if let Some(Err(errno)) = port.as_ref().map(|port| port.attempt(Call::GetDevices)) {
        return null(errno);
    }
    let mut devices: Vec<*mut ffi::ibv_context> = Vec::new();
    // Locked until the list is counted, so no drop of a fabric closes a listed context.
    let mut opened = lock(&OPENED);
    if let Some(port) = &port {
        context_among(&mut opened, port);
    }
    for entry in opened.iter_mut() {
        let is_own = port.as_ref().is_none_or(|port| entry.port.is(port));
        if is_own && !entry.port.is_removed() {
            entry.lists += 1;
            devices.push(ptr::with_exposed_provenance_mut(entry.context));
        }
    }
    drop(opened);
    if devices.is_empty() {
        return null(libc::ENODEV);
    }
    if !count.is_null() {
        // SAFETY: the caller's place for the number.
        unsafe { *count = c_int::try_from(devices.len()).unwrap_or(0) };
    }
    devices.push(ptr::null_mut());
    let len = devices.len();
    let list: *mut *mut ffi::ibv_context = Box::into_raw(devices.into_boxed_slice()).cast();
    lock(&LISTS).push((list.addr(), len));
    list
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_free_devices(list: *mut *mut ffi::ibv_context) {
    let mut lists = lock(&LISTS);
    let Some(at) = lists.iter().position(|(addr, _)| *addr == list.addr()) else {
        return;
    };
    let (_, len) = lists.swap_remove(at);
    // SAFETY: a boxed slice of this length, from `rdma_get_devices`, and freed once: the list was still registered.
    let devices = unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, len)) };
    drop(lists);
    let mut opened = lock(&OPENED);
    for entry in opened.iter_mut() {
        let is_listed = devices.iter().any(|device| device.addr() == entry.context);
        entry.lists -= usize::from(is_listed);
    }
    drop(opened);
    free_abandoned();
}

/// Closes the devices of dropped fabrics without objects and lists.
pub(in crate::abi) fn free_abandoned() {
    let is_abandoned = |entry: &mut Opened| entry.lists == 0 && entry.port.is_abandoned();
    let abandoned: Vec<_> = lock(&OPENED).extract_if(.., is_abandoned).collect();
    for entry in abandoned {
        let context = ptr::with_exposed_provenance_mut(entry.context);
        // SAFETY: opened by `context`, and closed once: no longer in the list. Neither an identifier nor a list of a
        // program has the context.
        unsafe { context::ibv_close_device(context) };
    }
}
