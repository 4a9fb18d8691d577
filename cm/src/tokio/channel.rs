//! Event channels whose events can be awaited.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use ::tokio::{
    io::{Interest, unix::AsyncFd},
    task::coop,
};
use futures_core::Stream;
use verbs::{Error, Refused, Result};

use crate::{channel::ChannelHandle, event::Event};

const CALL: &str = "tokio::EventChannel";

/// An [event channel](crate::EventChannel) whose events can be awaited, or taken as a [`Stream`]
/// without an end.
#[derive(Debug)]
pub struct EventChannel {
    channel: crate::EventChannel,
    watch: Watch,
}

/// A channel's descriptor, as the runtime watches it.
#[derive(Debug)]
pub(super) struct Watch(AsyncFd<Arc<ChannelHandle>>);

impl Watch {
    pub(super) fn new(channel: &crate::EventChannel) -> Result<Self> {
        let handle = Arc::clone(channel.handle());
        // SAFETY: the handle keeps its one descriptor open for as long as it exists, and `AsyncFd`
        // keeps the handle.
        unsafe { AsyncFd::register_with_interest(handle, Interest::READABLE) }
            .map(Self)
            .map_err(|failed| self::failed(failed.into_parts().1))
    }

    /// Waits for the next event of `channel`, which is the one that is watched.
    pub(super) async fn wait(&self, channel: &crate::EventChannel) -> Result<Event> {
        // An event that is there already counts against the task's budget, too.
        coop::consume_budget().await;
        loop {
            let mut ready = self.0.readable().await.map_err(failed)?;
            match channel.try_next()? {
                Some(event) => return Ok(event),
                // What has come since is noticed: clearing forgets only what `ready` has seen.
                None => ready.clear_ready(),
            }
        }
    }
}

impl EventChannel {
    /// Registers the descriptor with the runtime.
    ///
    /// # Errors
    /// The channel is given back, with whatever `epoll_ctl(2)` fails with.
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

    /// Waits for the next event. Any number of tasks can wait; an event goes to one of them.
    ///
    /// Cancel safe: an event is taken when it is returned.
    ///
    /// # Errors
    /// As for [`try_next`](crate::EventChannel::try_next).
    pub async fn wait(&self) -> Result<Event> {
        self.watch.wait(&self.channel).await
    }

    /// The channel, to make identifiers on.
    pub fn get_ref(&self) -> &crate::EventChannel {
        &self.channel
    }

    /// The channel, taken out of the runtime.
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
