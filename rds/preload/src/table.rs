//! Table of RDS sockets by descriptor.

#![forbid(unsafe_code)]

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use interpose::Table;
use libc::c_int;
use rds::{Socket, proto::control::LatencyPoints};

use crate::binding;

/// Options kept outside of the socket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) nonblocking: bool,
    pub(crate) bound: bool,
    pub(crate) zero_copy: bool,
    /// Latencies to report with each message.
    pub(crate) latency: Option<LatencyPoints>,
    /// `SO_TIMESTAMP`.
    pub(crate) timestamp: bool,
}

/// A socket, shared by its duplicated descriptors and closed with the last.
#[derive(Debug)]
pub(crate) struct SocketEntry {
    pub(crate) socket: Arc<Socket>,
    settings: Mutex<Settings>,
}

impl SocketEntry {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket: Arc::new(socket),
            settings: Mutex::default(),
        }
    }

    pub(crate) fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sockets by descriptor.
pub(crate) static SOCKETS: Table<SocketEntry> = Table::new();

/// Whether a descriptor may be in the table, without a lock.
pub(crate) fn may_find(fd: c_int) -> bool {
    SOCKETS.may_have(fd)
}

pub(crate) fn find(fd: c_int) -> Option<Arc<SocketEntry>> {
    SOCKETS.find(fd)
}

/// Runs an interposed call; on error, sets `errno` and returns -1.
pub(crate) fn run<T: From<i8>>(call: impl FnOnce() -> io::Result<T>) -> T {
    interpose::run(rds::errno, call)
}

/// Runs a call that uses a socket, after a deferred bind.
pub(crate) fn with<T: From<i8>>(
    entry: &SocketEntry,
    call: impl FnOnce(&SocketEntry) -> io::Result<T>,
) -> T {
    run(|| {
        binding::complete_bind(&entry.socket)?;
        call(entry)
    })
}

/// Runs a call that does not use the socket, leaving a bind deferred.
pub(crate) fn trying<T: From<i8>>(
    entry: &SocketEntry,
    call: impl FnOnce(&SocketEntry) -> io::Result<T>,
) -> T {
    run(|| call(entry))
}
