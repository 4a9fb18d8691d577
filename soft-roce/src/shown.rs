//! Mounts of host files inside a guest's own file systems.
//!
//! A guest's `/tmp`, `/run` and `/dev/shm` start empty. The checkout, the caller's working directory and paths among
//! the words of a command are mounted there if the host has them below these folders.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

/// Mount points of a guest's own file systems, mounted by its init.
const OWN: [&str; 3] = ["/tmp", "/run", "/dev/shm"];

/// A path of the host to mount inside a guest's own file system.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shown {
    /// Path in the guest.
    pub(crate) entry: PathBuf,
    /// Path on the host, without symbolic links.
    pub(crate) real: PathBuf,
}

/// Returns the mounts for `paths` in a guest. Paths without a file are left out.
///
/// A file is mounted with its folder, because a program may need its neighbors, except a file directly in `/tmp`. All
/// of the paths are mounted in a root that is not `of_host`.
pub(crate) fn list(paths: impl IntoIterator<Item = PathBuf>, of_host: bool) -> Vec<Shown> {
    let mut mounts = BTreeSet::new();
    for path in paths {
        let Ok(real) = path.canonicalize() else {
            continue;
        };
        let lexical = path
            .components()
            .all(|part| part != Component::ParentDir)
            .then_some(path);
        for entry in lexical.into_iter().chain([real]) {
            mounts.extend(mount(&entry, of_host));
        }
    }
    let mut shown: Vec<Shown> = Vec::new();
    // A folder sorts before its contents.
    for one in mounts {
        if !shows(&shown, &one.entry) {
            shown.push(one);
        }
    }
    shown
}

/// The mount for `entry`, if hidden by one of the guest's own file systems, or by a root that is not `of_host`.
fn mount(entry: &Path, of_host: bool) -> Option<Shown> {
    let other_root = (!of_host).then_some(Path::new("/"));
    let private = private(entry).or(other_root)?;
    let folder = entry.parent().filter(|folder| *folder != private);
    let entry = match folder {
        Some(folder) if !entry.is_dir() => folder,
        _ => entry,
    };
    // The guest's programs are in /run, and the host's shared memory must stay the host's.
    let is_root = entry == private && private != Path::new("/tmp");
    let real = entry.canonicalize().ok()?;
    (!is_root).then(|| Shown {
        entry: entry.to_owned(),
        real,
    })
}

fn private(entry: &Path) -> Option<&'static Path> {
    let mut private = OWN.iter().map(Path::new);
    private.find(|private| entry.starts_with(private))
}

fn shows(shown: &[Shown], entry: &Path) -> bool {
    shown.iter().any(|one| entry.starts_with(&one.entry))
}

/// Existing files named by words of a command, or by `NAME=VALUE` words, with a slash in the name.
pub(crate) fn named(words: &[String], folder: &Path) -> Vec<PathBuf> {
    let values = words
        .iter()
        .filter_map(|word| Some(word.split_once('=')?.1));
    let named = words.iter().map(String::as_str).chain(values);
    named
        .filter(|word| word.contains('/'))
        .map(|word| folder.join(word))
        .filter(|path| path.exists())
        .collect()
}

/// The first existing path in `script` without a mount in a guest.
pub(crate) fn first_hidden<'a>(script: &'a str, shown: &[Shown]) -> Option<&'a Path> {
    let mut words = script
        .split(|c: char| c.is_whitespace() || "'\"`=:;|&()<>$".contains(c))
        .map(Path::new);
    words.find(|word| {
        private(word).is_some_and(|private| *word != private)
            && word.exists()
            && !shows(shown, word)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn entries(shown: &[Shown]) -> Vec<&Path> {
        shown.iter().map(|one| one.entry.as_path()).collect()
    }

    /// A folder below `/tmp`, independent of `TMPDIR`.
    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in("/tmp").unwrap()
    }

    #[test]
    fn list_of_absent_or_visible_paths_is_empty() {
        assert_eq!(
            list(["/usr/bin".into(), "/tmp/no such file".into()], true),
            []
        );
        assert_eq!(list(["/run".into(), "/dev/shm".into()], true), []);
        assert_eq!(entries(&list(["/tmp".into()], true)), [Path::new("/tmp")]);
    }

    #[test]
    fn list_of_folder_and_its_contents_has_one_mount() {
        let folder = folder();
        let inside = folder.path().join("a b,c:d");
        fs::create_dir(&inside).unwrap();
        let shown = list([inside.clone(), folder.path().into()], true);
        assert_eq!(entries(&shown), [folder.path()]);
        assert_eq!(entries(&list([inside.clone()], true)), [inside]);
    }

    #[test]
    fn list_of_file_mounts_its_folder_except_tmp() {
        let folder = folder();
        let file = folder.path().join("program");
        fs::write(&file, "").unwrap();
        assert_eq!(entries(&list([file], true)), [folder.path()]);
        let single = tempfile::NamedTempFile::new_in("/tmp").unwrap();
        assert_eq!(
            entries(&list([single.path().into()], true)),
            [single.path()]
        );
    }

    #[test]
    fn list_of_symbolic_link_includes_its_target() {
        let (folder, target) = (folder(), folder());
        let link = folder.path().join("link");
        symlink(target.path(), &link).unwrap();
        let outside = tempfile::tempdir_in("/var/tmp").unwrap();
        let outside = outside.path().join("link");
        symlink(target.path(), &outside).unwrap();
        let shown = list([link.clone()], true);
        let expected = [&link, target.path()].map(|entry: &Path| Shown {
            entry: entry.to_owned(),
            real: target.path().to_owned(),
        });
        assert!(expected.iter().all(|one| shown.contains(one)), "{shown:?}");
        assert_eq!(entries(&list([outside], true)), [target.path()]);
    }

    #[test]
    fn list_for_another_root_has_all_paths() {
        let paths = || ["/usr/bin".into(), "/usr/bin/env".into(), "/run".into()];
        assert_eq!(list(paths(), true), []);
        assert_eq!(entries(&list(paths(), false)), [Path::new("/usr/bin")]);
    }

    #[test]
    fn named_finds_files_by_words_and_values() {
        let folder = folder();
        fs::write(folder.path().join("x"), "").unwrap();
        let words = ["./x", "--file=./x", "x", "-l", "./none"].map(str::to_owned);
        let found = named(&words, folder.path());
        assert_eq!(
            found,
            [folder.path().join("./x"), folder.path().join("./x")]
        );
    }

    #[test]
    fn first_hidden_of_unmounted_file_is_its_path() {
        let folder = folder();
        let file = folder.path().join("x");
        let script = format!("cd /; cat <'{}' /tmp /tmp/none", file.display());
        assert_eq!(first_hidden(&script, &[]), None);
        fs::write(&file, "").unwrap();
        assert_eq!(first_hidden(&script, &[]), Some(file.as_path()));
        assert_eq!(first_hidden(&script, &list([file.clone()], true)), None);
    }
}
