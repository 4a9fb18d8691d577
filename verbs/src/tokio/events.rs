//! Asynchronous events for `await`.

use super::Watched;
use crate::{
    error::{Refused, Result},
    event::AsyncEvent,
};

/// The [asynchronous events](crate::event::AsyncEvents) of a device, for `await`.
///
/// # Examples
/// ```no_run
/// # async fn f(ctx: verbs::Context) -> verbs::Result<()> {
/// let events = verbs::tokio::AsyncEvents::new(ctx.async_events()?)?;
/// loop {
///     println!("{:?}", events.wait().await?);
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
    /// As for `epoll_ctl(2)`; the events are given back.
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

    /// The events, to be taken without waiting.
    pub fn get_ref(&self) -> &crate::event::AsyncEvents {
        self.watched.get_ref()
    }

    /// The events, taken out of the runtime.
    pub fn into_inner(self) -> crate::event::AsyncEvents {
        self.watched.into_inner()
    }
}
