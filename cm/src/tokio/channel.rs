//! Asynchronous event channels.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use ::tokio::{
    io::{
        Interest,
        unix::{AsyncFd, AsyncFdReadyGuard},
    },
    task::coop,
};
use futures_core::Stream;
use verbs::{Error, Result, error::Refused};

use crate::{channel::ChannelHandle, event::Event};

const CALL: &str = "tokio::EventChannel";

/// An asynchronous [event channel](crate::EventChannel), also usable as an endless
/// [`Stream`](https://docs.rs/futures-core/0.3/futures_core/stream/trait.Stream.html).
#[derive(Debug)]
pub struct EventChannel {
    channel: crate::EventChannel,
    watch: Watch,
}

/// Registration of a channel's descriptor with the runtime.
#[derive(Debug)]
pub(super) struct Watch(AsyncFd<Arc<ChannelHandle>>);

impl Watch {
    pub(super) fn new(channel: &crate::EventChannel) -> Result<Self> {
        let handle = Arc::clone(channel.handle());
        // SAFETY: the handle keeps the same descriptor open for its whole lifetime, and `AsyncFd` keeps the
        // handle.
        unsafe { AsyncFd::register_with_interest(handle, Interest::READABLE) }
            .map(Self)
            .map_err(|failed| self::failed(failed.into_parts().1))
    }

    /// Waits until there may be an event.
    pub(super) async fn readable(&self) -> Result<AsyncFdReadyGuard<'_, Arc<ChannelHandle>>> {
        self.0.readable().await.map_err(failed)
    }

    /// Waits for the next event of `channel`, which is the one that is watched.
    pub(super) async fn wait(&self, channel: &crate::EventChannel) -> Result<Event> {
        // Events already pending count against the task's budget as well.
        coop::consume_budget().await;
        loop {
            let mut ready = self.0.readable().await.map_err(failed)?;
            match channel.try_next()? {
                Some(event) => return Ok(event),
                // Events since then are not missed: clearing affects only the readiness seen by `ready`.
                None => ready.clear_ready(),
            }
        }
    }
}

impl EventChannel {
    /// Registers the descriptor with the runtime.
    ///
    /// # Errors
    /// The channel is returned, with any error of `epoll_ctl(2)`.
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn new(channel: crate::EventChannel) -> Result<Self, Refused<crate::EventChannel>> {
        match Watch::new(&channel) {
            Ok(watch) => Ok(Self { channel, watch }),
            Err(error) => Err(Refused {
                value: channel,
                error,
            }),
        }
    }

    /// Waits for the next event. Any number of tasks can wait; each event goes to one of them.
    ///
    /// Cancel safe: an event is removed only when returned.
    ///
    /// # Errors
    /// As for [`try_next`](crate::EventChannel::try_next).
    pub async fn wait(&self) -> Result<Event> {
        self.watch.wait(&self.channel).await
    }

    /// The inner channel, for creating identifiers.
    pub fn get_ref(&self) -> &crate::EventChannel {
        &self.channel
    }

    /// Removes the channel from the runtime.
    pub fn into_inner(self) -> crate::EventChannel {
        self.channel
    }
}

impl Stream for EventChannel {
    type Item = Result<Event>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let mut ready = match ready!(self.watch.0.poll_read_ready(cx)) {
                Ok(ready) => ready,
                Err(err) => return Poll::Ready(Some(Err(failed(err)))),
            };
            match self.get_ref().try_next() {
                Ok(None) => ready.clear_ready(),
                Ok(Some(event)) => return Poll::Ready(Some(Ok(event))),
                Err(err) => return Poll::Ready(Some(Err(err))),
            }
        }
    }
}

fn failed(err: std::io::Error) -> Error {
    Error::refused(CALL, err.kind(), err)
}
