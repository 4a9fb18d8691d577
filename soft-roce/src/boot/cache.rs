//! Cached files, built once and shared by later runs.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use crate::scratch::Scratch;

/// Age after which an unused file is deleted: longer than any run that may use the file.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns the path of the cached file of `kind` and `key` in `folder`. Calls `make` if the file does not exist.
///
/// Concurrent runs may both make the file. The last rename wins, with equal contents.
pub(crate) fn ensure(
    folder: &Path,
    kind: &str,
    key: impl Hash,
    make: impl FnOnce() -> Result<Vec<u8>>,
) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let file = folder.join(format!("{kind}-{:016x}", hasher.finish()));
    if !file.exists() {
        let contents = make()?;
        let scratch = Scratch::inside(folder)?;
        let unfinished = scratch.path().join(kind);
        fs::write(&unfinished, contents)
            .with_context(|| format!("cannot write {}", unfinished.display()))?;
        remove_old(folder, kind);
        fs::rename(&unfinished, &file)?;
    }
    Ok(file)
}

/// Path, size and modification time: identifies a version of a file without reading it.
pub(crate) fn identity(file: &Path) -> Result<(PathBuf, u64, SystemTime)> {
    let metadata = fs::metadata(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok((file.to_owned(), metadata.len(), metadata.modified()?))
}

fn remove_old(folder: &Path, kind: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let ours = entry
            .file_name()
            .to_string_lossy()
            .starts_with(&format!("{kind}-"));
        let modified = entry
            .metadata()
            .and_then(|metadata| metadata.modified())
            .ok();
        let age = modified
            .and_then(|time| time.elapsed().ok())
            .unwrap_or_default();
        if ours && age > KEPT {
            // A concurrent run may have removed the file.
            drop(fs::remove_file(entry.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ensure_with_same_key_makes_the_file_once() {
        let folder = tempfile::tempdir().unwrap();
        let make = |contents: &'static str| move || Ok(contents.into());
        let first = ensure(folder.path(), "thing", 1, make("one")).unwrap();
        let again = ensure(folder.path(), "thing", 1, make("other")).unwrap();
        let second = ensure(folder.path(), "thing", 2, make("two")).unwrap();
        assert_eq!(first, again);
        assert_eq!(fs::read_to_string(first).unwrap(), "one");
        assert_eq!(fs::read_to_string(second).unwrap(), "two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn ensure_with_failing_make_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        assert!(ensure(folder.path(), "thing", 1, || anyhow::bail!("no")).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
