//! How an endpoint's connection ends when it is not the endpoint that ends it.

use std::{
    io,
    time::{Duration, Instant},
};

use verbs::{Error, Result};

use crate::{connection::Connection, event::Event};

/// How long an acknowledgement may take to be seen that the peer has sent before it ended the
/// connection: the device and the connection manager do not wait for each other.
const ACK: Duration = Duration::from_secs(1);

/// What has been noticed of the end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending {
    /// Nothing.
    Open,
    /// The peer has ended the connection, and has its answer, with which everything in flight comes
    /// back, when nothing is being sent any more, or at this time.
    Due(Instant),
    /// The connection has ended.
    Over,
}

impl Ending {
    /// Whether it has been noticed at all.
    pub(crate) fn is_noticed(self) -> bool {
        !matches!(self, Self::Open)
    }

    /// Takes notice of an event.
    pub(crate) fn notice<SW, RW>(
        &mut self,
        event: &Event,
        connection: &mut Connection<SW, RW>,
    ) -> Result<()> {
        match event {
            Event::Disconnected(_) if !self.is_noticed() => {
                *self = Self::Due(Instant::now() + ACK);
            }
            Event::DeviceRemoval(_) if !matches!(self, Self::Over) => {
                *self = Self::Over;
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
        if let Self::Due(at) = *self {
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() || connection.qp().send_queue().in_flight() == 0 {
                self.answer(connection)?;
            } else {
                due = Some(left);
            }
        }
        if self.is_noticed() && in_flight == 0 {
            let reason = "the connection has ended, and nothing is in flight";
            return Err(Error::refused(call, io::ErrorKind::NotConnected, reason));
        }
        Ok(due)
    }

    /// Gives the peer its answer now, if it waits for one.
    pub(crate) fn answer<SW, RW>(&mut self, connection: &mut Connection<SW, RW>) -> Result<()> {
        if let Self::Due(_) = self {
            *self = Self::Over;
            connection.disconnect()?;
        }
        Ok(())
    }
}
