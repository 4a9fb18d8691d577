//! End of an endpoint's connection by the peer or by a failure.

use std::{
    io,
    time::{Duration, Instant},
};

use verbs::{CompletionQueue, Error, Result};

use crate::{
    connection::Connection,
    event::{ConnectFailure, Event},
};

/// Maximum delay of the answer to a disconnect, while sends are in flight. The device and the connection manager are
/// independent, so the disconnect can overtake the acknowledgement of the last message.
const ACK: Duration = Duration::from_secs(1);

/// Maximum time of a disconnect without another timeout, for the peer's answer. The connection manager retries for a time
/// chosen by the peer, of up to many hours.
pub(crate) const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Outcome of a disconnect by this side: an error if the connection manager has given up waiting for the peer's answer.
pub(crate) fn disconnected(call: &'static str, cause: Option<ConnectFailure>) -> Result<()> {
    match cause {
        Some(cause) if cause.kind() == io::ErrorKind::TimedOut => Err(cause.into_error(call)),
        _ => Ok(()),
    }
}

/// Error of a call without requests in flight after the end.
pub(super) fn ended(call: &'static str, cause: Option<&ConnectFailure>) -> Error {
    match cause {
        Some(cause) => Error::refused(call, io::ErrorKind::NotConnected, cause.clone())
            .detail("the connection has ended, and nothing is in flight"),
        None => {
            let reason = "the connection has ended, and nothing is in flight";
            Error::refused(call, io::ErrorKind::NotConnected, reason)
        }
    }
}

/// A connection to end: a whole endpoint, or one half of a split endpoint.
pub(crate) trait Closing {
    /// Number of requests in the send queue, as last recorded.
    fn sends_in_flight(&self) -> usize;

    /// Whether the device speaks iWARP, where only the disconnect flushes.
    fn is_iwarp(&self) -> bool;

    /// Puts the queue pair into the error state.
    fn to_error(&mut self) -> Result<()>;

    /// Ends the connection, or answers the disconnect of the peer.
    fn disconnect(&mut self) -> Result<()>;
}

impl<SW, RW> Closing for Connection<SW, RW> {
    fn sends_in_flight(&self) -> usize {
        self.qp().send_queue().in_flight()
    }

    fn is_iwarp(&self) -> bool {
        self.qp().pd().context().is_iwarp()
    }

    fn to_error(&mut self) -> Result<()> {
        self.qp_mut().to_error()
    }

    fn disconnect(&mut self) -> Result<()> {
        Self::disconnect(self)
    }
}

/// The end of a connection, as far as it has been noticed.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    stage: Stage,
    /// Cause, unless either side has disconnected.
    cause: Option<ConnectFailure>,
}

/// Progress of the end.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The connection is open.
    Open,
    /// The peer has disconnected. The answer, which flushes all requests in flight, is sent once no send is
    /// in flight, or at this time.
    Due(Instant),
    /// The connection has ended.
    Over,
}

impl Ending {
    /// Creates the state of an open connection.
    pub(crate) fn open() -> Self {
        Self {
            stage: Stage::Open,
            cause: None,
        }
    }

    /// Whether an end has been detected.
    pub(crate) fn is_noticed(&self) -> bool {
        !matches!(self.stage, Stage::Open)
    }

    /// Records that the connection has ended, and that the peer has the answer.
    pub(crate) fn set_over(&mut self, cause: Option<ConnectFailure>) {
        self.stage = Stage::Over;
        self.cause = cause;
    }

    /// Cause of the end, unless the connection is open, or either side has disconnected.
    pub(crate) fn cause(&self) -> Option<ConnectFailure> {
        self.cause.clone()
    }

    /// Answers a noticed disconnect of the peer, unless sends are in flight: a later call answers then.
    pub(crate) fn answer_if_idle(&mut self, closing: &mut impl Closing) -> Result<()> {
        match closing.sends_in_flight() {
            0 => self.answer(closing),
            _ => Ok(()),
        }
    }

    /// Answers a noticed disconnect of the peer, unless sends are in flight and the answer is not due.
    /// Returns the time until then otherwise.
    pub(crate) fn answer_if_due(&mut self, closing: &mut impl Closing) -> Result<Option<Duration>> {
        let Stage::Due(at) = self.stage else {
            return Ok(None);
        };
        let remaining = at.saturating_duration_since(Instant::now());
        if remaining.is_zero() || closing.sends_in_flight() == 0 {
            self.answer(closing)?;
            return Ok(None);
        }
        Ok(Some(remaining))
    }

    /// Takes notice of an event.
    pub(crate) fn notice(&mut self, event: Event, closing: &mut impl Closing) -> Result<()> {
        match event {
            Event::Disconnected { cause, .. } if !self.is_noticed() => {
                self.cause = cause;
                self.stage = Stage::Due(Instant::now() + ACK);
            }
            Event::DeviceRemoval(_) if !matches!(self.stage, Stage::Over) => {
                self.cause = Some(ConnectFailure::DeviceRemoved);
                self.stage = Stage::Over;
                closing.to_error()?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Continues the end while `call` waits for completions of `queue`, of the requests in flight: sends the answer to the peer
    /// if due. Returns the maximum time to wait before the next call, of zero if `queue` has completions.
    ///
    /// # Errors
    /// - `NotConnected`: the connection has ended, and there are no such requests.
    pub(crate) fn advance(
        &mut self,
        call: &'static str,
        closing: &mut impl Closing,
        queue: &mut CompletionQueue,
        in_flight: usize,
    ) -> Result<Option<Duration>> {
        let next_check = self.answer_if_due(closing)?;
        if self.is_noticed() && in_flight == 0 {
            return Err(ended(call, self.cause.as_ref()));
        }
        match self.flush_later_requests(closing, queue)? {
            true => Ok(next_check),
            false => Ok(Some(Duration::ZERO)),
        }
    }

    /// Flushes requests that were posted after the end. On Soft-RoCE, a receive posted in the error state stays in its queue until
    /// the next change to this state: `rxe_post_recv` of the provider makes no call of the kernel. Returns false if `queue` has
    /// completions now, whose event is taken: the caller must not wait for another one.
    fn flush_later_requests(
        &self,
        closing: &mut impl Closing,
        queue: &mut CompletionQueue,
    ) -> Result<bool> {
        let is_flushed = match (&self.stage, &self.cause) {
            (_, Some(ConnectFailure::DeviceRemoved)) => true,
            (Stage::Over, _) => closing.is_iwarp(),
            (Stage::Open | Stage::Due(_), _) => true,
        };
        if is_flushed {
            return Ok(true);
        }
        if queue.poll_or_arm()?.is_some() {
            return Ok(false);
        }
        closing.to_error()?;
        Ok(true)
    }

    /// Gives the peer its answer now, if it waits for one.
    pub(crate) fn answer(&mut self, closing: &mut impl Closing) -> Result<()> {
        if let Stage::Due(_) = self.stage {
            self.stage = Stage::Over;
            match closing.disconnect() {
                // A lost connection may have ended for the connection manager, too.
                Err(err) if self.cause.is_some() && err.raw_os_error() == Some(libc::EINVAL) => {}
                other => other?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_after_lost_connection_names_its_cause() {
        let lost = ConnectFailure::Unreachable {
            status: -libc::ETIMEDOUT,
        };
        let error = ended("rdma_get_recv_comp", Some(&lost));
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
        assert_eq!(ConnectFailure::of(&error), Some(&lost));
        let error = ended("rdma_get_recv_comp", None);
        assert_eq!(ConnectFailure::of(&error), None);
    }
}
