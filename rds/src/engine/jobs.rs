//! Calls into the kernel, made by the engine thread without the lock.
//!
//! Creating, connecting and destroying a queue pair, and deregistering memory, take up to
//! milliseconds. Sends and receives of other sockets continue meanwhile.

use std::{collections::VecDeque, time::Duration};

use verbs::panics::survive;

use super::{EngineState, Shared};
use crate::proto::node::ConnectionId;

/// The calls, which [change](Shared::change) the state by their results.
type Calls = Box<dyn FnOnce(&Shared) + Send>;

/// Calls into the kernel, for one connection or for none. `K` names a connection.
pub(super) struct Job<K> {
    pub(super) connection: Option<K>,
    pub(super) calls: Calls,
}

/// The requested jobs.
pub(super) struct Jobs<K> {
    queue: VecDeque<Job<K>>,
    /// The connection of the job in progress.
    running: Option<K>,
}

impl<K: Copy + PartialEq> Jobs<K> {
    pub(super) const fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            running: None,
        }
    }

    pub(super) fn push(&mut self, job: Job<K>) {
        self.queue.push_back(job);
    }

    /// Ends the job in progress.
    fn end(&mut self) {
        self.running = None;
    }

    /// Begins the next job.
    fn next(&mut self) -> Option<Calls> {
        let next = self.queue.pop_front();
        self.running = next.as_ref().and_then(|job| job.connection);
        next.map(|job| job.calls)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether a job of a connection is requested or in progress.
    pub(super) fn has(&self, connection: K) -> bool {
        let requested = self.queue.iter().filter_map(|job| job.connection);
        requested.chain(self.running).any(|of| of == connection)
    }
}

impl EngineState {
    /// Has the engine thread make calls without the lock.
    pub(super) fn unlocked(&mut self, calls: impl FnOnce(&Shared) + Send + 'static) {
        let calls = Box::new(calls);
        let connection = None;
        self.schedule.add_job(Job { connection, calls });
    }

    /// Has the engine thread make calls for a connection without the lock.
    pub(super) fn unlocked_for(
        &mut self,
        id: ConnectionId,
        calls: impl FnOnce(&Shared) + Send + 'static,
    ) {
        let (connection, calls) = (Some(id), Box::new(calls));
        self.schedule.add_job(Job { connection, calls });
    }

    /// Destroys an identifier in a thread of the reaper.
    pub(super) fn reap(&mut self, what: impl Send + 'static) {
        self.unlocked(|shared| shared.reaper.destroy(what));
    }
}

impl Shared {
    /// Changes the state, and performs the work caused by the change.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut EngineState, Duration) -> T) -> T {
        let mut state = self.lock_here();
        let now = self.now();
        let result = change(&mut state, now);
        state.drive(now);
        result
    }

    /// Makes the requested calls.
    pub(super) fn run_jobs(&self) {
        loop {
            let next = self.lock_here().schedule.jobs.next();
            let Some(calls) = next else {
                return;
            };
            if survive(|| calls(self)).is_none() {
                let mut state = self.lock_here();
                state.schedule.jobs.end();
                state.recover();
            }
        }
    }
}
