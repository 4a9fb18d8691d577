//! Files of the host that a guest shows where it has file systems of its own.
//!
//! A guest's `/tmp`, `/run` and `/dev/shm` start empty, whatever the host has there. The checkout, the caller's working
//! directory and the paths in the words of a command are mounted into them.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

/// The mount points of a guest's own file systems, which its first process mounts.
const OWN: [&str; 3] = ["/tmp", "/run", "/dev/shm"];

/// A path of the host that a guest mounts into a file system of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shown {
    /// The path in the guest.
    pub(super) place: PathBuf,
    /// The path on the host, without symbolic links.
    pub(super) real: PathBuf,
}

/// Returns the mounts by which a guest sees `paths`; a path without a file is left out.
///
/// A file's folder comes with it, because a program may need its neighbors, but for a file right in `/tmp`.
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

/// The mount by which a guest sees `place`, if its own file systems hide it.
fn mount(place: &Path) -> Option<Shown> {
    let own = own(place)?;
    let folder = place.parent().filter(|folder| *folder != own);
    let place = match folder {
        Some(folder) if !place.is_dir() => folder,
        _ => place,
    };
    // The guest's own programs are in /run, and shared memory is not to be shared with the host.
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

/// The files of this machine that are named by the words of a command, or by `NAME=VALUE` words, with a slash.
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

/// The first path in `script` that this machine has and a guest with these mounts does not.
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

    /// A folder below `/tmp`, whatever `TMPDIR` is.
    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in("/tmp").unwrap()
    }

    #[test]
    fn only_files_that_exist_and_are_hidden_are_listed() {
        assert_eq!(list(["/usr/bin".into(), "/tmp/no such file".into()]), []);
        assert_eq!(list(["/run".into(), "/dev/shm".into()]), []);
        assert_eq!(places(&list(["/tmp".into()])), [Path::new("/tmp")]);
    }

    #[test]
    fn folder_shows_its_contents_once() {
        let folder = folder();
        let inside = folder.path().join("a b,c:d");
        fs::create_dir(&inside).unwrap();
        let shown = list([inside.clone(), folder.path().into()]);
        assert_eq!(places(&shown), [folder.path()]);
        assert_eq!(places(&list([inside.clone()])), [inside]);
    }

    #[test]
    fn file_brings_its_folder_unless_that_is_all_of_tmp() {
        let folder = folder();
        let file = folder.path().join("program");
        fs::write(&file, "").unwrap();
        assert_eq!(places(&list([file])), [folder.path()]);
        let alone = tempfile::NamedTempFile::new_in("/tmp").unwrap();
        assert_eq!(places(&list([alone.path().into()])), [alone.path()]);
    }

    #[test]
    fn symbolic_links_are_followed_to_hidden_files() {
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
    fn words_name_files_by_any_path() {
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
    fn hidden_path_in_a_script_is_found() {
        let folder = folder();
        let file = folder.path().join("x");
        let script = format!("cd /; cat <'{}' /tmp /tmp/none", file.display());
        assert_eq!(first_hidden(&script, &[]), None);
        fs::write(&file, "").unwrap();
        assert_eq!(first_hidden(&script, &[]), Some(file.as_path()));
        assert_eq!(first_hidden(&script, &list([file.clone()])), None);
    }
}
