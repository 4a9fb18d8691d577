//! Which descriptors of the program are rsockets.

#![forbid(unsafe_code)]

use std::{process, sync::Arc};

use interpose::Table;
use libc::c_int;
use rsocket_capi::{rclose, socket_of};

use crate::log;

/// An rsocket, which the program may know by several descriptors. It is closed with the last.
#[derive(Debug)]
pub(crate) struct Held {
    fd: c_int,
    /// Whose it is: a child must not close it.
    process: u32,
}

impl Held {
    /// The descriptor by which `rsocket_capi` knows it.
    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.process != process::id() {
            return;
        }
        let socket = socket_of(self.fd);
        rclose(self.fd);
        if socket.is_some_and(|socket| socket.mirror_was_read()) {
            log::complain(
                "a socket was read by a call that this library does not see (splice, io_uring, or a system call \
                 past the C library), which took for the end of the stream what was none: run the program \
                 without this library",
            );
        }
    }
}

/// What each descriptor is.
pub(crate) static SOCKETS: Table<Held> = Table::new();

/// The rsocket that a descriptor stands for.
pub(crate) fn find(fd: c_int) -> Option<Arc<Held>> {
    SOCKETS.find(fd)
}

/// Takes over an rsocket.
pub(crate) fn hold(fd: c_int) -> Arc<Held> {
    Arc::new(Held {
        fd,
        process: process::id(),
    })
}

/// Runs a call with an rsocket's own descriptor.
pub(crate) fn with<T>(held: &Held, call: impl FnOnce(c_int) -> T) -> T {
    call(held.fd())
}
