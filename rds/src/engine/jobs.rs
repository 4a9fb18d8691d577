//! Calls into the kernel, made by the engine thread without the lock.
//!
//! Creating, connecting and destroying a queue pair, and deregistering memory, take up to
//! milliseconds. Sends and receives of other sockets continue meanwhile.

use std::time::Duration;

use super::{Shared, State};

/// The calls, which [change](Shared::change) the state by their results.
pub(super) type Job = Box<dyn FnOnce(&Shared) + Send>;

impl State {
    /// Has the engine thread make calls without the lock.
    pub(super) fn unlocked(&mut self, calls: impl FnOnce(&Shared) + Send + 'static) {
        self.schedule.add_job(Box::new(calls));
    }

    /// Destroys an identifier in a thread of the reaper.
    pub(super) fn reap(&mut self, what: impl Send + 'static) {
        self.unlocked(|shared| shared.reaper.destroy(what));
    }
}

impl Shared {
    /// Changes the state, and performs the work caused by the change.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State, Duration) -> T) -> T {
        let mut state = self.lock_here();
        let now = self.now();
        let result = change(&mut state, now);
        state.drive(now);
        result
    }

    /// Makes the requested calls.
    pub(super) fn run_jobs(&self) {
        loop {
            let next = self.lock_here().schedule.jobs.pop_front();
            let Some(job) = next else {
                return;
            };
            job(self);
        }
    }
}
