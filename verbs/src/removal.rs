//! Removal of open devices.
//!
//! The kernel first answers every call on such a device with `EIO`, then destroys the objects of
//! each process, and then deletes the device from sysfs (`ib_uverbs_remove_one` and
//! `ib_unregister_device`). So `EIO` alone does not imply that the device has lost its access to
//! memory; the absence of its directory does.

use std::{
    ffi::CStr,
    fs::{self, Metadata},
    io::ErrorKind,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::PathBuf,
    ptr::NonNull,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use ibverbs_sys as ffi;

/// Maximum time to wait for the end of a removal in progress. Destroying a process's objects takes
/// milliseconds; a driver may first wait for hardware, for seconds. Waited once for each open
/// device.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval between two checks of sysfs.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The directory of an open device in sysfs, identified when the device was opened.
pub(crate) struct Presence {
    /// The directory and its identity: another device can get the same name.
    directory: Option<(PathBuf, (u64, u64))>,
    /// A removal has taken longer than [`REMOVAL_TIMEOUT`].
    timed_out: AtomicBool,
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl Presence {
    /// # Safety
    /// - `ctx` is open.
    pub(crate) unsafe fn of(ctx: NonNull<ffi::ibv_context>) -> Self {
        // SAFETY: the context is open, and its device is constant.
        let device = NonNull::new(unsafe { ctx.as_ref() }.device);
        let directory = device.and_then(|device| {
            // SAFETY: libibverbs keeps the device while a context of the device is open.
            let path = unsafe { &raw const (*device.as_ptr()).ibdev_path };
            // SAFETY: an array inside the device, always terminated, and constant.
            let path = unsafe { CStr::from_ptr(path.cast()) };
            let path = PathBuf::from(std::ffi::OsStr::from_bytes(path.to_bytes()));
            let metadata = fs::metadata(&path).ok()?;
            Some((path, identity(&metadata)))
        });
        Self {
            directory,
            timed_out: AtomicBool::new(false),
        }
    }

    /// Whether the kernel has removed the device, and so has destroyed every object of the device.
    /// Called after an `EIO`; waits for the end of the removal.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended_within(REMOVAL_TIMEOUT)
    }

    /// Waits for no longer than `timeout`, and not at all if a wait has been in vain before.
    fn has_ended_within(&self, timeout: Duration) -> bool {
        let Some((path, identity_before)) = &self.directory else {
            return false;
        };
        let start = Instant::now();
        loop {
            match fs::metadata(path) {
                Ok(metadata) if identity(&metadata) != *identity_before => return true,
                // Unless sysfs itself is gone.
                Err(err) if err.kind() == ErrorKind::NotFound => {
                    return path.parent().is_some_and(|devices| devices.is_dir());
                }
                Ok(_) | Err(_) => {}
            }
            if self.timed_out.load(Ordering::Relaxed) || start.elapsed() >= timeout {
                self.timed_out.store(true, Ordering::Relaxed);
                return false;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    /// A device that answers with `EIO` and stays.
    #[test]
    fn unfinished_removal_is_awaited_once() {
        // A directory that stays.
        let path = env::temp_dir();
        let metadata = fs::metadata(&path).unwrap();
        let presence = Presence {
            directory: Some((path, identity(&metadata))),
            timed_out: AtomicBool::new(false),
        };
        assert!(!presence.has_ended_within(Duration::from_millis(10)));
        // Would not come back.
        assert!(!presence.has_ended_within(Duration::MAX));
    }

    #[test]
    fn device_without_a_directory_has_not_been_removed() {
        let presence = Presence {
            directory: None,
            timed_out: AtomicBool::new(false),
        };
        assert!(!presence.has_ended_within(Duration::MAX));
    }
}
