//! Datagram sockets and their queue pairs.

#![forbid(unsafe_code)]

mod local;
pub(crate) mod resolve;
mod state;
mod udp;

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{SocketAddr, UdpSocket},
    os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd},
    sync::{Arc, Weak},
    time::Duration,
};

use cm::Key;
use rustix::event::epoll;
use verbs::waiting::{Guard, Source};

pub(crate) use local::PeerPath;
pub(crate) use state::DatagramState;

use crate::{
    engine::Engine,
    proto::{
        datagram::DatagramStats,
        stream::{Direction, Settings},
    },
    socket::Family,
    waiters::Interest,
    waiting::{Shared, WaitMode},
};

/// Lengths and source of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvMeta {
    /// Number of bytes copied to the buffers.
    pub len: usize,
    /// Length of the datagram in bytes. Bytes beyond `len` are lost; those of a stream stay queued.
    pub full_len: usize,
    /// Address of the sender; `None` at the end.
    pub source: Option<SocketAddr>,
}

impl RecvMeta {
    /// Returns the number of bytes and the sender; at the end, `UnexpectedEof`.
    pub(crate) fn with_source(self) -> io::Result<(usize, SocketAddr)> {
        let source = self.source.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok((self.len, source))
    }
}

/// A datagram socket. The [`Engine`] handles its UDP socket.
#[derive(Debug)]
pub(crate) struct DatagramSocket {
    shared: Shared<DatagramState, Arc<OwnedFd>>,
    engine: Arc<Engine>,
    /// Name in the engine.
    name: u64,
}

impl DatagramSocket {
    /// Creates an unbound socket.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        family: Family,
        settings: Settings,
    ) -> io::Result<Arc<Self>> {
        let completions = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let udp = udp::Udp::new(family)?;
        let name = engine.new_socket_name();
        Ok(Arc::new_cyclic(|this| {
            let state = DatagramState::new(
                Weak::clone(this),
                Arc::clone(engine),
                name,
                udp,
                Arc::clone(&completions),
                settings,
            );
            Self {
                shared: Shared::new(state, completions),
                engine: Arc::clone(engine),
                name,
            }
        }))
    }

    fn lock(&self) -> Guard<'_, DatagramState> {
        self.shared.lock()
    }

    /// The shared state and its waiters.
    pub(crate) fn shared(&self) -> &Shared<DatagramState, Arc<OwnedFd>> {
        &self.shared
    }

    /// Binds to a local address.
    pub(crate) fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        self.lock().bind(addr)
    }

    /// Sets the peer, or clears it.
    pub(crate) fn connect(&self, peer: Option<SocketAddr>) -> io::Result<()> {
        self.lock().connect(peer)
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.lock().local_addr()
    }

    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        self.lock().peer_addr()
    }

    pub(crate) fn settings(&self) -> Settings {
        self.lock().settings()
    }

    pub(crate) fn stats(&self) -> DatagramStats {
        self.lock().stats()
    }

    /// Changes the sizes, before the first use.
    pub(crate) fn set_settings(&self, set: impl FnOnce(&mut Settings)) -> io::Result<()> {
        self.lock().set_settings(set)
    }

    pub(crate) fn set_reuse_addr(&self, reuse: bool) -> io::Result<()> {
        self.lock().set_reuse_addr(reuse)
    }

    pub(crate) fn set_v6_only(&self, only: bool) -> io::Result<()> {
        self.lock().set_v6_only(only)
    }

    pub(crate) fn set_tos(&self, tos: u8) -> io::Result<()> {
        self.lock().set_tos(tos)
    }

    /// Whether a descriptor is the UDP socket's.
    pub(crate) fn keeps_fd(&self, fd: RawFd) -> bool {
        self.lock().keeps_fd(fd)
    }

    /// Duplicates the UDP socket.
    pub(crate) fn duplicate_udp(&self) -> io::Result<UdpSocket> {
        self.lock().duplicate_udp()
    }

    /// Takes the pending error.
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        self.lock().take_error()
    }

    /// Sends one datagram.
    pub(crate) fn send(
        &self,
        bufs: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        mode: WaitMode<'_>,
    ) -> io::Result<usize> {
        self.shared
            .until(Interest::WRITE, mode, |state| state.send(bufs, to))
    }

    /// Receives one datagram. `peek` leaves the datagram queued.
    pub(crate) fn recv(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        peek: bool,
        mode: WaitMode<'_>,
    ) -> io::Result<RecvMeta> {
        self.shared
            .until(Interest::READ, mode, |state| state.recv(bufs, peek))
    }

    /// The length in bytes of the next datagram to read, 0 if there is none.
    pub(crate) fn unread(&self) -> io::Result<usize> {
        let mut state = self.lock();
        state.process()?;
        Ok(state.unread())
    }

    /// Shuts down one or both directions locally. The peer is not notified.
    pub(crate) fn shut_down(&self, direction: Direction) -> io::Result<()> {
        self.lock().shut_down(direction)
    }

    /// Handles readiness of the UDP socket: a datagram, or room to send.
    pub(crate) fn udp_ready(&self) {
        self.lock().udp_ready();
    }

    /// Handles the end of a route resolution.
    pub(crate) fn path_resolved(&self, peer: SocketAddr, path: Option<PeerPath>) {
        self.lock().path_resolved(peer, path);
    }

    /// Drops the local endpoint on a removed device. Returns the device.
    pub(crate) fn device_removed(&self, key: Key) -> Option<verbs::Context> {
        self.lock().device_removed(key)
    }

    /// Stops sending because the process exits: calls of other threads block until [`cancel_exit`](Self::cancel_exit).
    /// Returns whether all sends have completed; `None` if another thread holds the lock. Called repeatedly.
    pub(crate) fn begin_exit(&self) -> Option<bool> {
        let mut state = self.shared.try_lock()?;
        state.set_exiting(true);
        Some(state.process().is_err() || state.is_flushed())
    }

    /// Ends the effect of [`begin_exit`](Self::begin_exit).
    pub(crate) fn cancel_exit(&self) {
        if let Some(mut state) = self.shared.try_lock() {
            state.set_exiting(false);
        }
    }

    /// Closes the socket after all sends have completed, or after `linger`.
    pub(crate) fn close(&self, linger: Duration) {
        if !self.lock().begin_close() {
            return;
        }
        let mode = WaitMode::from_timeout(Some(linger));
        let flushed = self.shared.until(Interest::ANY, mode, |state| {
            Ok(state.is_flushed().then_some(()))
        });
        // Datagrams not sent in time are lost.
        drop(flushed);
        let ended = self.lock().end();
        self.engine.remove_datagram_socket(self.name);
        for key in ended {
            self.engine.forget(key);
        }
    }
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.as_fd()
    }
}

impl Drop for DatagramSocket {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}
