//! Waiting in tasks of [tokio](https://docs.rs/tokio) (feature `tokio`).
//!
//! Each type here wraps its namesake and waits for the same descriptor; [`WatchedFd`] is for
//! descriptors of the caller. Posting is unchanged, and nothing here spawns a task or a thread. The
//! thread that polls the future also polls completions and takes events; the runtime's driver only
//! watches the descriptor.
//!
//! Every future here is *cancel safe*: after a drop, the next future returns the same result. None
//! allocates, except for tokio's registration of a descriptor, once, when the wrapper is created. A
//! queue with constant work yields to other tasks from time to time, as tokio's own types do.
//!
//! Use other runtimes with [`poll_or_arm`](crate::CompletionQueue::poll_or_arm) and
//! [`notify_fd`](crate::CompletionQueue::notify_fd).
//!
//! # Examples
//! ```no_run
//! use verbs::{Completed, QueuePair, Rts};
//!
//! async fn answer(
//!     cq: verbs::CompletionQueue, // created `waitable`
//!     mut qp: QueuePair<verbs::Rc, Rts>,
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
/// - `watched_fd` always returns the same descriptor, open for as long as the value exists.
unsafe trait Watchable {
    fn watched_fd(&self) -> RawFd;
}

// SAFETY: the descriptor is made with the channel, and closed with the channel, after its last
// handle.
unsafe impl Watchable for Arc<ChannelHandle> {
    fn watched_fd(&self) -> RawFd {
        // The channel's own descriptor, since the runtime only watches the descriptor.
        self.event_fd().as_raw_fd()
    }
}

// SAFETY: as above, for the channel kept by `self`.
unsafe impl Watchable for crate::cq::CompletionChannel {
    fn watched_fd(&self) -> RawFd {
        self.handle().event_fd().as_raw_fd()
    }
}

// SAFETY: the descriptor is made with the value, and closed with the value.
unsafe impl Watchable for crate::event::AsyncEvents {
    fn watched_fd(&self) -> RawFd {
        self.as_raw_fd()
    }
}

/// A descriptor watched by the runtime.
#[derive(Debug)]
struct Watched<T: Watchable>(AsyncFd<AsRawSource<T>>);

#[derive(Debug)]
struct AsRawSource<T>(T);

impl<T: Watchable> AsRawFd for AsRawSource<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.watched_fd()
    }
}

impl<T: Watchable> Watched<T> {
    fn new(call: &'static str, value: T) -> Result<Self, Refused<T>> {
        // SAFETY: `AsyncFd` owns the value, and the value keeps one descriptor open, as its trait
        // promises.
        let watched =
            unsafe { AsyncFd::register_with_interest(AsRawSource(value), Interest::READABLE) };
        watched.map(Self).map_err(|failed| {
            let (AsRawSource(value), err) = failed.into_parts();
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

    /// Calls `attempt` until there is a result, sleeping in between. Before returning none, `attempt`
    /// must have found the descriptor unreadable, or armed a queue.
    async fn until<F>(
        &self,
        call: &'static str,
        mut attempt: impl FnMut() -> Result<Option<F>>,
    ) -> Result<F> {
        coop::consume_budget().await;
        loop {
            if let Some(found) = attempt()? {
                return Ok(found);
            }
            let readable = self.0.readable().await;
            let mut readable =
                readable.map_err(|err| Error::refused(call, err.kind(), err.to_string()))?;
            // Cleared before the call: an event after the call makes the descriptor readable anew.
            readable.clear_ready();
        }
    }
}
