//! End of a connection: by either side, or by the exit of the process.

use std::{io, sync::PoisonError, time::Duration};

use cm::ConnectFailure;
use verbs::waiting::Source;

use super::{Cause, Connection};
use crate::{
    proto::stream::Direction,
    trace::note,
    waiters::Interest,
    waiting::{Pollable, WaitMode},
};

impl Connection {
    /// Shuts down one or both directions and notifies the peer. Without room for the message, the engine
    /// sends it later, without further calls by the program.
    pub(crate) fn shut_down(&self, direction: Direction) -> io::Result<()> {
        let mut state = self.shared.lock();
        note!(debug, state.span, ?direction, "shutting down");
        state.stream.shut_down(direction);
        state.process()?;
        state.wake();
        let has_sent_shutdown = state.stream.has_sent_shutdown();
        drop(state);
        if !has_sent_shutdown && let Some(engine) = self.engine.upgrade() {
            engine.send_shutdown_later(self.key);
        }
        Ok(())
    }

    /// Whether the peer has been notified of every shutdown of this side, or the connection is over.
    pub(crate) fn has_sent_shutdown(&self) -> io::Result<bool> {
        let mut state = self.shared.lock();
        state.process()?;
        Ok(state.stream.has_sent_shutdown())
    }

    /// Waits until the peer has acknowledged all sent data, or the connection is over.
    pub(crate) fn flush(&self, mode: WaitMode<'_>) -> io::Result<()> {
        self.shared.until(Interest::ANY, mode, |state| {
            Ok(state.is_flushed().then_some(()))
        })
    }

    /// Whether the peer has acknowledged all sent data, or the connection is over.
    pub(crate) fn is_flushed(&self) -> io::Result<bool> {
        let mut state = self.shared.lock();
        state.process()?;
        Ok(state.is_flushed())
    }

    /// Disconnects because the process exits. Calls of other threads stay blocked until [`left`](Self::left).
    /// Returns whether the peer has acknowledged all data, or the connection is over; `None` if another thread
    /// holds the lock. Called repeatedly.
    pub(crate) fn leave(&self) -> Option<bool> {
        let mut state = self.shared.try_lock()?;
        state.exiting = true;
        state.stream.shut_down(Direction::Both);
        // A failed device delivers nothing more.
        Some(state.process().is_err() || state.is_flushed())
    }

    /// Ends the effect of [`leave`](Self::leave) on calls, without waking any.
    pub(crate) fn left(&self) {
        if let Some(mut state) = self.shared.try_lock() {
            state.exiting = false;
        }
    }

    /// Returns the time to wait for the peer at the end.
    pub(crate) fn linger(&self) -> Duration {
        *self.linger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_linger(&self, linger: Duration) {
        *self.linger.lock().unwrap_or_else(PoisonError::into_inner) = linger;
    }

    /// Handles a disconnect event of the connection manager. `cause` is set if neither side requested the
    /// disconnect.
    pub(crate) fn lost(&self, cause: Option<ConnectFailure>) {
        let mut state = self.shared.lock();
        // Data received before the disconnect stays readable.
        state.catch_up();
        match &cause {
            None => note!(debug, state.span, "disconnected"),
            Some(_cause) => note!(warn, state.span, cause = %_cause, "connection lost"),
        }
        state.stream.lost();
        if state.cause.is_none() {
            state.cause = cause.map(Cause::Connection);
        }
        // If the transition fails, the queue pair has already failed otherwise.
        drop(state.qp.to_error());
        state.wake();
    }
}
