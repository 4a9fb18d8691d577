//! Table of the program's descriptors on rsockets.

#![forbid(unsafe_code)]

use std::{
    process,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use interpose::{Table, set_errno};
use libc::c_int;
use rsocket_capi::{rclose, socket_of};

use crate::{
    attempts::{self, Substitute},
    fork::{MovingStream, Names},
    log,
    set_options::SetOptions,
    sockets::Name,
};

/// An rsocket, open until the last of the program's descriptors is closed.
#[derive(Debug)]
pub(crate) struct Rsocket {
    fd: c_int,
    /// Process that opened the rsocket; a child must not close it.
    process: u32,
    options: SetOptions,
    /// Addresses of a stream moved from TCP.
    names: OnceLock<Names>,
    /// The TCP connection, until the rsocket is closed.
    tcp: OnceLock<Arc<MovingStream>>,
    /// The TCP socket that takes over.
    substitute: Substitute,
    /// Local address before the last attempt to connect.
    bound: Mutex<Option<Name>>,
    /// Error of all calls, 0 for an rsocket.
    refusal: c_int,
}

/// Result of a call that fails with -1.
pub(crate) trait Failed {
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: Self = -1;
}

impl Failed for isize {
    const FAILED: Self = -1;
}

impl Rsocket {
    /// Returns the descriptor in `rsocket_capi`.
    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }

    /// A call that fails with an error, instead of an rsocket.
    pub(crate) fn refusing(errno: c_int) -> Arc<Self> {
        Arc::new(Self {
            fd: -1,
            process: 0,
            options: SetOptions::default(),
            names: OnceLock::new(),
            tcp: OnceLock::new(),
            substitute: Substitute::default(),
            bound: Mutex::default(),
            refusal: errno,
        })
    }

    /// Returns the error of a [refusing](Self::refusing) one.
    pub(crate) fn refusal(&self) -> Option<c_int> {
        (self.refusal != 0).then_some(self.refusal)
    }

    /// Returns the addresses of the TCP connection that the stream was.
    pub(crate) fn names(&self) -> Option<&Names> {
        self.names.get()
    }

    pub(crate) fn set_names(&self, names: Names) {
        // Moved once.
        let _: Result<(), Names> = self.names.set(names);
    }

    /// Keeps a TCP connection open as long as the rsocket.
    pub(crate) fn retain_tcp(&self, tcp: Arc<MovingStream>) {
        // Moved once.
        drop(self.tcp.set(tcp));
    }

    /// Returns the TCP socket that takes over.
    pub(crate) fn substitute(&self) -> &Substitute {
        &self.substitute
    }

    /// Returns the local address before the last attempt to connect, if bound.
    pub(crate) fn bound(&self) -> Option<Name> {
        let bound = self.bound.lock();
        bound.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_bound(&self, name: Option<Name>) {
        *self.bound.lock().unwrap_or_else(PoisonError::into_inner) = name;
    }

    /// Returns the options set by the program.
    pub(crate) fn options(&self) -> &SetOptions {
        &self.options
    }
}

impl Drop for Rsocket {
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
pub(crate) static SOCKETS: Table<Rsocket> = Table::new();

/// Returns the rsocket of a descriptor. One whose attempt TCP has taken over becomes a TCP socket here.
pub(crate) fn find(fd: c_int) -> Option<Arc<Rsocket>> {
    let rsocket = SOCKETS.find(fd)?;
    if rsocket.substitute.is_connected() {
        attempts::take_over(rsocket);
        return None;
    }
    Some(rsocket)
}

/// Takes ownership of an rsocket.
pub(crate) fn adopt(fd: c_int) -> Arc<Rsocket> {
    Arc::new(Rsocket {
        fd,
        process: process::id(),
        options: SetOptions::default(),
        names: OnceLock::new(),
        tcp: OnceLock::new(),
        substitute: Substitute::default(),
        bound: Mutex::default(),
        refusal: 0,
    })
}

/// Calls a function with an rsocket's own descriptor, or fails with the error of a [refusing](Rsocket::refusing) one.
pub(crate) fn with<T: Failed>(rsocket: &Rsocket, call: impl FnOnce(c_int) -> T) -> T {
    if let Some(errno) = rsocket.refusal() {
        set_errno(errno);
        return T::FAILED;
    }
    call(rsocket.fd())
}
