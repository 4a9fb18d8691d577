//! Counts of unacknowledged events: destroying an object waits until all of its events are acknowledged.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{check::ACK_TIMEOUT, fabric::Port};

/// Number of unacknowledged events of an object.
#[derive(Debug, Default)]
pub(super) struct Acks {
    pending: Mutex<u32>,
    changed: Condvar,
}

/// Waits until the events of a destroyed object are acknowledged. Returns false if the call would block for ever, after a
/// report: the object is not to be freed then, since an acknowledgement may still come.
pub(super) fn wait(port: &Port, acks: &Acks, call: &str) -> bool {
    let Some(checker) = port.checker() else {
        acks.wait();
        return true;
    };
    let is_done = acks.wait_timeout(ACK_TIMEOUT);
    if !is_done {
        checker.not_acknowledged(call);
        port.deliver_reports();
    }
    is_done
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

    /// Blocks until all events are acknowledged, at most for a time. Returns whether they are.
    fn wait_timeout(&self, timeout: Duration) -> bool {
        let pending = self.lock();
        let wait = self
            .changed
            .wait_timeout_while(pending, timeout, |pending| *pending > 0);
        let (pending, _) = wait.unwrap_or_else(PoisonError::into_inner);
        *pending == 0
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
