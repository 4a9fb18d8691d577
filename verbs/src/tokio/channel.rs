//! Asynchronous completion channels.

use super::Watched;
use crate::{
    cq::CqKey,
    error::{Refused, Result},
};

/// An asynchronous [completion channel](crate::cq::CompletionChannel), for many queues.
///
/// # Examples
/// ```no_run
/// # async fn f(ctx: verbs::Context) -> verbs::Result<()> {
/// use verbs::cq::CqKey;
/// let channel = ctx.create_comp_channel()?;
/// let mut cqs = Vec::new();
/// for i in 0..10 {
///     cqs.push(ctx.cq_builder(16).channel(&channel, CqKey(i)).create()?);
/// }
/// let channel = verbs::tokio::CompletionChannel::new(channel)?;
/// // Arms the queues, each of which then notifies once.
/// let mut ready: Vec<CqKey> = (0..10).map(CqKey).collect();
/// loop {
///     for CqKey(i) in ready.drain(..) {
///         while let Some(completions) = cqs[i].poll_or_arm()? {
///             completions.for_each(|wc| println!("queue {i}: {:?}", wc.status()));
///         }
///     }
///     ready.push(channel.wait().await?);
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct CompletionChannel {
    watched: Watched<crate::cq::CompletionChannel>,
}

impl CompletionChannel {
    /// Wraps a channel, and registers its descriptor with the runtime.
    ///
    /// # Errors
    /// As for `epoll_ctl(2)`; the error returns the channel.
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn new(
        channel: crate::cq::CompletionChannel,
    ) -> Result<Self, Refused<crate::cq::CompletionChannel>> {
        let watched = Watched::new("tokio::CompletionChannel::new", channel)?;
        Ok(Self { watched })
    }

    /// `ibv_get_cq_event`, `ibv_ack_cq_events`—Waits for the next event. Several tasks may wait;
    /// each event goes to one of them.
    ///
    /// Cancel safe: only a call that returns an event takes one.
    ///
    /// # Errors
    /// As for [`try_next`](crate::cq::CompletionChannel::try_next).
    pub async fn wait(&self) -> Result<CqKey> {
        let channel = self.get_ref();
        let wait = self
            .watched
            .until("tokio::CompletionChannel::wait", || channel.try_next());
        wait.await
    }

    /// The channel, for creating queues.
    pub fn get_ref(&self) -> &crate::cq::CompletionChannel {
        self.watched.get_ref()
    }

    /// Returns the channel, and removes the descriptor from the runtime.
    pub fn into_inner(self) -> crate::cq::CompletionChannel {
        self.watched.into_inner()
    }
}
