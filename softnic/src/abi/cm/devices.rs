//! Devices opened by the library: one context for each host, until the process ends.

use std::{
    ffi::c_int,
    ptr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use ibverbs_sys as ffi;

use crate::{
    abi::{context, device, null},
    fabric::{self, Port},
};

/// An open context.
struct Opened {
    port: Port,
    context: usize,
}

static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

/// Lists not yet freed: address and length.
static LISTS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The context of a host's device, opened by the first call; null with `errno` set if opening fails.
pub(super) fn context(port: &Port) -> *mut ffi::ibv_context {
    let mut opened = lock(&OPENED);
    let known = opened.iter().find(|known| known.port.is(port));
    if let Some(known) = known {
        return ptr::with_exposed_provenance_mut(known.context);
    }
    let context = context::open(port, device::listed(port));
    if !context.is_null() {
        opened.push(Opened {
            port: port.clone(),
            context: context.expose_provenance(),
        });
    }
    context
}

/// Lists the device of the thread's host. A thread on no host, such as a worker of a runtime, gets all open devices,
/// and so can use identifiers of any host.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ffi::ibv_context {
    let mut devices: Vec<*mut ffi::ibv_context> = match fabric::current() {
        Some(port) => vec![context(&port)],
        None => lock(&OPENED)
            .iter()
            .map(|opened| ptr::with_exposed_provenance_mut(opened.context))
            .collect(),
    };
    devices.retain(|context| !context.is_null());
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
    drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, len)) });
}
