//! Receiving from a connected stream.

use std::{
    io::{self, IoSliceMut},
    time::Instant,
};

use verbs::waiting::Source;

use super::Connection;
use crate::{waiters::Interest, waiting::WaitMode};

impl Connection {
    /// Receives the available bytes, after waiting for the first; 0 at the end of the stream. `peek` leaves
    /// the bytes in the buffer.
    pub(crate) fn recv(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        peek: bool,
        mode: WaitMode<'_>,
    ) -> io::Result<usize> {
        let _turn = self.receiving.take(mode)?;
        self.shared.until(Interest::READ, mode, |state| {
            if peek {
                // A caller may peek repeatedly for more bytes. `recv` reports a failure once no bytes are
                // left.
                drop(state.process());
            }
            state.recv(bufs, peek)
        })
    }

    /// Receives without taking the bytes, after waiting until the buffers can be filled, no more bytes will arrive, or none
    /// fit into the receive buffer.
    pub(crate) fn peek_all(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        mode: WaitMode<'_>,
    ) -> io::Result<usize> {
        let capacity: usize = bufs.iter().map(|buf| buf.len()).sum();
        let waited = self.shared.until(Interest::ANY, mode, |state| {
            // `recv` reports a failure once no bytes are left.
            drop(state.process());
            let stream = &state.stream;
            let is_over = !stream.is_readable() || stream.is_full() || state.failure().is_some();
            let has_all = stream.unread() as usize >= capacity;
            Ok((has_all || is_over).then_some(()))
        });
        match waited {
            Ok(()) => self.recv(bufs, true, mode),
            // Bytes that have arrived come before the error.
            Err(err) => {
                let at_once = WaitMode::Until(Instant::now());
                self.recv(bufs, true, at_once).map_err(|_| err)
            }
        }
    }

    /// Number of bytes received and not yet read.
    pub(crate) fn unread(&self) -> io::Result<usize> {
        let mut state = self.shared.lock();
        state.process()?;
        Ok(state.stream.unread() as usize)
    }
}
