//! What goes over a socket.

use std::{
    io::{self, IoSlice, IoSliceMut},
    sync::Arc,
    time::Duration,
};

use bitflags::bitflags;
use rustix::io::Errno;
use verbs::Memory;

use super::{Phase, Socket, os_error};
use crate::{connection::Patience, mapped::MappedBuffer, stream::Stream};

bitflags! {
    /// How to receive.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RecvFlags: u8 {
        /// Do not wait, even if the socket blocks.
        const DONT_WAIT = 1;
        /// Leave the bytes there, for the next call to receive them again. Never waits for all.
        const PEEK = 2;
        /// Wait until the buffers are full, or the stream ends.
        const WAIT_ALL = 4;
    }
}

impl Socket {
    /// The stream, waiting for the connection if that is allowed.
    fn connected(&self, dont_wait: bool) -> io::Result<Arc<Stream>> {
        loop {
            let opening = match &self.lock().phase {
                Phase::Connected(stream) => return Ok(Arc::clone(stream)),
                Phase::Opening(opening) => Arc::clone(opening),
                Phase::Closed => return Err(os_error(Errno::BADF)),
                Phase::Idle(_) | Phase::Listening(_) | Phase::Failed => {
                    return Err(io::ErrorKind::NotConnected.into());
                }
            };
            if dont_wait || self.is_nonblocking() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            opening.settle();
        }
    }

    fn patience(&self, dont_wait: bool, timeout: Option<Duration>) -> Patience {
        if dont_wait || self.is_nonblocking() {
            Patience::Watch(0)
        } else {
            Patience::from_timeout(timeout)
        }
    }

    /// Receives bytes, after waiting for some; 0 at the end.
    ///
    /// # Errors
    /// - `NotConnected`: there is no connection.
    /// - `WouldBlock`: there is nothing yet, and it may not wait, or not longer.
    /// - `Interrupted`: a signal came.
    /// - `ConnectionReset`, `InvalidData`: the connection has failed.
    pub fn recv(&self, bufs: &mut [IoSliceMut<'_>], flags: RecvFlags) -> io::Result<usize> {
        let dont_wait = flags.contains(RecvFlags::DONT_WAIT);
        let stream = self.connected(dont_wait)?;
        let timeout = self.lock().choices.read_timeout;
        let patience = self.patience(dont_wait, timeout);
        let connection = stream.connection();
        let peek = flags.contains(RecvFlags::PEEK);
        let mut done = connection.recv(bufs, peek, patience)?;
        if !flags.contains(RecvFlags::WAIT_ALL) || peek {
            return Ok(done);
        }
        let mut rest = bufs;
        let mut fresh = done;
        loop {
            IoSliceMut::advance_slices(&mut rest, fresh);
            if fresh == 0 || rest.iter().all(|buf| buf.is_empty()) {
                return Ok(done);
            }
            match connection.recv(rest, false, patience) {
                Ok(len) => {
                    done += len;
                    fresh = len;
                }
                // What has come counts; who comes back learns the rest.
                Err(_) => return Ok(done),
            }
        }
    }

    /// Sends bytes: all of them, if it may wait.
    ///
    /// # Errors
    /// - `NotConnected`: there is no connection.
    /// - `WouldBlock`: there is no room, and it may not wait, or not longer.
    /// - `Interrupted`: a signal came before anything was sent.
    /// - `BrokenPipe`, `ConnectionReset`: the connection has ended.
    pub fn send(&self, bufs: &[IoSlice<'_>], dont_wait: bool) -> io::Result<usize> {
        let stream = self.connected(dont_wait)?;
        let timeout = self.lock().choices.write_timeout;
        let patience = self.patience(dont_wait, timeout);
        stream.connection().send(bufs, patience)
    }

    /// Maps zero bytes for the peer; see [`Stream::map`].
    ///
    /// # Errors
    /// - `InvalidInput`: there is no connection.
    /// - As for [`Stream::map`].
    pub fn map(&self, len: usize, offset: Option<u64>) -> io::Result<MappedBuffer> {
        self.mappable()?.map(len, offset)
    }

    /// Maps memory of the caller's for the peer; see [`Stream::map_memory`].
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

    /// Writes to what the peer has mapped; see [`Stream::write_at`].
    ///
    /// # Errors
    /// - `NotConnected`: there is no connection.
    /// - As for [`Stream::write_at`].
    pub fn write_at(&self, bytes: &[u8], offset: u64, dont_wait: bool) -> io::Result<usize> {
        let stream = self.connected(dont_wait)?;
        let timeout = self.lock().choices.write_timeout;
        let patience = self.patience(dont_wait, timeout);
        stream.connection().write_at(bytes, offset, patience)
    }
}
