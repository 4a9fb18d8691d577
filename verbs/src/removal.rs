//! Removal of open devices.
//!
//! The kernel first answers every call on such a device with `EIO`, then destroys the objects of
//! each process, and then deletes the device from sysfs (`ib_uverbs_remove_one` and
//! `ib_unregister_device`). So `EIO` alone does not imply that the device has lost its access to
//! memory; the removal of its directory does. The directory is held open: by its path, a device
//! looks removed after `rdma dev set … name`, in a chroot and in another mount namespace.

use std::{
    ffi::CStr,
    fs::{File, OpenOptions},
    io,
    mem::MaybeUninit,
    os::{
        fd::AsRawFd as _,
        unix::{ffi::OsStrExt as _, fs::OpenOptionsExt as _},
    },
    path::Path,
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

/// An attribute in the directory of every RDMA device, removed with the directory.
const ATTRIBUTE: &CStr = c"node_guid";

/// The directory of an open device in sysfs.
pub(crate) struct Presence {
    /// Open since the device was opened, so that no other directory is taken for it. `None` if there was none, or one
    /// without [`ATTRIBUTE`]: then no removal is recognised.
    directory: Option<File>,
    /// A removal has taken longer than [`REMOVAL_TIMEOUT`].
    timed_out: AtomicBool,
}

impl Presence {
    /// # Safety
    /// - `ctx` is open.
    pub(crate) unsafe fn of(ctx: NonNull<ffi::ibv_context>) -> Self {
        // SAFETY: the context is open, and its device is constant.
        let device = NonNull::new(unsafe { ctx.as_ref() }.device);
        let path = device.map(|device| {
            // SAFETY: libibverbs keeps the device while a context of the device is open.
            let path = unsafe { &raw const (*device.as_ptr()).ibdev_path };
            // SAFETY: an array inside the device, always terminated, and constant.
            let path = unsafe { CStr::from_ptr(path.cast()) };
            Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()))
        });
        Self::in_directory(path)
    }

    fn in_directory(path: Option<&Path>) -> Self {
        let mut options = OpenOptions::new();
        options.read(true);
        options.custom_flags(libc::O_PATH | libc::O_DIRECTORY);
        let path = path.filter(|path| !path.as_os_str().is_empty());
        let directory = path.and_then(|path| options.open(path).ok());
        let directory = directory.filter(|directory| has_attribute(directory).is_ok());
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
        let Some(directory) = &self.directory else {
            return false;
        };
        let start = Instant::now();
        loop {
            // Assumption: a device whose directory in sysfs has no attributes any more has lost its access to memory.
            match has_attribute(directory) {
                Err(err) if err.kind() == io::ErrorKind::NotFound => return true,
                Ok(()) | Err(_) => {}
            }
            if self.timed_out.load(Ordering::Relaxed) || start.elapsed() >= timeout {
                self.timed_out.store(true, Ordering::Relaxed);
                return false;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Looks for [`ATTRIBUTE`] in an open directory.
fn has_attribute(directory: &File) -> io::Result<()> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    let (fd, name) = (directory.as_raw_fd(), ATTRIBUTE.as_ptr());
    // SAFETY: the descriptor is open, the name is a constant, and C writes `stat` before the return only.
    match unsafe { libc::fstatat(fd, name, stat.as_mut_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, path::PathBuf, process};

    use super::*;

    /// A directory in place of sysfs, and its device's.
    struct Sysfs(PathBuf);

    impl Sysfs {
        fn new(test: &str) -> Self {
            let name = format!("verbs-presence-{test}-{}", process::id());
            let devices = env::temp_dir().join(name);
            let this = Self(devices);
            this.add("rxe0");
            this
        }

        fn add(&self, name: &str) {
            fs::create_dir_all(self.0.join(name)).unwrap();
            fs::write(self.0.join(name).join("node_guid"), "0").unwrap();
        }

        fn remove(&self, name: &str) {
            fs::remove_dir_all(self.0.join(name)).unwrap();
        }

        fn presence(&self, name: &str) -> Presence {
            Presence::in_directory(Some(&self.0.join(name)))
        }
    }

    impl Drop for Sysfs {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    const SHORT: Duration = Duration::from_millis(10);

    /// A device that answers with `EIO` and stays.
    #[test]
    fn unfinished_removal_is_awaited_once() {
        let sysfs = Sysfs::new("stays");
        let presence = sysfs.presence("rxe0");
        assert!(!presence.has_ended_within(SHORT));
        // Would not come back.
        assert!(!presence.has_ended_within(Duration::MAX));
    }

    #[test]
    fn removed_device_is_recognised_beside_another_with_its_name() {
        let sysfs = Sysfs::new("removed");
        let presence = sysfs.presence("rxe0");
        sysfs.remove("rxe0");
        assert!(presence.has_ended_within(Duration::MAX));
        sysfs.add("rxe0");
        assert!(presence.has_ended_within(Duration::MAX));
    }

    /// By `rdma dev set rxe0 name …`, or with another root directory.
    #[test]
    fn device_without_its_former_path_has_not_been_removed() {
        let sysfs = Sysfs::new("renamed");
        let presence = sysfs.presence("rxe0");
        fs::rename(sysfs.0.join("rxe0"), sysfs.0.join("renamed0")).unwrap();
        assert!(!presence.has_ended_within(SHORT));
        sysfs.remove("renamed0");
        assert!(presence.has_ended_within(Duration::MAX));
    }

    #[test]
    fn device_without_a_directory_has_not_been_removed() {
        let sysfs = Sysfs::new("none");
        for presence in [Presence::in_directory(None), sysfs.presence("rxe9")] {
            assert!(!presence.has_ended_within(Duration::MAX));
        }
        // Not a device's.
        let presence = Presence::in_directory(Some(&sysfs.0));
        assert!(!presence.has_ended_within(Duration::MAX));
    }
}
