//! Calls that block until a test lets them go.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{Call, Failures};

/// A request to block the calls of one function on a host, in effect until dropped. Made by
/// [`Host::hold`](crate::Host::hold).
#[derive(Debug)]
#[must_use = "dropping it lets the calls continue"]
pub struct Holding {
    pub(super) failures: Arc<Failures>,
    pub(super) gate: Arc<Gate>,
}

impl Holding {
    /// Waits until a call is blocked, for at most `timeout`. Returns whether one is.
    pub fn wait_for_call(&self, timeout: Duration) -> bool {
        let state = self.gate.lock();
        let blocked = self
            .gate
            .changed
            .wait_timeout_while(state, timeout, |state| state.blocked == 0);
        blocked.unwrap_or_else(PoisonError::into_inner).0.blocked > 0
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.failures.remove_gate(&self.gate);
        self.gate.lock().is_open = true;
        self.gate.changed.notify_all();
    }
}

/// Blocks the calls of a function.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) call: Call,
    state: Mutex<HoldState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct HoldState {
    /// Number of calls blocked now.
    blocked: u64,
    is_open: bool,
}

impl Gate {
    pub(super) fn new(call: Call) -> Self {
        Self {
            call,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HoldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until the gate is open.
    pub(super) fn pass(&self) {
        let mut state = self.lock();
        state.blocked += 1;
        self.changed.notify_all();
        let passed = self.changed.wait_while(state, |state| !state.is_open);
        passed.unwrap_or_else(PoisonError::into_inner).blocked -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const TEST_TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn call_blocks_until_the_request_is_dropped() {
        let failures = Arc::new(Failures::new(0));
        let holding = failures.hold(Call::ModifyQp);
        assert!(!holding.wait_for_call(Duration::ZERO));
        assert_eq!(failures.attempt(Call::RegMr), Ok(()));
        thread::scope(|scope| {
            let call = scope.spawn(|| failures.attempt(Call::ModifyQp));
            assert!(holding.wait_for_call(TEST_TIMEOUT));
            assert!(!call.is_finished());
            drop(holding);
            assert_eq!(call.join().unwrap(), Ok(()));
        });
        assert_eq!(failures.attempt(Call::ModifyQp), Ok(()));
    }
}
