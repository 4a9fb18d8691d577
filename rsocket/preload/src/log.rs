//! Log of the library, enabled by `RSOCKET_PRELOAD_LOG`.

#![forbid(unsafe_code)]

use std::{
    env,
    fs::{File, FileType, OpenOptions},
    io,
    os::{fd::AsFd, unix::fs::FileTypeExt},
    process,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

/// Destination of the log.
#[derive(Debug)]
enum LogTarget {
    Nowhere,
    StandardError,
    File(File),
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
        file.map_or(LogTarget::StandardError, LogTarget::File)
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
        LogTarget::File(file) => write(file, &line()),
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
