//! Table of the program's descriptors on rsockets.

#![forbid(unsafe_code)]

use std::{process, sync::Arc};

use interpose::Table;
use libc::c_int;
use rsocket_capi::{rclose, socket_of};

use crate::{log, set_options::SetOptions};

/// An rsocket, open until the last of the program's descriptors is closed.
#[derive(Debug)]
pub(crate) struct Held {
    fd: c_int,
    /// Process that opened the rsocket; a child must not close it.
    process: u32,
    options: SetOptions,
}

impl Held {
    /// Returns the descriptor in `rsocket_capi`.
    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }

    /// Returns the options set by the program.
    pub(crate) fn options(&self) -> &SetOptions {
        &self.options
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
            log::warn(
                "a socket was read by a call that this library does not see (splice, io_uring, or a system call \
                 past the C library), which took for the end of the stream what was none: run the program \
                 without this library",
            );
        }
    }
}

/// Rsockets by the program's descriptors.
pub(crate) static SOCKETS: Table<Held> = Table::new();

/// Returns the rsocket of a descriptor.
pub(crate) fn find(fd: c_int) -> Option<Arc<Held>> {
    SOCKETS.find(fd)
}

/// Takes ownership of an rsocket.
pub(crate) fn hold(fd: c_int) -> Arc<Held> {
    Arc::new(Held {
        fd,
        process: process::id(),
        options: SetOptions::default(),
    })
}

/// Calls a function with an rsocket's own descriptor.
pub(crate) fn with<T>(held: &Held, call: impl FnOnce(c_int) -> T) -> T {
    call(held.fd())
}
