//! Choice of the folder for the file behind a User-Mode Linux guest's memory.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::StatVfsMountFlags;

/// Candidate folders, fastest first; `TMPDIR` is tried second.
const FOLDERS: [&str; 3] = ["/dev/shm", "/tmp", "/var/tmp"];

/// The first folder whose file system has `mib` MiB free and no `noexec`: the kernel maps its memory executable.
pub(super) fn folder(mib: u32) -> Result<PathBuf> {
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(PathBuf::from).collect();
    if let Some(folder) = std::env::var_os("TMPDIR") {
        folders.insert(1, folder.into());
    }
    let found = folders
        .iter()
        .find(|folder| is_usable(folder, u64::from(mib)));
    found.cloned().with_context(|| {
        format!(
            "no folder has {mib} MiB for the guest's memory: tried {folders:?}; lower --memory, or set TMPDIR to a \
             folder of a file system with room and without `noexec`"
        )
    })
}

fn is_usable(folder: &Path, mib: u64) -> bool {
    let Ok(file_system) = rustix::fs::statvfs(folder) else {
        return false;
    };
    let free = file_system.f_bavail.saturating_mul(file_system.f_frsize) >> 20;
    free >= mib
        && !file_system.f_flag.contains(StatVfsMountFlags::NOEXEC)
        && rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_for_too_much_memory_is_an_error_naming_the_option() {
        let error = folder(u32::MAX).unwrap_err().to_string();
        assert!(error.contains("--memory"), "{error}");
        assert!(folder(1).is_ok());
    }

    #[test]
    fn folder_that_does_not_exist_is_unusable() {
        assert!(!is_usable(Path::new("/no/such/folder"), 0));
    }
}
