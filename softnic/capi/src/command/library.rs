//! The shared library beside the command, under the names that programs load.

use std::{
    env,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

/// File name of the library beside the command.
const LIBRARY: &str = "softnic-verbs";

/// Folder with the names, beside the command.
const FOLDER: &str = "softnic-libraries";

/// Names that programs load. The loader recognizes them as one file.
const NAMES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// The folder with the library's names, made by the first call.
pub(super) fn folder() -> Result<PathBuf> {
    let command = env::current_exe().context("cannot find the command's own file")?;
    let programs = command.parent().unwrap_or(Path::new("/"));
    folder_of(programs)
}

fn folder_of(programs: &Path) -> Result<PathBuf> {
    if !programs.join(LIBRARY).is_file() {
        bail!(
            "{} is missing: build or install the whole package softnic-capi",
            programs.join(LIBRARY).display()
        );
    }
    let folder = programs.join(FOLDER);
    let advice = || {
        format!(
            "cannot make links in {}: run `softnic libraries` once as the user who has installed softnic",
            folder.display()
        )
    };
    let target = Path::new("..").join(LIBRARY);
    for name in NAMES {
        let link = folder.join(name);
        if fs::read_link(&link).is_ok_and(|found| found == target) {
            continue;
        }
        fs::create_dir_all(&folder).with_context(advice)?;
        let created = rustix::fs::symlink(&target, &link).map_err(io::Error::from);
        // Another call has made the same link meanwhile.
        if fs::read_link(&link).ok().as_deref() != Some(&target) {
            created.with_context(advice)?;
            bail!(
                "{} is no link to {}: remove it",
                link.display(),
                target.display()
            );
        }
    }
    Ok(folder)
}

/// The folder, followed by the present search path.
pub(super) fn search_path() -> Result<OsString> {
    let folder = folder()?;
    let present = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let present = env::split_paths(&present).filter(|path| !path.as_os_str().is_empty());
    let all = std::iter::once(folder.clone()).chain(present);
    env::join_paths(all)
        .with_context(|| format!("{} cannot be a part of LD_LIBRARY_PATH", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_has_both_names_of_the_library_and_is_made_once() {
        let programs = tempfile::tempdir().unwrap();
        let error = folder_of(programs.path()).unwrap_err();
        assert!(
            error.to_string().contains("install the whole package"),
            "{error}"
        );
        fs::write(programs.path().join(LIBRARY), "library").unwrap();
        for _ in 0..2 {
            let folder = folder_of(programs.path()).unwrap();
            for name in NAMES {
                assert_eq!(fs::read(folder.join(name)).unwrap(), b"library");
            }
        }
    }

    #[test]
    fn file_in_the_place_of_a_link_is_refused() {
        let programs = tempfile::tempdir().unwrap();
        fs::write(programs.path().join(LIBRARY), "library").unwrap();
        fs::create_dir(programs.path().join(FOLDER)).unwrap();
        fs::write(programs.path().join(FOLDER).join(NAMES[0]), "other").unwrap();
        assert!(folder_of(programs.path()).is_err());
    }
}
