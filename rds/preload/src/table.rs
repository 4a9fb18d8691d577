//! Which descriptors of the program are sockets of this crate.

#![forbid(unsafe_code)]

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use interpose::Table;
use libc::c_int;
use rds::{Socket, proto::control::LatencyPoints};

use crate::binding;

/// What the program has chosen that the socket itself does not know.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chosen {
    pub(crate) nonblocking: bool,
    pub(crate) bound: bool,
    pub(crate) zero_copy: bool,
    /// The times that are to be told with each message.
    pub(crate) latency: Option<LatencyPoints>,
    /// `SO_TIMESTAMP`.
    pub(crate) timestamp: bool,
}

/// A socket, which the program may know by several descriptors. It is closed with the last.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) socket: Arc<Socket>,
    chosen: Mutex<Chosen>,
}

impl Held {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket: Arc::new(socket),
            chosen: Mutex::default(),
        }
    }

    pub(crate) fn chosen(&self) -> MutexGuard<'_, Chosen> {
        self.chosen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What each descriptor is.
pub(crate) static SOCKETS: Table<Held> = Table::new();

pub(crate) fn find(fd: c_int) -> Option<Arc<Held>> {
    SOCKETS.find(fd)
}

/// Runs a call for the program: its value, or -1 with `errno` set.
pub(crate) fn run<T: From<i8>>(call: impl FnOnce() -> io::Result<T>) -> T {
    interpose::run(rds::errno, call)
}

/// The same for a call that uses a socket.
pub(crate) fn with<T: From<i8>>(held: &Held, call: impl FnOnce(&Held) -> io::Result<T>) -> T {
    run(|| {
        binding::complete_bind(&held.socket)?;
        call(held)
    })
}

/// The same for one that may only try it.
pub(crate) fn trying<T: From<i8>>(held: &Held, call: impl FnOnce(&Held) -> io::Result<T>) -> T {
    run(|| call(held))
}
