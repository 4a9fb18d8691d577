//! Calls into the kernel, made by the engine thread without the lock.
//!
//! Creating, connecting and destroying a queue pair, and deregistering memory, take up to
//! milliseconds. Sends and receives of other sockets continue meanwhile.

use std::time::Duration;

use super::{Reaper, Shared, State};

/// The calls. Returns the change of the state, made with the lock.
pub(super) type Job = Box<dyn FnOnce(&Reaper) -> Change + Send>;
pub(super) type Change = Box<dyn FnOnce(&mut State, Duration)>;

impl State {
    /// Has the engine thread make calls without the lock, and then change the state.
    pub(super) fn unlocked<C>(&mut self, calls: impl FnOnce(&Reaper) -> C + Send + 'static)
    where
        C: FnOnce(&mut Self, Duration) + 'static,
    {
        let job: Job = Box::new(|reaper| Box::new(calls(reaper)));
        self.schedule.add_job(job);
    }

    /// Has the engine thread make calls without the lock.
    pub(super) fn call_unlocked(&mut self, calls: impl FnOnce(&Reaper) + Send + 'static) {
        self.unlocked(|reaper| {
            calls(reaper);
            |_: &mut Self, _| {}
        });
    }

    /// Destroys an identifier in a thread of the reaper.
    pub(super) fn reap(&mut self, what: impl Send + 'static) {
        self.call_unlocked(|reaper| reaper.destroy(what));
    }
}

impl Shared {
    /// Makes the requested calls.
    pub(super) fn run_jobs(&self, reaper: &Reaper) {
        loop {
            let next = self.lock_here().schedule.jobs.pop_front();
            let Some(job) = next else {
                return;
            };
            let change = job(reaper);
            let mut state = self.lock_here();
            let now = self.now();
            change(&mut state, now);
            state.drive(now);
        }
    }
}
