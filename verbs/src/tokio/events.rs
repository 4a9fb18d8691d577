//! Waiting for asynchronous events in tasks.

use super::Watched;
use crate::{
    error::{Refused, Result},
    event::AsyncEvent,
};

/// The [asynchronous events](crate::event::AsyncEvents) of a device, for tasks.
///
/// # Examples
/// ```
/// # #[tokio::main]
/// # async fn main() -> verbs::Result<()> {
/// # let (_fabric, ctx) = doctest::device_without_link();
/// let events = verbs::tokio::AsyncEvents::new(ctx.async_events()?)?;
/// loop {
///     println!("{:?}", events.wait().await?);
/// #   break Ok(());
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncEvents {
    watched: Watched<crate::event::AsyncEvents>,
}

impl AsyncEvents {
    /// Registers the descriptor of the events with the runtime.
    ///
    /// # Errors
    /// As for `epoll_ctl(2)`; the error returns the events.
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn new(
        events: crate::event::AsyncEvents,
    ) -> Result<Self, Refused<crate::event::AsyncEvents>> {
        let watched = Watched::new("tokio::AsyncEvents::new", events)?;
        Ok(Self { watched })
    }

    /// `ibv_get_async_event`, `ibv_ack_async_event`—Waits for the next event. Several tasks may
    /// wait; each event goes to one of them.
    ///
    /// Cancel safe: only a call that returns an event takes one.
    ///
    /// # Errors
    /// As for [`try_next`](crate::event::AsyncEvents::try_next).
    pub async fn wait(&self) -> Result<AsyncEvent> {
        let events = self.get_ref();
        let wait = self
            .watched
            .until("tokio::AsyncEvents::wait", || events.try_next());
        wait.await
    }

    /// The events, for taking without waiting.
    pub fn get_ref(&self) -> &crate::event::AsyncEvents {
        self.watched.get_ref()
    }

    /// Returns the events, and removes the descriptor from the runtime.
    pub fn into_inner(self) -> crate::event::AsyncEvents {
        self.watched.into_inner()
    }
}
