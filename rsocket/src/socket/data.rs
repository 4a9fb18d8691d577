//! Sending and receiving on a socket.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem,
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use bitflags::bitflags;
use rustix::io::Errno;
use verbs::mr::Memory;

use super::{Phase, Socket, as_of_tcp, os_error};
use crate::{
    connection::Connection, datagram::RecvMeta, mapped::MappedBuffer, names::unmapped,
    stream::Stream, waiting::WaitMode,
};

bitflags! {
    /// Flags of a receive.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RecvFlags: u8 {
        /// Returns at once, even on a blocking socket.
        const DONT_WAIT = 1;
        /// Leaves the bytes in the buffer for the next receive.
        const PEEK = 2;
        /// Waits until the buffers are full or the stream ends; with `PEEK`, at most until the socket's receive buffer is full.
        const WAIT_ALL = 4;
    }
}

/// Options of a send: destination and blocking mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SendOptions {
    pub(crate) to: Option<SocketAddr>,
    pub(crate) dont_wait: bool,
}

impl SendOptions {
    /// Send to the connected peer, in the blocking mode of the socket.
    pub fn new() -> Self {
        Self::default()
    }

    /// Send to this address. Only for datagram sockets.
    #[must_use]
    pub fn to(mut self, addr: SocketAddr) -> Self {
        self.to = Some(addr);
        self
    }

    /// `MSG_DONTWAIT`—Send without blocking.
    #[must_use]
    #[doc(alias = "MSG_DONTWAIT")]
    pub fn dont_wait(mut self) -> Self {
        self.dont_wait = true;
        self
    }
}

/// Receives no bytes as Linux does: waits for a byte, and succeeds after the timeout or a signal too.
fn wait_for_byte(connection: &Connection, mode: WaitMode<'_>) -> io::Result<usize> {
    let mut byte = [0];
    match connection.recv(&mut [IoSliceMut::new(&mut byte)], true, mode) {
        Err(err) if mode.is_nonblocking() => Err(err),
        Err(err) => match err.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
            _ => Err(err),
        },
        Ok(_) => Ok(0),
    }
}

impl Socket {
    /// Returns the stream, waiting for the connection if allowed.
    fn connected(&self, dont_wait: bool) -> io::Result<Arc<Stream>> {
        loop {
            let state = self.lock();
            let connecting = match &state.phase {
                Phase::Connected(stream) => return Ok(Arc::clone(stream)),
                Phase::Connecting(connecting) => Arc::clone(connecting),
                // The program's next call is one of the other socket.
                Phase::Replaced { .. } => return Err(io::ErrorKind::WouldBlock.into()),
                Phase::Closed => return Err(os_error(Errno::BADF)),
                Phase::Failed => {
                    drop(state);
                    // As for TCP, the first call reports the failed attempt.
                    let error = self.take_error();
                    return Err(error.unwrap_or_else(|| io::ErrorKind::NotConnected.into()));
                }
                Phase::Idle(_) | Phase::Listening(_) | Phase::Ended(_) | Phase::Datagram(_) => {
                    return Err(io::ErrorKind::NotConnected.into());
                }
            };
            drop(state);
            if dont_wait || self.is_nonblocking() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            connecting.wait_for_end()?;
        }
    }

    fn wait_mode(&self, dont_wait: bool, timeout: Option<Duration>) -> WaitMode<'static> {
        if dont_wait || self.is_nonblocking() {
            WaitMode::Watch
        } else {
            WaitMode::from_timeout(timeout)
        }
    }

    /// Receives the bytes of a stream that have arrived, at least one, or one datagram, truncated to the
    /// buffer. Returns the number of bytes: 0 at the end of the stream, and after a
    /// [shutdown](Self::shutdown) of reading.
    ///
    /// Blocks until bytes arrive, also for an empty buffer, unless [nonblocking](Self::set_nonblocking).
    ///
    /// # Errors
    /// As for [`recv_msg`](Self::recv_msg).
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_len(buf, RecvFlags::empty())
    }

    /// Receives like [`recv`](Self::recv). Returns the number of bytes and the sender: on a stream, the peer.
    ///
    /// # Errors
    /// - `UnexpectedEof`: the stream has ended, or reading has been [shut down](Self::shutdown) and all
    ///   datagrams have been received.
    /// - As for [`recv_msg`](Self::recv_msg).
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_msg(&mut [IoSliceMut::new(buf)], RecvFlags::empty())?
            .with_source()
    }

    /// Receives like [`recv`](Self::recv), and leaves the bytes for the next receive.
    ///
    /// # Errors
    /// As for [`recv_msg`](Self::recv_msg).
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_len(buf, RecvFlags::PEEK)
    }

    /// Receives like [`recv_from`](Self::recv_from), and leaves the bytes for the next receive.
    ///
    /// # Errors
    /// As for [`recv_from`](Self::recv_from).
    pub fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_msg(&mut [IoSliceMut::new(buf)], RecvFlags::PEEK)?
            .with_source()
    }

    fn recv_len(&self, buf: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        let bufs = &mut [IoSliceMut::new(buf)];
        if self.datagram_socket().is_some() {
            return Ok(self.recv_msg(bufs, flags)?.len);
        }
        self.recv_stream(bufs, flags)
    }

    fn recv_stream(&self, bufs: &mut [IoSliceMut<'_>], flags: RecvFlags) -> io::Result<usize> {
        let received = match self.recv_bytes(bufs, flags) {
            // The failure has been reported: the end of the stream.
            Err(err) if self.was_reported(&err) => Ok(0),
            received => received,
        };
        self.reflect(false);
        received
    }

    /// Whether the error of a call is the failure of the connection, and an earlier call has reported the failure. Otherwise, this
    /// call reports it.
    fn was_reported(&self, error: &io::Error) -> bool {
        // The kernel's refusal of calls holds for each call.
        if !matches!(
            error.kind(),
            io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::TimedOut
                | io::ErrorKind::InvalidData
        ) {
            return false;
        }
        let mut state = self.lock();
        let Phase::Connected(stream) = &state.phase else {
            return false;
        };
        if stream.take_error().is_none() {
            return false;
        }
        let was_reported = mem::replace(&mut state.reported_failure, true);
        drop(state);
        if !was_reported {
            self.clear_mirror_error();
        }
        was_reported
    }

    fn recv_bytes(&self, bufs: &mut [IoSliceMut<'_>], flags: RecvFlags) -> io::Result<usize> {
        let dont_wait = flags.contains(RecvFlags::DONT_WAIT);
        let stream = self.connected(dont_wait)?;
        let timeout = self.lock().choices.read_timeout;
        let mode = self.wait_mode(dont_wait, timeout);
        let connection = stream.connection();
        let peek = flags.contains(RecvFlags::PEEK);
        if bufs.iter().all(|buf| buf.is_empty()) {
            return wait_for_byte(connection, mode);
        }
        let wait_all = flags.contains(RecvFlags::WAIT_ALL);
        if wait_all && peek && !mode.is_nonblocking() {
            return connection.peek_all(bufs, mode);
        }
        let mut done = connection.recv(bufs, peek, mode)?;
        if !wait_all || peek {
            return Ok(done);
        }
        let mut rest = bufs;
        let mut fresh = done;
        loop {
            IoSliceMut::advance_slices(&mut rest, fresh);
            if fresh == 0 || rest.iter().all(|buf| buf.is_empty()) {
                return Ok(done);
            }
            match connection.recv(rest, false, mode) {
                Ok(len) => {
                    done += len;
                    fresh = len;
                }
                // Report the received bytes; the next call reports the error.
                Err(_) => return Ok(done),
            }
        }
    }

    /// `FIONREAD`—Returns the number of bytes received and not yet read: of a stream, or of the next datagram.
    ///
    /// # Errors
    /// - `NotConnected`: the stream is not connected.
    /// - A device has failed.
    #[doc(alias = "FIONREAD")]
    pub fn unread(&self) -> io::Result<usize> {
        if let Some(datagram) = self.datagram_socket() {
            return datagram.unread();
        }
        let stream = self.stream().ok_or(io::ErrorKind::NotConnected)?;
        stream.connection().unread()
    }

    /// Returns the number of bytes sent and not yet acknowledged by the peer; 0 once all are.
    ///
    /// # Errors
    /// - `NotConnected`: the socket is not connected.
    /// - A device has failed.
    pub fn unacked(&self) -> io::Result<usize> {
        let stream = self.stream().ok_or(io::ErrorKind::NotConnected)?;
        stream.connection().unacked()
    }

    /// Sends bytes of a stream, or one datagram to the connected peer. Returns the number of bytes sent.
    ///
    /// Blocks until all bytes are sent, unless [nonblocking](Self::set_nonblocking).
    ///
    /// # Errors
    /// As for [`send_msg`](Self::send_msg).
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.send_msg(&[IoSlice::new(bytes)], &SendOptions::new())
    }

    /// Sends one datagram to an address. Returns its length. An unbound socket gets a local address.
    ///
    /// Blocks until there is room, unless [nonblocking](Self::set_nonblocking).
    ///
    /// # Errors
    /// As for [`send_msg`](Self::send_msg).
    pub fn send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.send_msg(&[IoSlice::new(bytes)], &SendOptions::new().to(to))
    }

    fn send_stream(&self, bufs: &[IoSlice<'_>], options: &SendOptions) -> io::Result<usize> {
        if options.to.is_some() {
            self.peer_addr()?;
            return Err(os_error(Errno::ISCONN));
        }
        let stream = self.connected(options.dont_wait)?;
        let timeout = self.lock().choices.write_timeout;
        let mode = self.wait_mode(options.dont_wait, timeout);
        let sent = match stream.connection().send(bufs, mode) {
            Err(err) if self.was_reported(&err) => Err(io::ErrorKind::BrokenPipe.into()),
            Err(err) => Err(as_of_tcp(&stream, err)),
            sent => sent,
        };
        let total = bufs.iter().map(|buf| buf.len()).sum();
        self.sent(sent, total)
    }

    /// Updates the mirror after a send of `total` bytes.
    fn sent(&self, sent: io::Result<usize>, total: usize) -> io::Result<usize> {
        let is_short = match &sent {
            Ok(len) => *len < total,
            Err(err) => err.kind() == io::ErrorKind::WouldBlock,
        };
        if is_short {
            self.starved();
        }
        self.reflect(false);
        sent
    }

    /// `recvmsg(2)`—Receives into several buffers, with flags: bytes of a stream, or one datagram, truncated to
    /// the buffers.
    ///
    /// Blocks until bytes arrive, unless [nonblocking](Self::set_nonblocking) or with
    /// [`DONT_WAIT`](RecvFlags::DONT_WAIT).
    ///
    /// # Errors
    /// - `NotConnected`: a stream socket is not connected. The first call after a failed attempt reports the error
    ///   of the attempt, unless [`take_error`](Self::take_error) has.
    /// - `WouldBlock`: no data, and the call may not wait or the [timeout](Self::set_read_timeout) has elapsed.
    /// - `Interrupted`: a signal interrupted the call.
    /// - `ConnectionReset`, `InvalidData`: the connection has failed. Reported once, by this call, [`send`](Self::send) or
    ///   [`take_error`](Self::take_error), as on Linux; 0 bytes are received later.
    /// - `InvalidInput`: a datagram socket without an address, without a peer and without an earlier send.
    /// - `ConnectionRefused`: the connected peer has no datagram socket at its address.
    pub fn recv_msg(&self, bufs: &mut [IoSliceMut<'_>], flags: RecvFlags) -> io::Result<RecvMeta> {
        let Some(datagram) = self.datagram_socket() else {
            let len = self.recv_stream(bufs, flags)?;
            let source = if len > 0 { self.peer_addr().ok() } else { None };
            return Ok(RecvMeta {
                len,
                full_len: len,
                source,
            });
        };
        let timeout = self.lock().choices.read_timeout;
        let mode = self.wait_mode(flags.contains(RecvFlags::DONT_WAIT), timeout);
        let received = datagram.recv(bufs, flags.contains(RecvFlags::PEEK), mode);
        self.reflect(false);
        received.map(|received| RecvMeta {
            source: received.source.map(|source| self.name_of(source)),
            ..received
        })
    }

    /// `sendmsg(2)`—Sends the bytes of several buffers, with options: on a stream, or as one datagram, to the
    /// connected peer or to an address. Returns the number of bytes sent: on a stream, fewer than passed if
    /// the call may not wait, or the [timeout](Self::set_write_timeout) has elapsed.
    ///
    /// # Errors
    /// - `NotConnected`: a stream socket is not connected; see [`recv_msg`](Self::recv_msg) about failed attempts.
    /// - `ConnectionReset`: the connection has ended. Reported once; see [`recv_msg`](Self::recv_msg).
    /// - `EISCONN`: an address was passed for a stream.
    /// - `EDESTADDRREQ`: no address was passed, and the socket is not connected.
    /// - `EMSGSIZE`: the datagram is too long; see [`datagram`](Self::datagram).
    /// - `EAFNOSUPPORT`: the address is of the other family.
    /// - `NetworkUnreachable`, `ENODEV`: no RDMA device leads to the address. `Unsupported`: the device on
    ///   the route is iWARP.
    /// - `ConnectionRefused`: an earlier datagram has found no datagram socket at the connected peer's
    ///   address.
    /// - `WouldBlock`: no room, and the call may not wait or the timeout has elapsed.
    /// - `BrokenPipe`: sending has been shut down, or the peer has disconnected.
    /// - `Interrupted`: a signal interrupted the call before the first byte.
    pub fn send_msg(&self, bufs: &[IoSlice<'_>], options: &SendOptions) -> io::Result<usize> {
        let Some(datagram) = self.datagram_socket() else {
            return self.send_stream(bufs, options);
        };
        let timeout = self.lock().choices.write_timeout;
        let mode = self.wait_mode(options.dont_wait, timeout);
        let sent = datagram.send(bufs, options.to.map(unmapped), mode);
        self.sent(sent, 0)
    }

    /// Maps zeroed bytes for the peer; see [`Stream::map`].
    ///
    /// # Errors
    /// - `InvalidInput`: the socket is not connected.
    /// - As for [`Stream::map`].
    pub fn map(&self, len: usize, offset: Option<u64>) -> io::Result<MappedBuffer> {
        self.mappable()?.map(len, offset)
    }

    /// Maps memory of the caller for the peer; see [`Stream::map_memory`].
    ///
    /// # Errors
    /// As for [`map`](Self::map).
    pub fn map_memory(
        &self,
        memory: impl Memory,
        len: usize,
        offset: Option<u64>,
    ) -> io::Result<MappedBuffer> {
        self.mappable()?.map_memory(memory, len, offset)
    }

    fn mappable(&self) -> io::Result<Arc<Stream>> {
        self.stream().ok_or_else(|| os_error(Errno::INVAL))
    }

    /// Writes into a mapping of the peer; see [`Stream::write_at`].
    ///
    /// # Errors
    /// - `NotConnected`: the socket is not connected.
    /// - As for [`Stream::write_at`].
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.write_mapped(bytes, offset, false)
    }

    /// Writes like [`write_at`](Self::write_at), without blocking.
    ///
    /// # Errors
    /// As for [`write_at`](Self::write_at).
    pub fn try_write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.write_mapped(bytes, offset, true)
    }

    fn write_mapped(&self, bytes: &[u8], offset: u64, dont_wait: bool) -> io::Result<usize> {
        let stream = self.connected(dont_wait)?;
        let timeout = self.lock().choices.write_timeout;
        let mode = self.wait_mode(dont_wait, timeout);
        stream.connection().write_at(bytes, offset, mode)
    }
}
