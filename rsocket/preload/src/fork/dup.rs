//! Duplicates of the program's descriptors, with numbers that the program does not use.

#![forbid(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd},
    process,
};

use rustix::io::fcntl_dupfd_cloexec;

use super::INNER;

/// Lowest number of a duplicate. Below, `select` works and programs expect their own.
const LOWEST: i32 = 1024;

/// A duplicate, closed on drop by the process that made it, and in its children after a fork.
#[derive(Debug)]
pub(crate) struct Dup {
    fd: Option<OwnedFd>,
    process: u32,
}

impl Dup {
    pub(crate) fn new(of: BorrowedFd<'_>) -> io::Result<Self> {
        let fd = fcntl_dupfd_cloexec(of, LOWEST).or_else(|_| fcntl_dupfd_cloexec(of, 3))?;
        INNER.set(fd.as_raw_fd(), true);
        Ok(Self {
            fd: Some(fd),
            process: process::id(),
        })
    }

    /// Whether this process has made the duplicate.
    pub(crate) fn is_of_process(&self) -> bool {
        self.process == process::id()
    }

    pub(crate) fn get(&self) -> io::Result<BorrowedFd<'_>> {
        let fd = self.fd.as_ref().map(AsFd::as_fd);
        fd.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

/// Closes a duplicate of the parent in a child.
pub(crate) fn close_inherited(fd: i32) {
    crate::files::close_inner(fd);
}

impl Drop for Dup {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        if self.is_of_process() {
            INNER.set(fd.as_raw_fd(), false);
        } else {
            // Closed after the fork; the number may be another file's now.
            let _: i32 = fd.into_raw_fd();
        }
    }
}
