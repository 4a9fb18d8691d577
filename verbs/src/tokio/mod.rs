//! Waiting in tasks of [tokio](https://docs.rs/tokio) (feature `tokio`).
//!
//! Each type here wraps its namesake and waits for the same descriptor; [`WatchedFd`] is for
//! descriptors of the caller's own. Everything else is done as ever: nothing here posts, and nothing
//! spawns a task or a thread. Completions are polled, and events are taken, by the thread that polls
//! the future; the runtime's driver only watches the descriptor.
//!
//! Every future here is *cancel safe*: what it would have returned is still there for the next one.
//! None allocates, except for what tokio needs to register a descriptor, once, when the wrapper is
//! made. A queue that always has something gives way to other tasks from time to time, as tokio's
//! own types do.
//!
//! Other runtimes can do the same over [`poll_or_arm`](crate::CompletionQueue::poll_or_arm) and
//! [`notify_fd`](crate::CompletionQueue::notify_fd).
//!
//! # Examples
//! ```no_run
//! use verbs::{Completed, QueuePair, Rc, Rts};
//!
//! async fn answer(
//!     cq: verbs::CompletionQueue, // made `waitable`
//!     mut qp: QueuePair<Rc, Rts>,
//! ) -> verbs::Result<()> {
//!     let mut cq = verbs::tokio::CompletionQueue::new(cq)?;
//!     loop {
//!         for wc in cq.wait().await? {
//!             if let Ok(Completed::Receive(done)) = qp.complete(wc) {
//!                 println!("{:?}", done.received());
//!             }
//!         }
//!     }
//! }
//! ```

mod channel;
mod descriptor;
mod events;
mod queue;

use std::{
    os::fd::{AsRawFd, RawFd},
    sync::Arc,
};

use ::tokio::{
    io::{Interest, unix::AsyncFd},
    task::coop,
};

use crate::{
    cq::ChannelHandle,
    error::{Error, Refused, Result},
};

pub use channel::CompletionChannel;
pub use descriptor::WatchedFd;
pub use events::AsyncEvents;
pub use queue::{CompletionQueue, ExtendedCq};

/// An object with a descriptor for the runtime to watch.
///
/// # Safety
/// - `watched_fd` always gives the same descriptor, which is open for as long as the value exists.
unsafe trait Watchable {
    fn watched_fd(&self) -> RawFd;
}

// SAFETY: the descriptor is made with the channel, and closed with it, after its last handle.
unsafe impl Watchable for Arc<ChannelHandle> {
    fn watched_fd(&self) -> RawFd {
        // The channel's own, since the runtime does nothing but watch it.
        self.event_fd().as_raw_fd()
    }
}

// SAFETY: the descriptor is made with the channel, and closed with it, which this keeps.
unsafe impl Watchable for crate::CompletionChannel {
    fn watched_fd(&self) -> RawFd {
        self.as_raw_fd()
    }
}

// SAFETY: the descriptor is made with the value, and closed with it.
unsafe impl Watchable for crate::AsyncEvents {
    fn watched_fd(&self) -> RawFd {
        self.as_raw_fd()
    }
}

/// A descriptor that the runtime watches.
#[derive(Debug)]
struct Watched<T: Watchable>(AsyncFd<Source<T>>);

#[derive(Debug)]
struct Source<T>(T);

impl<T: Watchable> AsRawFd for Source<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.watched_fd()
    }
}

impl<T: Watchable> Watched<T> {
    fn new(call: &'static str, value: T) -> Result<Self, Refused<T>> {
        // SAFETY: `AsyncFd` owns the value, which keeps one descriptor open, as it promises.
        let watched = unsafe { AsyncFd::register_with_interest(Source(value), Interest::READABLE) };
        watched.map(Self).map_err(|failed| {
            let (Source(value), err) = failed.into_parts();
            let error = Error::refused(call, err.kind(), err.to_string());
            Refused { value, error }
        })
    }

    fn get_ref(&self) -> &T {
        &self.0.get_ref().0
    }

    fn into_inner(self) -> T {
        self.0.into_inner().0
    }

    /// Calls `look` until it finds something, sleeping in between. `look` must have found the
    /// descriptor unreadable, or armed a queue, before it finds nothing.
    async fn until<F>(
        &self,
        call: &'static str,
        mut look: impl FnMut() -> Result<Option<F>>,
    ) -> Result<F> {
        coop::consume_budget().await;
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            let readable = self.0.readable().await;
            let mut readable =
                readable.map_err(|err| Error::refused(call, err.kind(), err.to_string()))?;
            // Before looking: an event that comes after the look makes it readable anew.
            readable.clear_ready();
        }
    }
}
