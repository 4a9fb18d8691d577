//! Listeners.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
};

use verbs::tokio::WatchedFd;

use super::{stream::Stream, watch};
use crate::{listener, options::Options};

/// Returns the result of an attempt, or `None` if the attempt would block.
fn unless_blocked<T>(result: io::Result<T>) -> Option<io::Result<T>> {
    match result {
        Err(err) if err.kind() == io::ErrorKind::WouldBlock => None,
        unless_blocked => Some(unless_blocked),
    }
}

/// A [listener](crate::Listener) for asynchronous tasks.
#[derive(Debug)]
pub struct Listener {
    listener: listener::Listener,
    watched: WatchedFd,
}

impl Listener {
    /// Listens at an address with the default [`Options`]. Must be called within a runtime.
    ///
    /// # Errors
    /// As for [`Options::listen`].
    pub fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::new(Options::new().listen(addr)?)
    }

    /// Wraps a listener and makes the listener nonblocking. Must be called within a runtime.
    ///
    /// # Errors
    /// The runtime cannot watch its descriptor.
    pub fn new(listener: listener::Listener) -> io::Result<Self> {
        listener.set_nonblocking(true);
        Ok(Self {
            watched: watch(&listener)?,
            listener,
        })
    }

    /// Takes the next connection. Dropping the future loses no connection.
    ///
    /// # Errors
    /// As for [`rsocket::Listener::accept`](crate::Listener::accept).
    pub async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let accepted = self
            .watched
            .readable(|| unless_blocked(self.listener.accept()));
        let (stream, peer) = accepted.await??;
        Ok((Stream::new(stream)?, peer))
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// As for [`rsocket::Listener::local_addr`](crate::Listener::local_addr).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}
