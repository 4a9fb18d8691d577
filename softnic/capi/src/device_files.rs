//! Files that programs read below `/sys/class/infiniband`, `/sys/class/infiniband_verbs` and `/dev/infiniband`.
//!
//! The keeper of an address writes them to a folder, with the values of the functions of libibverbs, and removes the folder at
//! its end. In programs of `softnic run`, the library `softnic-files` leads the paths there (`redirection/`).

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder},
    io,
    net::IpAddr,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use rustix::process::geteuid;
use softnic::keeper::sysfs_files;

/// Folder of the folders. All programs of a user find the same one, so it depends on no variable.
const PARENT: &str = "/tmp";

/// The process's network namespace. Each has its own hosts with an address.
const NAMESPACE: &str = "/proc/self/ns/net";

/// Nodes of the device and of the connection manager. No program writes to them but by a libibverbs of its own, which the
/// file's errors end.
const NODES: [&str; 2] = ["dev/infiniband/uverbs0", "dev/infiniband/rdma_cm"];

/// Character device in the place of the nodes: its writes fail, and it has no `ioctl`.
const NODE: &str = "/dev/full";

/// The folder for the files of the device at an address, of this user and in this network namespace.
pub(crate) fn folder(addr: IpAddr) -> PathBuf {
    let namespace = fs::read_link(NAMESPACE).unwrap_or_default();
    let digits = namespace.as_os_str().as_bytes().iter();
    let digits: Vec<_> = digits.copied().filter(u8::is_ascii_digit).collect();
    let namespace = OsStr::from_bytes(&digits).display();
    let user = geteuid().as_raw();
    Path::new(PARENT).join(format!("softnic-{user}-{namespace}-{addr}"))
}

/// Checks that a folder is this user's, or absent.
///
/// # Errors
/// - The folder is another user's, or no folder.
pub(crate) fn check(folder: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if found.is_dir() && found.uid() == geteuid().as_raw() {
        return Ok(());
    }
    let folder = folder.display();
    Err(io::Error::other(format!(
        "{folder} is no folder of this user: remove it"
    )))
}

/// The files of a device, removed by the drop.
pub(crate) struct DeviceFiles(PathBuf);

impl DeviceFiles {
    /// Writes the files of the device at an address.
    ///
    /// # Errors
    /// - As for [`check`], or a system call fails.
    pub(crate) fn write(addr: IpAddr) -> io::Result<Self> {
        Self::write_to(folder(addr), addr)
    }

    fn write_to(folder: PathBuf, addr: IpAddr) -> io::Result<Self> {
        let created = DirBuilder::new().mode(0o700).create(&folder);
        if created.is_err() {
            // Of a keeper that has been killed, whose programs may have opened it.
            check(&folder)?;
        }
        let node = fs::metadata(NODE)?.rdev();
        let node = format!("{}:{}", libc::major(node), libc::minor(node));
        let files = Self(folder);
        for (path, text) in sysfs_files(addr, &node) {
            files.write_file(&Path::new("sys/class").join(path), &text)?;
        }
        for node in NODES {
            let link = files.0.join(node);
            make_parent(&link)?;
            match rustix::fs::symlink(NODE, &link) {
                Err(rustix::io::Errno::EXIST) => {}
                made => made?,
            }
        }
        Ok(files)
    }

    /// Writes a file, unless it has the text: programs may be reading it.
    fn write_file(&self, path: &Path, text: &str) -> io::Result<()> {
        let path = self.0.join(path);
        let text = format!("{text}\n");
        if fs::read(&path).is_ok_and(|found| found == text.as_bytes()) {
            return Ok(());
        }
        make_parent(&path)?;
        fs::write(path, text)
    }
}

impl Drop for DeviceFiles {
    fn drop(&mut self) {
        // Files that stay are those of the next keeper.
        let _removed = fs::remove_dir_all(&self.0);
    }
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

#[cfg(test)]
mod tests {
    use std::mem::ManuallyDrop;

    use super::*;

    #[test]
    fn files_of_a_killed_keeper_stay_in_place_and_the_last_one_removes_them() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("files");
        let addr = "127.5.1.2".parse().unwrap();
        let _killed = ManuallyDrop::new(DeviceFiles::write_to(folder.clone(), addr).unwrap());
        let guid = folder.join("sys/class/infiniband/softnic0/node_guid");
        let before = fs::metadata(&guid).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        let next = DeviceFiles::write_to(folder.clone(), addr).unwrap();
        let after = fs::metadata(&guid).unwrap();
        assert_eq!(
            (before.ino(), before.mtime_nsec()),
            (after.ino(), after.mtime_nsec())
        );
        drop(next);
        assert!(!folder.exists());
    }

    #[test]
    fn folder_of_another_kind_is_refused_with_the_remedy() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("files");
        check(&folder).unwrap();
        rustix::fs::symlink("/", &folder).unwrap();
        let error = DeviceFiles::write_to(folder, "127.5.1.3".parse().unwrap());
        assert!(error.err().unwrap().to_string().contains("remove it"));
    }
}
