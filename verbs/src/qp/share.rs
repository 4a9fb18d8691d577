//! Shares of a queue pair, for objects to be destroyed before the queue pair.

use std::{any::Any, sync::Arc};

use super::{pair::QueuePair, state::State, transport::Transport};

impl<T: Transport, S: State, SW, RW> QueuePair<T, S, SW, RW>
where
    SW: Send + 'static,
    RW: Send + 'static,
{
    /// A share of the queue pair, which exists as long as the share.
    pub(crate) fn share_inner(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.send_queue().inner) as _
    }
}
