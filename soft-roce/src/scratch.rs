//! Temporary folders: removed on drop, on a signal, and after SIGKILL by the next run that makes one in the same parent.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::process;

/// Prefix of the names of scratch folders.
pub(crate) const UNFINISHED: &str = ".unfinished-";

/// A temporary folder. A lock on it, which ends with this process, distinguishes it from the remains of a killed one.
#[derive(Debug)]
pub(crate) struct Scratch {
    dir: tempfile::TempDir,
    _lock: OwnedFd,
}

impl Scratch {
    /// Creates a folder inside `parent`. Creates `parent` if necessary, and removes the remains in it.
    pub(crate) fn inside(parent: &Path) -> Result<Self> {
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        sweep(parent);
        loop {
            let dir = tempfile::Builder::new()
                .prefix(UNFINISHED)
                .tempdir_in(parent)
                .with_context(|| format!("cannot make a folder in {}", parent.display()))?;
            let lock = lock(dir.path());
            let lock = lock.with_context(|| format!("cannot lock {}", dir.path().display()))?;
            // Without the lock, another process is removing the folder, which was not locked yet.
            if let Some(lock) = lock {
                process::clear_at_exit(dir.path());
                return Ok(Self { dir, _lock: lock });
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        process::keep_at_exit(self.dir.path());
    }
}

/// Removes the scratch folders of this user in `parent` whose processes have ended. Failures leave them to a later run.
fn sweep(parent: &Path) {
    let user = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_scratch = entry.file_name().to_string_lossy().starts_with(UNFINISHED);
        let is_ours = || entry.metadata().is_ok_and(|data| data.uid() == user);
        if is_scratch
            && is_ours()
            && let Ok(Some(_lock)) = lock(&entry.path())
        {
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

/// Locks a folder; none if another process has locked or removed it.
fn lock(path: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(None),
        locked => locked?,
    }
    let locked = rustix::fs::fstat(&folder)?.st_ino;
    let is_there = fs::symlink_metadata(path).is_ok_and(|data| data.ino() == locked);
    Ok(is_there.then_some(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_after_killed_process_removes_its_folder_only() {
        let parent = tempfile::tempdir().unwrap();
        let remains = parent.path().join(format!("{UNFINISHED}abc"));
        fs::create_dir_all(remains.join("inside")).unwrap();
        fs::write(parent.path().join("file"), "").unwrap();
        let first = Scratch::inside(parent.path()).unwrap();
        assert!(!remains.exists());
        let second = Scratch::inside(parent.path()).unwrap();
        assert!(first.path().exists(), "a folder in use was removed");
        drop((first, second));
        let names = fs::read_dir(parent.path()).unwrap().flatten();
        let names: Vec<_> = names.map(|entry| entry.file_name()).collect();
        assert_eq!(names, ["file"]);
    }

    #[test]
    fn sweep_follows_no_symbolic_link() {
        let (parent, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let link = parent.path().join(format!("{UNFINISHED}link"));
        std::os::unix::fs::symlink(elsewhere.path(), &link).unwrap();
        fs::write(elsewhere.path().join("file"), "").unwrap();
        sweep(parent.path());
        assert!(elsewhere.path().join("file").exists());
    }
}
