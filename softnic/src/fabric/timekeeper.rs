//! The thread of a fabric: delivers delayed frames and expires timers while programs are blocked.

use std::{
    sync::{Arc, PoisonError},
    thread,
    time::Duration,
};

use super::port::Shared;
use crate::abi;

/// Maximum sleep. The thread sleeps this long without a deadline, and is notified of a new deadline.
const IDLE: Duration = Duration::from_secs(3600);

/// Starts the thread, to be stopped by the drop of the fabric.
pub(super) fn start(shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    let started = abi::spawn_without_signals("softnic", move || keep_time(&shared));
    // If the thread cannot be started, frames still move while the program posts and polls.
    drop(started);
}

fn keep_time(shared: &Shared) {
    let mut network = shared.lock();
    while !shared.is_closed() {
        let now = shared.now(&network);
        let deadline = network.next_deadline();
        // Work without a deadline remains after a panic only.
        if deadline.is_some_and(|at| at <= now) || network.is_busy() {
            // Ends the processing of one frame or timer, and no other.
            let _survived: Option<()> = abi::survive(|| network.advance(now));
            // Yields to programs: timers of a few microseconds would otherwise hold the lock without a break.
            drop(network);
            thread::yield_now();
            network = shared.lock();
            continue;
        }
        let sleep = deadline.map_or(IDLE, |at| (at - now) / shared.speed());
        let (guard, _) = shared
            .changed
            .wait_timeout(network, sleep)
            .unwrap_or_else(PoisonError::into_inner);
        network = guard;
    }
}
