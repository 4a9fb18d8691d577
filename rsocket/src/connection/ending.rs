//! End of a connection: by either side, or by the exit of the process.

use std::{io, sync::PoisonError, time::Duration};

use cm::ConnectFailure;
use verbs::waiting::Source;

use super::{Cause, Connection, ConnectionState};
use crate::{
    exit::ExitPhase,
    failure::CallError,
    proto::stream::Direction,
    trace::note,
    waiters::Interest,
    waiting::{Pollable, WaitMode},
};

/// Number of doorbells in a row that may fail: the last one fails the connection.
const DOORBELLS: u8 = 3;

impl Connection {
    /// Shuts down one or both directions and notifies the peer. Without room for the message, the engine
    /// sends it later, without further calls by the program.
    pub(crate) fn shut_down(&self, direction: Direction) -> io::Result<()> {
        let mut state = self.shared.lock();
        note!(debug, state.span, ?direction, "shutting down");
        // Data received before stays readable.
        state.catch_up();
        if let ExitPhase::Ending(_) = state.exit_phase
            && !state.exit_phase.blocks()
        {
            // A destructor may wait for a thread that is blocked on the stream.
            state.exit_phase = ExitPhase::Running;
        }
        state.stream.shut_down(direction);
        state.process()?;
        state.wake();
        let has_sent_shutdown = state.stream.has_sent_shutdown();
        drop(state);
        if !has_sent_shutdown && let Some(engine) = self.engine.upgrade() {
            engine.deliver_later(self.key);
        }
        Ok(())
    }

    /// Whether all retained bytes and the messages of all shutdowns have been sent, or the connection is over.
    pub(crate) fn has_sent(&self) -> io::Result<bool> {
        let mut state = self.shared.lock();
        state.process()?;
        Ok(state.unsent.is_empty() && state.stream.has_sent_shutdown())
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

    /// Disconnects because the process exits. From now on, `phase` decides about calls.
    /// Returns whether the peer has acknowledged all data, or the connection is over; `None` if another thread
    /// holds the lock. Called repeatedly.
    pub(crate) fn begin_exit(&self, phase: ExitPhase) -> Option<bool> {
        let mut state = self.shared.try_lock()?;
        state.exit_phase = phase;
        state.stream.shut_down(Direction::Both);
        // A failed device delivers nothing more.
        Some(state.process().is_err() || state.is_flushed())
    }

    /// Ends the effect of [`begin_exit`](Self::begin_exit) on calls, without waking any, unless a thread ends the process.
    pub(crate) fn cancel_exit(&self) {
        if let Some(mut state) = self.shared.try_lock()
            && let ExitPhase::Disconnecting = state.exit_phase
        {
            state.exit_phase = ExitPhase::Running;
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

impl ConnectionState {
    /// Rings a doorbell that has failed again, by an empty write. After [`DOORBELLS`] failures, the connection fails with
    /// the error: the requests would stay with the device, unexecuted.
    #[cold]
    pub(super) fn ring_again(&mut self, error: &verbs::Error) -> io::Result<()> {
        self.failed_doorbells += 1;
        if self.failed_doorbells >= DOORBELLS {
            return Err(self.fail_by(error));
        }
        self.stream.keep_alive();
        match self.stream.control() {
            Some(outgoing) => self.post(outgoing, &[]),
            // Without a free slot, the requests in flight end first.
            None => Ok(()),
        }
    }

    /// Fails the connection by the error of a call. Returns the failure.
    #[cold]
    pub(super) fn fail_by(&mut self, error: &verbs::Error) -> io::Error {
        note!(warn, self.span, %error, "the kernel refuses calls of the connection");
        if self.cause.is_none() {
            self.cause = CallError::of(error).map(Cause::Call);
        }
        self.stream.lost();
        // Refused as well, unless another call has failed.
        drop(self.qp.to_error());
        self.wake();
        self.failure()
            .unwrap_or_else(|| io::ErrorKind::ConnectionReset.into())
    }
}
