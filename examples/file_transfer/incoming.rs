//! A file that is being received: a name that a peer has given, and what it has written.

use std::{
    ffi::OsString,
    fs::{File, Permissions},
    io::{Read as _, Write as _},
    os::unix::{ffi::OsStringExt as _, fs::PermissionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use crc32fast::Hasher;
use tempfile::NamedTempFile;

use super::message::{Digest, MAX_NAME_LEN};

/// Where files go, and what may be there already.
#[derive(Clone, Debug)]
pub struct Folder {
    /// Its path.
    pub path: PathBuf,
    /// Whether a file may replace another one.
    pub force: bool,
    /// The most bytes that a file may have.
    pub max_size: Option<u64>,
}

/// A file that is not whole yet.
///
/// Its bytes go to a file without a lasting name. Only when they are all there and have been read
/// back does the file get its own name; if that does not come to pass, nothing stays.
#[derive(Debug)]
pub struct Incoming {
    folder: Folder,
    path: PathBuf,
    file: NamedTempFile,
    len: u64,
    sum: Hasher,
}

/// A file that has been received, and is what was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Where it is.
    pub path: PathBuf,
    /// Its size in bytes.
    pub len: u64,
    /// Its CRC-32.
    pub sum: u32,
}

impl Folder {
    /// Begins to receive a file of that name.
    ///
    /// # Errors
    /// The name is not that of a file in the folder; there is one already, and it may not be
    /// replaced; or no file can be made there.
    pub fn begin(&self, name: &[u8]) -> anyhow::Result<Incoming> {
        let name = file_name(name)?;
        let path = self.path.join(&name);
        ensure!(
            self.force || path.symlink_metadata().is_err(),
            "{} is there already; --force replaces it",
            path.display()
        );
        let file = tempfile::Builder::new()
            .prefix(".incoming-")
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(&self.path)
            .with_context(|| format!("no file can be made in {}", self.path.display()))?;
        Ok(Incoming {
            folder: self.clone(),
            path,
            file,
            len: 0,
            sum: Hasher::new(),
        })
    }
}

impl Incoming {
    /// Where the file will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends what has arrived.
    ///
    /// # Errors
    /// The file would be larger than it may, or the disk is full.
    pub fn append(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let len = self.len + bytes.len() as u64;
        if let Some(max) = self.folder.max_size {
            ensure!(len <= max, "the file is larger than {max} bytes");
        }
        self.file
            .write_all(bytes)
            .with_context(|| format!("cannot write {}", self.path.display()))?;
        self.sum.update(bytes);
        self.len = len;
        Ok(())
    }

    /// Checks that the file is what has arrived, and what the sender says that it has sent, and gives it its
    /// name.
    ///
    /// # Errors
    /// It is not; or there is another file of that name by now, and it may not be replaced.
    pub fn finish(self, sent: Option<Digest>) -> anyhow::Result<Received> {
        let Self {
            folder,
            path,
            file,
            len,
            sum,
        } = self;
        let sum = sum.finalize();
        if let Some(sent) = sent {
            ensure!(
                sent == Digest { len, sum },
                "{len} bytes with CRC-32 {sum:08x} have arrived, and the peer has sent {} with {:08x}",
                sent.len,
                sent.sum
            );
        }
        file.as_file().sync_all()?;
        let written = checksum(&file.reopen()?)?;
        ensure!(
            written == (len, sum),
            "{len} bytes with CRC-32 {sum:08x} have arrived, and {} with {:08x} are in the file",
            written.0,
            written.1
        );
        let named = match folder.force {
            true => file.persist(&path),
            false => file.persist_noclobber(&path),
        };
        named.with_context(|| format!("the file cannot become {}", path.display()))?;
        Ok(Received { path, len, sum })
    }
}

/// The size and the CRC-32 of a file, from where it is to its end.
///
/// # Errors
/// It cannot be read.
pub fn checksum(mut file: &File) -> anyhow::Result<(u64, u32)> {
    let mut sum = Hasher::new();
    let mut len = 0;
    let mut bytes = vec![0; 1 << 16];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok((len, sum.finalize())),
            count => {
                sum.update(&bytes[..count]);
                len += count as u64;
            }
        }
    }
}

/// The name of a file, as a peer has written it, with a zero byte at its end. It must be a name and
/// not a path: a peer must not choose the folder.
fn file_name(bytes: &[u8]) -> anyhow::Result<OsString> {
    let shown = || bytes.escape_ascii();
    ensure!(
        bytes.len() <= MAX_NAME_LEN,
        "the peer has sent a file name of {} bytes",
        bytes.len()
    );
    let name = match bytes.split_last() {
        Some((0, name)) => name,
        _ => anyhow::bail!(
            "the peer has sent a file name without an end: \"{}\"",
            shown()
        ),
    };
    ensure!(
        !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0),
        "the peer has sent a file name that is none: \"{}\"",
        shown()
    );
    Ok(OsString::from_vec(name.to_vec()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folder(force: bool) -> (tempfile::TempDir, Folder) {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder {
            path: dir.path().to_owned(),
            force,
            max_size: Some(100),
        };
        (dir, folder)
    }

    fn files(folder: &Folder) -> Vec<OsString> {
        let mut names: Vec<_> = fs::read_dir(&folder.path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_gets_its_name_when_it_is_whole() {
        let (_dir, folder) = folder(false);
        let mut incoming = folder.begin(b"name\0").unwrap();
        incoming.append(b"123").unwrap();
        incoming.append(b"456789").unwrap();
        assert!(!folder.path.join("name").exists());
        let received = incoming.finish(None).unwrap();
        assert_eq!(
            received,
            Received {
                path: folder.path.join("name"),
                len: 9,
                sum: 0xcbf4_3926,
            }
        );
        assert_eq!(fs::read(&received.path).unwrap(), b"123456789");
        let mode = fs::metadata(&received.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7133, 0, "{mode:o}");
    }

    #[test]
    fn file_that_differs_from_the_senders_digest_is_not_kept() {
        let (_dir, folder) = folder(false);
        let sent = Digest {
            len: 9,
            sum: 0xcbf4_3926,
        };
        for (arrived, kept) in [
            ("12345678", false),
            ("123456780", false),
            ("123456789", true),
        ] {
            let mut incoming = folder.begin(b"name\0").unwrap();
            incoming.append(arrived.as_bytes()).unwrap();
            let finished = incoming.finish(Some(sent));
            assert_eq!(finished.is_ok(), kept, "{arrived}: {finished:?}");
            assert_eq!(folder.path.join("name").exists(), kept);
        }
    }

    #[test]
    fn half_a_file_leaves_nothing() {
        let (_dir, folder) = folder(false);
        let mut incoming = folder.begin(b"name\0").unwrap();
        incoming.append(b"half").unwrap();
        drop(incoming);
        assert!(files(&folder).is_empty());
    }

    #[test]
    fn a_file_is_replaced_by_force_only() {
        let (_dir, mut folder) = folder(false);
        fs::write(folder.path.join("name"), "old").unwrap();
        let err = folder.begin(b"name\0").unwrap_err().to_string();
        assert!(err.contains("name is there already; --force"), "{err}");
        // One that comes to be meanwhile is not replaced either.
        let incoming = folder.begin(b"other\0").unwrap();
        fs::write(folder.path.join("other"), "old").unwrap();
        let err = incoming.finish(None).unwrap_err().to_string();
        assert!(err.contains("the file cannot become"), "{err}");
        assert_eq!(fs::read(folder.path.join("other")).unwrap(), b"old");

        folder.force = true;
        let mut incoming = folder.begin(b"name\0").unwrap();
        incoming.append(b"new").unwrap();
        assert_eq!(fs::read(folder.path.join("name")).unwrap(), b"old");
        incoming.finish(None).unwrap();
        assert_eq!(fs::read(folder.path.join("name")).unwrap(), b"new");
        assert_eq!(files(&folder), ["name", "other"]);
    }

    #[test]
    fn a_peer_does_not_choose_the_folder() {
        let (_dir, folder) = folder(true);
        let long = [&[b'x'; 256][..], &[0]].concat();
        let wrong: [&[u8]; 11] = [
            b"",
            b"\0",
            b".\0",
            b"..\0",
            b"/etc/passwd\0",
            b"../name\0",
            b"a/../../b\0",
            b"a/\0",
            b"a\0b\0",
            b"name",
            &long,
        ];
        for name in wrong {
            assert!(folder.begin(name).is_err(), "{}", name.escape_ascii());
        }
        assert!(files(&folder).is_empty());
        assert_eq!(
            folder.begin(b"\x1b/\0").unwrap_err().to_string(),
            "the peer has sent a file name that is none: \"\\x1b/\\x00\""
        );
        assert!(folder.begin(b"...\0").is_ok());
        assert!(folder.begin(b"\xff\0").is_ok());
    }

    #[test]
    fn what_the_disk_changes_is_noticed() {
        let (_dir, folder) = folder(false);
        let mut incoming = folder.begin(b"name\0").unwrap();
        incoming.append(b"123456789").unwrap();
        fs::write(incoming.file.path(), "123456780").unwrap();
        let err = incoming.finish(None).unwrap_err().to_string();
        assert!(err.contains("CRC-32 cbf43926 have arrived"), "{err}");
        assert!(files(&folder).is_empty());
    }

    #[test]
    fn a_file_has_a_largest_size() {
        let (_dir, folder) = folder(false);
        let mut incoming = folder.begin(b"name\0").unwrap();
        incoming.append(&[0; 100]).unwrap();
        assert!(incoming.append(&[0]).is_err());
    }
}
