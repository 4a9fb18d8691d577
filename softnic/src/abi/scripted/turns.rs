//! The order of a test's closures that change attributes of a device.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
};

/// Lets one closure at a time change attributes, without a lock held while the closure runs.
#[derive(Default)]
pub(super) struct Turns {
    /// Thread and method of the running closure.
    current: Mutex<Option<(ThreadId, &'static str)>>,
    ended: Condvar,
}

/// The turn of a closure, until dropped.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, Option<(ThreadId, &'static str)>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until no closure of another thread runs.
    ///
    /// # Panics
    /// If a closure of this thread runs: the call would wait for itself.
    pub(super) fn start(&self, method: &'static str) -> Turn<'_> {
        let this_thread = thread::current().id();
        let current = self.lock();
        if let Some((thread, running)) = *current {
            assert!(
                thread != this_thread,
                "`{method}` was called from within the closure of `{running}`"
            );
        }
        let waited = self.ended.wait_while(current, |current| current.is_some());
        let mut current = waited.unwrap_or_else(PoisonError::into_inner);
        *current = Some((this_thread, method));
        Turn { turns: self }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.turns.lock() = None;
        self.turns.ended.notify_one();
    }
}
