//! The list of devices: those of the calling thread's host.

use std::{
    cell::UnsafeCell,
    collections::HashMap,
    ffi::{c_char, c_int},
    os::fd::{FromRawFd, OwnedFd},
    ptr,
    sync::{Arc, Mutex, PoisonError},
};

use ibverbs_sys as ffi;

use super::{
    context, null,
    object::{Object, zeroed},
    query,
    scripted::{self, Properties, Shared},
    sysfs,
};
use crate::{
    fabric::{self, Port},
    failure::Call,
};

/// A device of a host.
#[derive(Clone)]
enum Backend {
    Engine(Port),
    Scripted(Arc<Shared>),
}

impl Backend {
    /// Whether both are the same device.
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Engine(port), Self::Engine(other)) => port.is(other),
            (Self::Scripted(shared), Self::Scripted(other)) => Arc::ptr_eq(shared, other),
            _ => false,
        }
    }

    /// Whether the program's fabric or device has been dropped or the host killed, and no object is left.
    fn is_abandoned(&self) -> bool {
        match self {
            Self::Engine(port) => port.is_abandoned(),
            Self::Scripted(shared) => !shared.is_plugged(),
        }
    }

    /// The C struct of the device, for a new entry in the list.
    fn describe(&self) -> ffi::ibv_device {
        match self {
            Self::Engine(port) => {
                let mut raw = describe(&query::of_engine(port));
                if port.is_over_udp() {
                    copy(&mut raw.dev_name, sysfs::NODE);
                    copy(&mut raw.dev_path, &sysfs::node_directory());
                }
                raw
            }
            Self::Scripted(shared) => shared.listed(describe),
        }
    }

    /// Calls `read` with the attributes of the device.
    fn properties<R>(&self, read: impl FnOnce(&Properties) -> R) -> R {
        match self {
            Self::Engine(port) => read(&query::of_engine(port)),
            Self::Scripted(shared) => shared.properties(read),
        }
    }
}

/// The C struct of a device.
fn describe(device: &Properties) -> ffi::ibv_device {
    let mut raw: ffi::ibv_device = zeroed();
    raw.node_type = device.node_type;
    raw.transport_type = device.transport_type;
    copy(&mut raw.name, &device.name);
    copy(&mut raw.ibdev_path, &device.directory);
    raw
}

/// Writes a text into an array of zeros.
fn copy(to: &mut [c_char], text: &str) {
    for (to, from) in to.iter_mut().zip(text.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
}

/// A device behind an `ibv_device`.
#[repr(C)]
struct Device {
    raw: UnsafeCell<ffi::ibv_device>,
    backend: Backend,
}

// SAFETY: `repr(C)`, and the C struct comes first.
unsafe impl Object for Device {
    type Raw = ffi::ibv_device;
}

/// Listed devices. A device stays in memory while its fabric or one of its objects exists, while listed by a program,
/// and while open.
static LISTED: Mutex<Vec<Listed>> = Mutex::new(Vec::new());

struct Listed {
    backend: Backend,
    raw: usize,
    /// Number of lists and contexts with the device.
    uses: usize,
}

/// Lengths of the lists not yet freed, by address.
static LISTS: Mutex<Option<HashMap<usize, usize>>> = Mutex::new(None);

/// The port of a device with an engine.
///
/// # Safety
/// - `raw` is a listed device, in memory while the result is used.
pub(super) unsafe fn port<'a>(raw: *mut ffi::ibv_device) -> Option<&'a Port> {
    // SAFETY: the caller's promise.
    match unsafe { &Device::borrow(raw).backend } {
        Backend::Engine(port) => Some(port),
        Backend::Scripted(_) => None,
    }
}

/// The C struct of a host's own device, created by the first call, with a use counted for the caller.
pub(super) fn listed(port: &Port) -> *mut ffi::ibv_device {
    list(Backend::Engine(port.clone()))
}

/// The C struct of a device, created by the first call. A use is counted for the caller before the list of devices is
/// unlocked, so the drop of a fabric in another thread does not free the device.
fn list(backend: Backend) -> *mut ffi::ibv_device {
    let mut listed = LISTED.lock().unwrap_or_else(PoisonError::into_inner);
    let entry = listed.iter_mut().find(|entry| entry.backend.is(&backend));
    if let Some(entry) = entry {
        entry.uses += 1;
        return ptr::with_exposed_provenance_mut(entry.raw);
    }
    let device = Device {
        raw: UnsafeCell::new(backend.describe()),
        backend: backend.clone(),
    };
    let raw = device.into_raw();
    listed.push(Listed {
        backend,
        raw: raw.expose_provenance(),
        uses: 1,
    });
    raw
}

/// Changes the number of uses of a device.
fn change_uses(raw: *mut ffi::ibv_device, change: impl FnOnce(usize) -> usize) {
    let mut listed = LISTED.lock().unwrap_or_else(PoisonError::into_inner);
    let of = listed.iter_mut().find(|entry| entry.raw == raw.addr());
    if let Some(entry) = of {
        entry.uses = change(entry.uses);
    }
}

/// Counts a use of a device by a list or a context.
pub(super) fn hold(raw: *mut ffi::ibv_device) {
    change_uses(raw, |uses| uses + 1);
}

/// Ends a use of a device.
pub(super) fn release(raw: *mut ffi::ibv_device) {
    change_uses(raw, |uses| uses.saturating_sub(1));
    free_abandoned();
}

/// Frees the devices of dropped fabrics without objects, contexts and lists.
pub(super) fn free_abandoned() {
    let mut listed = LISTED.lock().unwrap_or_else(PoisonError::into_inner);
    let is_abandoned = |entry: &mut Listed| entry.uses == 0 && entry.backend.is_abandoned();
    let abandoned: Vec<_> = listed.extract_if(.., is_abandoned).collect();
    drop(listed);
    for entry in abandoned {
        // SAFETY: from `into_raw` in `list`. No longer in the list, so freed once; neither a list nor a context of a
        // program has the device.
        unsafe { Device::free(ptr::with_exposed_provenance_mut(entry.raw)) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ffi::ibv_device {
    let mut devices = Vec::new();
    if let Some(port) = fabric::current() {
        devices.push(listed(&port));
        devices.extend(port.scripted().into_iter().map(Backend::Scripted).map(list));
    }
    if !count.is_null() {
        // SAFETY: the caller's place for the number.
        unsafe { *count = c_int::try_from(devices.len()).unwrap_or(c_int::MAX) };
    }
    devices.push(ptr::null_mut());
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
        let devices = unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, len)) };
        drop(lists);
        devices.iter().for_each(|device| release(*device));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ffi::ibv_device) -> *const c_char {
    // SAFETY: a device of a list; taking the address of a field reads nothing.
    unsafe { (&raw const (*device).name).cast() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_index(device: *mut ffi::ibv_device) -> c_int {
    // SAFETY: a listed device, in memory while listed or open.
    let device = unsafe { Device::borrow(device) };
    device.backend.properties(|device| device.index)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(device: *mut ffi::ibv_device) -> ffi::__be64 {
    // SAFETY: a listed device, in memory while listed or open.
    let device = unsafe { Device::borrow(device) };
    ffi::__be64::from_ne(device.backend.properties(|device| device.guid))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ibv_open_device(
    raw: *mut ffi::ibv_device,
) -> *mut ffi::ibv_context {
    if raw.is_null() {
        return null(libc::EINVAL);
    }
    // SAFETY: a listed device, in memory while listed or open.
    let device = unsafe { Device::borrow(raw) };
    match &device.backend {
        Backend::Engine(port) => match port.attempt(Call::OpenDevice) {
            Ok(()) => context::open(port, raw),
            Err(errno) => null(errno),
        },
        Backend::Scripted(shared) => match shared.called(Call::OpenDevice) {
            // No command is written to the descriptor, which is open, as needed for exporting.
            Ok(()) => scripted::functions::open(shared, raw, scripted::counter()),
            Err(errno) => null(errno),
        },
    }
}

/// Opens the first scripted device of the thread's host: engines have no command descriptor to import.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ffi::ibv_context {
    let scripted = fabric::current().and_then(|port| port.scripted().into_iter().next());
    let Some(shared) = scripted else {
        return null(libc::EOPNOTSUPP);
    };
    // SAFETY: takes and returns integers.
    if unsafe { libc::fcntl(cmd_fd, libc::F_GETFD) } < 0 {
        return null(libc::EBADF);
    }
    if let Err(errno) = shared.imported(cmd_fd) {
        return null(errno);
    }
    let device = list(Backend::Scripted(Arc::clone(&shared)));
    // SAFETY: open, and from here on the context's: as for libibverbs, the caller has given it up.
    let cmd_fd = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
    let opened = scripted::functions::open(&shared, device, cmd_fd);
    release(device);
    opened
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fabric;

    /// Uses of a device, or `None` if the device has been freed.
    fn uses(device: *mut ffi::ibv_device) -> Option<usize> {
        let listed = LISTED.lock().unwrap();
        let entry = listed.iter().find(|entry| entry.raw == device.addr());
        entry.map(|entry| entry.uses)
    }

    /// A child made by `fork` while another thread of the parent has locked the network, such as that of the timers.
    #[cfg_attr(miri, ignore = "Miri has no processes")]
    #[test]
    fn child_does_not_wait_for_a_lock_of_its_parents_threads() {
        /// Time in seconds after which a blocked child is killed.
        const LIMIT: u32 = 30;
        let fabric = Fabric::new();
        let host = fabric.host([10, 9, 0, 1].into());
        let port = host.run(|| fabric::current().unwrap());
        release(listed(&port));
        let mut child = -1;
        port.look(|_| {
            // SAFETY: the child calls functions that lock nothing that another thread of this process locks, and ends.
            child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: takes an integer.
                unsafe { libc::alarm(LIMIT) };
                free_abandoned();
                // SAFETY: ends the process without its destructors.
                unsafe { libc::_exit(0) };
            }
        });
        let mut status = 0;
        // SAFETY: a child of this process, and a local variable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    /// The moment between the parts of a listing, in which another thread drops the fabric.
    #[test]
    fn device_listed_during_the_drop_of_its_fabric_stays() {
        let fabric = Fabric::new();
        let host = fabric.host([10, 9, 0, 1].into());
        let port = host.run(|| fabric::current().unwrap());
        let device = listed(&port);
        drop(fabric);
        assert_eq!(uses(device), Some(1));
        assert_eq!(listed(&port), device);
        release(device);
        assert_eq!(uses(device), Some(1));
        release(device);
        assert_eq!(uses(device), None);
    }
}
