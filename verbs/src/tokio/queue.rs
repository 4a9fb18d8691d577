//! Completion queues whose completions can be awaited.

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

/// A [completion queue](crate::CompletionQueue) whose completions can be awaited.
///
/// # Examples
/// Waiting for several things at once, as every future here may be dropped:
/// ```no_run
/// # async fn f(mut cq: verbs::tokio::CompletionQueue) -> verbs::Result<()> {
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
    /// The queue is given back:
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

    /// The queue, for queue pairs to be made on.
    pub fn get_ref(&self) -> &crate::CompletionQueue {
        &self.cq
    }

    /// The queue, to be polled without waiting, or resized.
    pub fn get_mut(&mut self) -> &mut crate::CompletionQueue {
        &mut self.cq
    }

    /// The queue, taken out of the runtime.
    pub fn into_inner(self) -> crate::CompletionQueue {
        self.cq
    }
}

/// An [extended completion queue](crate::cq::ExtendedCq) whose completions can be awaited.
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
    /// As for [`CompletionQueue::new`]; the queue is given back.
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

    /// Begins to look at completions, and waits for some if there are none.
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
        Ok(cq.begun())
    }

    /// The queue, for queue pairs to be made on.
    pub fn get_ref(&self) -> &crate::cq::ExtendedCq {
        &self.cq
    }

    /// The queue, to be polled without waiting, or resized.
    pub fn get_mut(&mut self) -> &mut crate::cq::ExtendedCq {
        &mut self.cq
    }

    /// The queue, taken out of the runtime.
    pub fn into_inner(self) -> crate::cq::ExtendedCq {
        self.cq
    }
}
