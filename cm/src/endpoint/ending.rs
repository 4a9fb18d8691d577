//! How an endpoint's connection ends when it is not the endpoint that ends it.

use std::{
    io,
    time::{Duration, Instant},
};

use verbs::{Error, Result};

use crate::{
    connection::Connection,
    event::{ConnectFailure, Event},
};

/// How long an acknowledgement may take to be seen that the peer has sent before it ended the
/// connection: the device and the connection manager do not wait for each other.
const ACK: Duration = Duration::from_secs(1);

/// The end of a connection, as far as it has been noticed.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    stage: Stage,
    /// Why, if neither side has asked for it.
    cause: Option<ConnectFailure>,
}

/// How far the end of a connection has come.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// No end has been noticed.
    Open,
    /// The peer has ended the connection, and has its answer, with which everything in flight comes
    /// back, when nothing is being sent any more, or at this time.
    Due(Instant),
    /// The connection has ended.
    Over,
}

impl Ending {
    /// No end has been noticed.
    pub(crate) fn open() -> Self {
        Self {
            stage: Stage::Open,
            cause: None,
        }
    }

    /// Whether an end has been noticed.
    pub(crate) fn is_noticed(&self) -> bool {
        !matches!(self.stage, Stage::Open)
    }

    /// Notes that the connection has ended, and that the peer has its answer.
    pub(crate) fn set_over(&mut self) {
        self.stage = Stage::Over;
    }

    /// Takes notice of an event.
    pub(crate) fn notice<SW, RW>(
        &mut self,
        event: Event,
        connection: &mut Connection<SW, RW>,
    ) -> Result<()> {
        match event {
            Event::Disconnected { cause, .. } if !self.is_noticed() => {
                self.cause = cause;
                self.stage = Stage::Due(Instant::now() + ACK);
            }
            Event::DeviceRemoval(_) if !matches!(self.stage, Stage::Over) => {
                self.cause = Some(ConnectFailure::DeviceRemoved);
                self.stage = Stage::Over;
                connection.qp_mut().to_error()?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Goes on with the end while `call` waits for requests that are in flight: gives the peer its
    /// answer, if it is time. How long it may take until then, if not.
    ///
    /// # Errors
    /// - `NotConnected`: the connection has ended, and there are no such requests.
    pub(crate) fn advance<SW, RW>(
        &mut self,
        call: &'static str,
        connection: &mut Connection<SW, RW>,
        in_flight: usize,
    ) -> Result<Option<Duration>> {
        let mut due = None;
        if let Stage::Due(at) = self.stage {
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() || connection.qp().send_queue().in_flight() == 0 {
                self.answer(connection)?;
            } else {
                due = Some(left);
            }
        }
        if self.is_noticed() && in_flight == 0 {
            return Err(self.not_connected(call));
        }
        Ok(due)
    }

    /// The error of a call that waits for something in flight after the end.
    fn not_connected(&self, call: &'static str) -> Error {
        match &self.cause {
            Some(cause) => Error::refused(call, io::ErrorKind::NotConnected, cause.clone())
                .detail("the connection has ended, and nothing is in flight"),
            None => {
                let reason = "the connection has ended, and nothing is in flight";
                Error::refused(call, io::ErrorKind::NotConnected, reason)
            }
        }
    }

    /// Gives the peer its answer now, if it waits for one.
    pub(crate) fn answer<SW, RW>(&mut self, connection: &mut Connection<SW, RW>) -> Result<()> {
        if let Stage::Due(_) = self.stage {
            self.stage = Stage::Over;
            match connection.disconnect() {
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
        let ending = Ending {
            stage: Stage::Over,
            cause: Some(lost.clone()),
        };
        let error = ending.not_connected("rdma_get_recv_comp");
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
        assert_eq!(ConnectFailure::of(&error), Some(&lost));
        let asked = Ending {
            stage: Stage::Over,
            cause: None,
        };
        let error = asked.not_connected("rdma_get_recv_comp");
        assert_eq!(ConnectFailure::of(&error), None);
    }
}
