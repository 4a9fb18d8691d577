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
pub(super) struct Shown {
    /// Path in the guest.
    pub(super) place: PathBuf,
    /// Path on the host, without symbolic links.
    pub(super) real: PathBuf,
}

/// Returns the mounts for `paths` in a guest. Paths without a file are left out.
///
/// A file is mounted with its folder, because a program may need its neighbors, except a file directly in `/tmp`.
pub(super) fn list(paths: impl IntoIterator<Item = PathBuf>) -> Vec<Shown> {
    let mut wanted = BTreeSet::new();
    for path in paths {
        let Ok(real) = path.canonicalize() else {
            continue;
        };
        let lexical = path
            .components()
            .all(|part| part != Component::ParentDir)
            .then_some(path);
        for place in lexical.into_iter().chain([real]) {
            wanted.extend(mount(&place));
        }
    }
    let mut shown: Vec<Shown> = Vec::new();
    // A folder sorts before its contents.
    for one in wanted {
        if !shows(&shown, &one.place) {
            shown.push(one);
        }
    }
    shown
}

/// The mount for `place`, if hidden by one of the guest's own file systems.
fn mount(place: &Path) -> Option<Shown> {
    let own = own(place)?;
    let folder = place.parent().filter(|folder| *folder != own);
    let place = match folder {
        Some(folder) if !place.is_dir() => folder,
        _ => place,
    };
    // The guest's programs are in /run, and the host's shared memory must stay the host's.
    let whole = place == own && own != Path::new("/tmp");
    let real = place.canonicalize().ok()?;
    (!whole).then(|| Shown {
        place: place.to_owned(),
        real,
    })
}

fn own(place: &Path) -> Option<&'static Path> {
    let mut own = OWN.iter().map(Path::new);
    own.find(|own| place.starts_with(own))
}

fn shows(shown: &[Shown], place: &Path) -> bool {
    shown.iter().any(|one| place.starts_with(&one.place))
}

/// Existing files named by words of a command, or by `NAME=VALUE` words, with a slash in the name.
pub(super) fn named(words: &[String], folder: &Path) -> Vec<PathBuf> {
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
pub(super) fn first_hidden<'a>(script: &'a str, shown: &[Shown]) -> Option<&'a Path> {
    let mut words = script
        .split(|c: char| c.is_whitespace() || "'\"`=:;|&()<>$".contains(c))
        .map(Path::new);
    words.find(|word| {
        own(word).is_some_and(|own| *word != own) && word.exists() && !shows(shown, word)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn places(shown: &[Shown]) -> Vec<&Path> {
        shown.iter().map(|one| one.place.as_path()).collect()
    }

    /// A folder below `/tmp`, independent of `TMPDIR`.
    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in("/tmp").unwrap()
    }

    #[test]
    fn list_of_absent_or_visible_paths_is_empty() {
        assert_eq!(list(["/usr/bin".into(), "/tmp/no such file".into()]), []);
        assert_eq!(list(["/run".into(), "/dev/shm".into()]), []);
        assert_eq!(places(&list(["/tmp".into()])), [Path::new("/tmp")]);
    }

    #[test]
    fn list_of_folder_and_its_contents_has_one_mount() {
        let folder = folder();
        let inside = folder.path().join("a b,c:d");
        fs::create_dir(&inside).unwrap();
        let shown = list([inside.clone(), folder.path().into()]);
        assert_eq!(places(&shown), [folder.path()]);
        assert_eq!(places(&list([inside.clone()])), [inside]);
    }

    #[test]
    fn list_of_file_mounts_its_folder_except_tmp() {
        let folder = folder();
        let file = folder.path().join("program");
        fs::write(&file, "").unwrap();
        assert_eq!(places(&list([file])), [folder.path()]);
        let alone = tempfile::NamedTempFile::new_in("/tmp").unwrap();
        assert_eq!(places(&list([alone.path().into()])), [alone.path()]);
    }

    #[test]
    fn list_of_symbolic_link_includes_its_target() {
        let (folder, target) = (folder(), folder());
        let link = folder.path().join("link");
        symlink(target.path(), &link).unwrap();
        let outside = tempfile::tempdir_in("/var/tmp").unwrap();
        let elsewhere = outside.path().join("link");
        symlink(target.path(), &elsewhere).unwrap();
        let shown = list([link.clone()]);
        let expected = [&link, target.path()].map(|place: &Path| Shown {
            place: place.to_owned(),
            real: target.path().to_owned(),
        });
        assert!(expected.iter().all(|one| shown.contains(one)), "{shown:?}");
        assert_eq!(places(&list([elsewhere])), [target.path()]);
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
        assert_eq!(first_hidden(&script, &list([file.clone()])), None);
    }
}
