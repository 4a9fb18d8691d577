//! Events that have been written and not acknowledged: destroying their object waits for them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Number of events of an object that the program has not acknowledged.
#[derive(Debug, Default)]
pub(super) struct Acks {
    pending: Mutex<u32>,
    changed: Condvar,
}

impl Acks {
    fn lock(&self) -> MutexGuard<'_, u32> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an event, before it is written.
    pub(super) fn add(&self) {
        *self.lock() += 1;
    }

    /// Notes that events were acknowledged, or removed.
    pub(super) fn remove(&self, count: u32) {
        let mut pending = self.lock();
        *pending = pending.saturating_sub(count);
        self.changed.notify_all();
    }

    /// Waits until all events have been acknowledged.
    pub(super) fn wait(&self) {
        let mut pending = self.lock();
        while *pending > 0 {
            pending = self
                .changed
                .wait(pending)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
