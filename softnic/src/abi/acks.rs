//! Counts of unacknowledged events: destroying an object waits until all of its events are acknowledged.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Number of unacknowledged events of an object.
#[derive(Debug, Default)]
pub(super) struct Acks {
    pending: Mutex<u32>,
    changed: Condvar,
}

impl Acks {
    fn lock(&self) -> MutexGuard<'_, u32> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an event, before its message is written.
    pub(super) fn add(&self) {
        *self.lock() += 1;
    }

    /// Subtracts events that were acknowledged or removed.
    pub(super) fn remove(&self, count: u32) {
        let mut pending = self.lock();
        *pending = pending.saturating_sub(count);
        self.changed.notify_all();
    }

    /// Blocks until all events are acknowledged.
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
