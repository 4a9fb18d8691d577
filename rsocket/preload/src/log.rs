//! Log of the library, enabled by `RSOCKET_PRELOAD_LOG`.

#![forbid(unsafe_code)]

use std::{
    env,
    fs::{File, FileType, OpenOptions},
    io,
    os::{
        fd::AsFd,
        unix::fs::{FileTypeExt, MetadataExt},
    },
    process,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use verbs::fd::InternalFd;

/// Destination of the log.
#[derive(Debug)]
enum LogTarget {
    Nowhere,
    StandardError,
    File(LogFile),
}

/// A file whose number a program may close and open again for a stream, as `closefrom(3)` at the start of OpenSSH.
#[derive(Debug)]
struct LogFile {
    fd: InternalFd,
    /// Device and inode.
    identity: (u64, u64),
}

impl LogFile {
    fn new(file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self {
            identity: (metadata.dev(), metadata.ino()),
            fd: verbs::fd::raise(file.into()),
        })
    }

    /// Writes nothing if the number has another file or socket: a forked child may have closed it.
    fn write(&self, line: &str) {
        let identity = rustix::fs::fstat(&self.fd).map(|stat| (stat.st_dev, stat.st_ino));
        if identity == Ok(self.identity) {
            write(&self.fd, line);
        }
    }
}

fn target() -> &'static LogTarget {
    static TARGET: OnceLock<LogTarget> = OnceLock::new();
    TARGET.get_or_init(|| {
        let Some(value) = env::var_os("RSOCKET_PRELOAD_LOG") else {
            return LogTarget::Nowhere;
        };
        if value.is_empty() || value == "0" {
            return LogTarget::Nowhere;
        }
        if value == "1" {
            return LogTarget::StandardError;
        }
        let file = OpenOptions::new().append(true).create(true).open(value);
        file.and_then(LogFile::new)
            .map_or(LogTarget::StandardError, LogTarget::File)
    })
}

/// Writes a line with a system call, bypassing the interposed functions: standard error may be an rsocket.
fn write(to: impl AsFd, line: &str) {
    let line = format!("rspreload[{}]: {line}\n", process::id());
    // A failure to log cannot be reported.
    let _: rustix::io::Result<usize> = rustix::io::write(to, line.as_bytes());
}

/// Whether logging is enabled.
pub(crate) fn is_wanted() -> bool {
    !matches!(target(), LogTarget::Nowhere)
}

/// Logs the state of a socket, if enabled.
pub(crate) fn write_line(line: impl FnOnce() -> String) {
    match target() {
        LogTarget::Nowhere => {}
        LogTarget::StandardError => write(io::stderr(), &line()),
        LogTarget::File(file) => file.write(&line()),
    }
}

/// Reports the loss of a socket even without logging, unless standard error is itself a socket, possibly the
/// peer's.
pub(crate) fn warn(line: &str) {
    if is_wanted() {
        write_line(|| line.to_owned());
        return;
    }
    let stderr = io::stderr();
    let duplicate = stderr.as_fd().try_clone_to_owned().map(File::from);
    let kind = duplicate.and_then(|file| file.metadata());
    let is_socket = |kind: FileType| kind.is_socket();
    if kind.is_ok_and(|kind| !is_socket(kind.file_type())) {
        write(stderr, line);
    }
}

/// [Complains](complain) on the first call only.
pub(crate) fn warn_once(line: &str) {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, SeqCst) {
        warn(line);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::fd::AsRawFd};

    use super::*;

    #[test]
    fn log_is_written_to_its_file_only() {
        let folder = env::temp_dir().join(format!("rspreload-log-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let [path, other] = ["log", "other"].map(|name| folder.join(name));
        let log = LogFile::new(File::create(&path).unwrap()).unwrap();
        assert!(verbs::fd::is_internal(log.fd.as_raw_fd()));
        log.write("first");
        let LogFile { identity, .. } = log;
        let file = File::create(&other).unwrap();
        let fd = verbs::fd::raise(file.into());
        LogFile { fd, identity }.write("second");
        let written = fs::read_to_string(&path).unwrap();
        assert!(written.ends_with("]: first\n"), "{written}");
        assert_eq!(fs::read_to_string(&other).unwrap(), "");
        fs::remove_dir_all(&folder).unwrap();
    }
}
