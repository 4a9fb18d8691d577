//! The shared libraries beside the command, under the names that programs load.

use std::{
    env,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

/// File names of the libraries beside the command: the functions for verbs, and those of files.
const VERBS: &str = "softnic-verbs";
const FILES: &str = "softnic-files";

/// Folder with the names, beside the command.
const FOLDER: &str = "softnic-libraries";

/// Name of the library that programs load first.
const PRELOADED: &str = "libsoftnic-files.so";

/// Names that programs load, each with its file. The loader recognizes the first two as one file.
const NAMES: [(&str, &str); 3] = [
    ("libibverbs.so.1", VERBS),
    ("librdmacm.so.1", VERBS),
    (PRELOADED, FILES),
];

/// Variables of the loader for a program.
#[derive(Debug)]
pub(super) struct Libraries {
    pub(super) search_path: OsString,
    pub(super) preloaded: OsString,
}

impl Libraries {
    pub(super) fn of_package() -> Result<Self> {
        let folder = folder()?;
        Ok(Self {
            search_path: search_path(&folder)?,
            preloaded: preloaded(&folder),
        })
    }
}

/// The folder with the library's names, made by the first call.
pub(super) fn folder() -> Result<PathBuf> {
    let command = env::current_exe().context("cannot find the command's own file")?;
    let programs = command.parent().unwrap_or(Path::new("/"));
    folder_of(programs)
}

fn folder_of(programs: &Path) -> Result<PathBuf> {
    for file in [VERBS, FILES] {
        let file = programs.join(file);
        if !file.is_file() {
            bail!(
                "{} is missing: build or install the whole package softnic-capi",
                file.display()
            );
        }
    }
    let folder = programs.join(FOLDER);
    let advice = || {
        format!(
            "cannot make links in {}: run `softnic libraries` once as the user who has installed softnic",
            folder.display()
        )
    };
    for (name, file) in NAMES {
        let target = Path::new("..").join(file);
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

/// The libraries loaded first, separated by colons: the present ones, followed by that of files. The loader splits the list at
/// spaces, too: from a folder with a space, the library is found by the search path.
fn preloaded(folder: &Path) -> OsString {
    let library = folder.join(PRELOADED);
    let has_space = library.as_os_str().as_encoded_bytes().contains(&b' ');
    let library = match has_space {
        true => OsString::from(PRELOADED),
        false => library.into_os_string(),
    };
    match env::var_os("LD_PRELOAD") {
        Some(mut present) if !present.is_empty() => {
            present.push(":");
            present.push(library);
            present
        }
        _ => library,
    }
}

/// The folder, followed by the present search path.
fn search_path(folder: &Path) -> Result<OsString> {
    let present = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let present = env::split_paths(&present).filter(|path| !path.as_os_str().is_empty());
    let all = std::iter::once(folder.to_owned()).chain(present);
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
        for file in [VERBS, FILES] {
            fs::write(programs.path().join(file), file).unwrap();
        }
        for _ in 0..2 {
            let folder = folder_of(programs.path()).unwrap();
            for (name, file) in NAMES {
                assert_eq!(fs::read(folder.join(name)).unwrap(), file.as_bytes());
            }
        }
    }

    #[test]
    fn file_in_the_place_of_a_link_is_refused() {
        let programs = tempfile::tempdir().unwrap();
        for file in [VERBS, FILES] {
            fs::write(programs.path().join(file), file).unwrap();
        }
        fs::create_dir(programs.path().join(FOLDER)).unwrap();
        fs::write(programs.path().join(FOLDER).join(NAMES[0].0), "other").unwrap();
        assert!(folder_of(programs.path()).is_err());
    }
}
