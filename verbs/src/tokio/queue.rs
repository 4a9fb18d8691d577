//! Asynchronous completion queues.

use std::sync::Arc;

use super::Watched;
use crate::{
    cq::{ChannelHandle, Completions, ExtendedPoll},
    error::{Refused, Result},
};

/// Registers the channel of a queue with the runtime, if the channel is the queue's own.
fn watch(
    call: &'static str,
    own_channel: Result<Arc<ChannelHandle>>,
) -> Result<Watched<Arc<ChannelHandle>>> {
    Watched::new(call, own_channel?).map_err(|refused| refused.error)
}

/// An asynchronous [completion queue](crate::CompletionQueue).
///
/// # Examples
/// With a timeout, since every future here may be dropped:
/// ```
/// # #[tokio::main]
/// # async fn main() -> verbs::Result<()> {
/// # let (_peer, _qp, cq) = doctest::connected();
/// # let mut cq = verbs::tokio::CompletionQueue::new(cq)?;
/// use std::time::Duration;
/// use tokio::time::timeout;
/// match timeout(Duration::from_secs(1), cq.wait()).await {
///     Ok(completions) => println!("{} completions", completions?.len()),
///     Err(_) => println!("nothing for a second"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CompletionQueue {
    channel: Watched<Arc<ChannelHandle>>,
    cq: crate::CompletionQueue,
}

impl CompletionQueue {
    /// Wraps a [`waitable`](crate::cq::CompletionQueueBuilder::waitable) queue, and registers its
    /// descriptor with the runtime.
    ///
    /// # Errors
    /// The error returns the queue:
    /// - `Unsupported`: the queue is not waitable. Poll a queue with a shared channel with
    ///   [`poll_or_arm`](crate::CompletionQueue::poll_or_arm) after an event of its
    ///   [channel](super::CompletionChannel).
    /// - As for `epoll_ctl(2)`.
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn new(cq: crate::CompletionQueue) -> Result<Self, Refused<crate::CompletionQueue>> {
        const CALL: &str = "tokio::CompletionQueue::new";
        match watch(CALL, cq.own_channel(CALL)) {
            Ok(channel) => Ok(Self { channel, cq }),
            Err(error) => Err(Refused { value: cq, error }),
        }
    }

    /// Fetches completions, and waits for some if there are none: the iterator is never empty.
    ///
    /// Cancel safe. The next call returns the completions left in the iterator.
    ///
    /// # Errors
    /// As for [`wait`](crate::CompletionQueue::wait).
    pub async fn wait(&mut self) -> Result<Completions<'_>> {
        let Self { channel, cq } = self;
        channel
            .until("tokio::CompletionQueue::wait", || {
                Ok(cq.poll_or_arm()?.map(drop))
            })
            .await?;
        // The completions just found: none of them was taken.
        cq.poll()
    }

    /// The queue, for creating queue pairs.
    pub fn get_ref(&self) -> &crate::CompletionQueue {
        &self.cq
    }

    /// The queue, for polling without waiting, or resizing.
    pub fn get_mut(&mut self) -> &mut crate::CompletionQueue {
        &mut self.cq
    }

    /// Returns the queue, and removes the descriptor from the runtime.
    pub fn into_inner(self) -> crate::CompletionQueue {
        self.cq
    }
}

/// An asynchronous [extended completion queue](crate::cq::ExtendedCq).
#[derive(Debug)]
pub struct ExtendedCq {
    channel: Watched<Arc<ChannelHandle>>,
    cq: crate::cq::ExtendedCq,
}

impl ExtendedCq {
    /// Wraps a [`waitable`](crate::cq::ExtendedCqBuilder::waitable) queue, and registers its
    /// descriptor with the runtime.
    ///
    /// # Errors
    /// As for [`CompletionQueue::new`]; the error returns the queue.
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn new(cq: crate::cq::ExtendedCq) -> Result<Self, Refused<crate::cq::ExtendedCq>> {
        const CALL: &str = "tokio::ExtendedCq::new";
        match watch(CALL, cq.own_channel(CALL)) {
            Ok(channel) => Ok(Self { channel, cq }),
            Err(error) => Err(Refused { value: cq, error }),
        }
    }

    /// Reads completions, and waits for some if there are none.
    ///
    /// Cancel safe. The result stays in its thread, and so cannot be held across another `await`.
    ///
    /// # Errors
    /// As for [`wait`](crate::cq::ExtendedCq::wait).
    pub async fn wait(&mut self) -> Result<ExtendedPoll<'_>> {
        let Self { channel, cq } = self;
        channel
            .until("tokio::ExtendedCq::wait", || {
                Ok(cq.begin_or_arm()?.then_some(()))
            })
            .await?;
        Ok(cq.pending_poll())
    }

    /// The queue, for creating queue pairs.
    pub fn get_ref(&self) -> &crate::cq::ExtendedCq {
        &self.cq
    }

    /// The queue, for polling without waiting, or resizing.
    pub fn get_mut(&mut self) -> &mut crate::cq::ExtendedCq {
        &mut self.cq
    }

    /// Returns the queue, and removes the descriptor from the runtime.
    pub fn into_inner(self) -> crate::cq::ExtendedCq {
        self.cq
    }
}
