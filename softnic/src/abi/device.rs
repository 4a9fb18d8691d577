//! The list of devices: the device of the calling thread's host.

use std::{
    cell::UnsafeCell,
    collections::HashMap,
    ffi::{c_char, c_int},
    ptr,
    sync::{Mutex, PoisonError},
};

use ibverbs_sys as ffi;

use super::{
    context, null,
    object::{Object, zeroed},
};
use crate::fabric::{self, Port};

/// A device behind an `ibv_device`.
#[repr(C)]
struct Device {
    raw: UnsafeCell<ffi::ibv_device>,
    port: Port,
}

// SAFETY: `repr(C)`, and the C struct comes first.
unsafe impl Object for Device {
    type Raw = ffi::ibv_device;
}

/// Listed devices, by address, until the process ends: a program may keep an opened device after freeing the list.
static LISTED: Mutex<Vec<Listed>> = Mutex::new(Vec::new());

struct Listed {
    port: Port,
    raw: usize,
}

/// Lengths of the lists not yet freed, by address.
static LISTS: Mutex<Option<HashMap<usize, usize>>> = Mutex::new(None);

/// The C struct of a device, created by the first call.
pub(super) fn listed(port: &Port) -> *mut ffi::ibv_device {
    let mut listed = LISTED.lock().unwrap_or_else(PoisonError::into_inner);
    let known = listed.iter().find(|known| known.port.is(port));
    if let Some(known) = known {
        return ptr::with_exposed_provenance_mut(known.raw);
    }
    let mut raw: ffi::ibv_device = zeroed();
    raw.node_type = ffi::ibv_node_type::IBV_NODE_CA;
    raw.transport_type = ffi::ibv_transport_type::IBV_TRANSPORT_IB;
    let name = format!("softnic{}", port.index());
    for (to, from) in raw.name.iter_mut().zip(name.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    let device = Device {
        raw: UnsafeCell::new(raw),
        port: port.clone(),
    };
    let raw = device.into_raw();
    listed.push(Listed {
        port: port.clone(),
        raw: raw.expose_provenance(),
    });
    raw
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ffi::ibv_device {
    let current = fabric::current();
    let devices: Vec<_> = current
        .iter()
        .map(listed)
        .chain([ptr::null_mut()])
        .collect();
    if !count.is_null() {
        // SAFETY: the caller's place for the number.
        unsafe { *count = c_int::from(current.is_some()) };
    }
    let len = devices.len();
    let list: *mut *mut ffi::ibv_device = Box::into_raw(devices.into_boxed_slice()).cast();
    let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
    lists.get_or_insert_default().insert(list.addr(), len);
    list
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ffi::ibv_device) {
    let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
    let len = lists.as_mut().and_then(|lists| lists.remove(&list.addr()));
    if let Some(len) = len {
        // SAFETY: a boxed slice of this length, from `ibv_get_device_list`, and freed once: the list was still
        // registered.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, len)) });
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ffi::ibv_device) -> *const c_char {
    // SAFETY: a device of a list; taking the address of a field reads nothing.
    unsafe { (&raw const (*device).name).cast() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_index(device: *mut ffi::ibv_device) -> c_int {
    // SAFETY: a listed device, valid until the process ends.
    let device = unsafe { Device::borrow(device) };
    c_int::try_from(device.port.index()).unwrap_or(-1)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(device: *mut ffi::ibv_device) -> ffi::__be64 {
    // SAFETY: a listed device, valid until the process ends.
    let device = unsafe { Device::borrow(device) };
    ffi::__be64::from_ne(device.port.guid())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(raw: *mut ffi::ibv_device) -> *mut ffi::ibv_context {
    if raw.is_null() {
        return null(libc::EINVAL);
    }
    // SAFETY: a listed device, valid until the process ends.
    let device = unsafe { Device::borrow(raw) };
    context::open(&device.port, raw)
}
