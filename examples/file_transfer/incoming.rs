//! A file being received: name validation, temporary storage and verification.

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

/// Destination folder and the rules for files there.
#[derive(Clone, Debug)]
pub struct Folder {
    /// Path of the folder.
    pub path: PathBuf,
    /// Whether an existing file may be replaced.
    pub force: bool,
    /// Maximum file size, in bytes.
    pub max_size: Option<u64>,
}

/// A file not complete yet.
///
/// The bytes go to an unnamed temporary file. Only after the last byte, and after reading all of them back,
/// is the file linked under the final name. On failure no file remains.
#[derive(Debug)]
pub struct Incoming {
    folder: Folder,
    path: PathBuf,
    file: NamedTempFile,
    len: u64,
    sum: Hasher,
}

/// A received and verified file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Path of the file.
    pub path: PathBuf,
    /// Size, in bytes.
    pub len: u64,
    /// CRC-32 of the content.
    pub sum: u32,
}

impl Folder {
    /// Starts receiving a file of the given name.
    ///
    /// # Errors
    /// The name is not a plain file name; the file exists and may not be replaced; or the folder is not
    /// writable.
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
    /// Final path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends received bytes.
    ///
    /// # Errors
    /// The file would exceed the maximum size, or the disk is full.
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

    /// Verifies the stored bytes against the received ones and the sender's digest, then links the file under
    /// the final name.
    ///
    /// # Errors
    /// Verification failed; or the name was taken in the meantime and may not be replaced.
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

/// Size and CRC-32 of a file, from the current position to the end.
///
/// # Errors
/// Reading failed.
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

/// Parses a file name sent by a peer, with a terminating zero. Paths are refused: a peer must not choose the
/// folder.
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
        "the peer has sent an invalid file name: \"{}\"",
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
    fn incoming_finish_links_the_complete_file() {
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
    fn incoming_with_wrong_digest_is_discarded() {
        let (_dir, folder) = folder(false);
        let sent = Digest {
            len: 9,
            sum: 0xcbf4_3926,
        };
        for (arrived, remains) in [
            ("12345678", false),
            ("123456780", false),
            ("123456789", true),
        ] {
            let mut incoming = folder.begin(b"name\0").unwrap();
            incoming.append(arrived.as_bytes()).unwrap();
            let finished = incoming.finish(Some(sent));
            assert_eq!(finished.is_ok(), remains, "{arrived}: {finished:?}");
            assert_eq!(folder.path.join("name").exists(), remains);
        }
    }

    #[test]
    fn incoming_dropped_early_leaves_no_file() {
        let (_dir, folder) = folder(false);
        let mut incoming = folder.begin(b"name\0").unwrap();
        incoming.append(b"half").unwrap();
        drop(incoming);
        assert!(files(&folder).is_empty());
    }

    #[test]
    fn incoming_replaces_a_file_only_with_force() {
        let (_dir, mut folder) = folder(false);
        fs::write(folder.path.join("name"), "old").unwrap();
        let err = folder.begin(b"name\0").unwrap_err().to_string();
        assert!(err.contains("name is there already; --force"), "{err}");
        // A file created in the meantime is not replaced either.
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
    fn file_name_with_a_path_is_refused() {
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
            "the peer has sent an invalid file name: \"\\x1b/\\x00\""
        );
        assert!(folder.begin(b"...\0").is_ok());
        assert!(folder.begin(b"\xff\0").is_ok());
    }

    #[test]
    fn incoming_changed_on_disk_is_refused() {
        let (_dir, folder) = folder(false);
        let mut incoming = folder.begin(b"name\0").unwrap();
        incoming.append(b"123456789").unwrap();
        fs::write(incoming.file.path(), "123456780").unwrap();
        let err = incoming.finish(None).unwrap_err().to_string();
        assert!(err.contains("CRC-32 cbf43926 have arrived"), "{err}");
        assert!(files(&folder).is_empty());
    }

    #[test]
    fn incoming_above_max_size_is_refused() {
        let (_dir, folder) = folder(false);
        let mut incoming = folder.begin(b"name\0").unwrap();
        incoming.append(&[0; 100]).unwrap();
        assert!(incoming.append(&[0]).is_err());
    }
}
