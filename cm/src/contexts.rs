//! Devices opened by librdmacm.

use std::ptr::{self, NonNull};

use ibverbs_sys::ibv_context;
use rdmacm_sys as ffi;
use verbs::{
    Context, Error, Result, device::check_environment, error::cvt_ptr, fd::above_standard,
    fork::fork_generation,
};

/// Devices of the identifiers of one channel.
///
/// librdmacm opens each device once, for all identifiers, and closes the device after removal, when the last
/// user has released the device list. So each context holds a list.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    cached: Vec<Context>,
}

impl Contexts {
    /// Returns the context for librdmacm's device at `raw`.
    pub(crate) fn find(&mut self, raw: *mut ibv_context) -> Result<Context> {
        if let Some(cached) = self.cached(raw) {
            return Ok(cached);
        }
        // No event reports the removal of a device without identifiers.
        self.cached.retain(|cached| cached.query_device().is_ok());
        let list = DeviceList::get()?;
        let found = list
            .iter()
            .find(|found| ptr::eq(found.as_ptr(), raw))
            .ok_or_else(|| {
                Error::from_errno("rdma_get_devices", libc::ENODEV)
                    .detail("the device has been removed")
            })?;
        // SAFETY: the context is open, and stays open until the list containing the device is freed.
        // The environment was checked.
        let context = unsafe { Context::from_borrowed(found, Box::new(list)) };
        self.cached.push(context.clone());
        Ok(context)
    }

    /// The context for librdmacm's device at `raw`, if known.
    pub(crate) fn cached(&self, raw: *mut ibv_context) -> Option<Context> {
        let mut cached = self.cached.iter();
        cached.find(|cached| ptr::eq(cached.as_raw(), raw)).cloned()
    }

    /// Takes over the context of an identifier from another channel.
    pub(crate) fn adopt(&mut self, context: Context) {
        if self.cached(context.as_raw()).is_none() {
            self.cached.push(context);
        }
    }

    /// Forgets a device being removed: librdmacm closes the device after the last user's release.
    pub(crate) fn forget(&mut self, raw: *mut ibv_context) {
        self.cached.retain(|cached| !ptr::eq(cached.as_raw(), raw));
    }
}

/// `rdma_get_devices`—Returns all RDMA devices of this machine, opened, with the same contexts as
/// identifiers.
///
/// # Errors
/// - `ENODEV`, `ENOENT`: the kernel has no RDMA.
/// - `Unsupported`: see [`check_environment`].
///
/// # References
/// [rdma_get_devices(3)](https://man7.org/linux/man-pages/man3/rdma_get_devices.3.html)
#[doc(alias = "rdma_get_devices")]
#[doc(alias = "rdma_free_devices")]
pub fn devices() -> Result<Vec<Context>> {
    let found: Vec<_> = DeviceList::get()?.iter().collect();
    let mut contexts = Contexts::default();
    found
        .into_iter()
        .map(|raw| contexts.find(raw.as_ptr()))
        .collect()
}

/// A list of open devices; each stays open until the list is freed.
struct DeviceList {
    // INVARIANT: returned by `rdma_get_devices`, and not freed; `count` contexts.
    raw: NonNull<*mut ibv_context>,
    count: usize,
    /// The process that got the list, by its fork generation.
    process: u64,
}

// SAFETY: the list is immutable, and librdmacm guards its reference count by a lock.
unsafe impl Send for DeviceList {}
// SAFETY: see `Send`; shared access only reads.
unsafe impl Sync for DeviceList {}

impl DeviceList {
    fn get() -> Result<Self> {
        check_environment("rdma_get_devices")?;
        let mut count = 0;
        // SAFETY: `count` is valid for writes; C keeps no pointer to it.
        let get = || unsafe { ffi::rdma_get_devices(&raw mut count) };
        let raw = above_standard(get);
        let raw = cvt_ptr("rdma_get_devices", raw)?;
        Ok(Self {
            raw,
            count: usize::try_from(count).unwrap_or(0),
            process: fork_generation(),
        })
    }

    fn iter(&self) -> impl Iterator<Item = NonNull<ibv_context>> {
        // SAFETY: the list has `count` entries (invariant), is immutable, and is borrowed with `self`.
        let list = unsafe { std::slice::from_raw_parts(self.raw.as_ptr(), self.count) };
        list.iter().filter_map(|&context| NonNull::new(context))
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // Freeing the last list may close a removed device, the parent's after a fork.
        if self.process != fork_generation() {
            return;
        }
        // SAFETY: the list came from `rdma_get_devices`, and is freed once, here.
        unsafe { ffi::rdma_free_devices(self.raw.as_ptr()) };
    }
}
