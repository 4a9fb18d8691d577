//! Failures and delays of calls requested by a test, on hosts and on scripted devices.

#![forbid(unsafe_code)]

mod call;
mod hold;

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use crate::mix::mix;
pub use call::Call;
use hold::Gate;
pub use hold::Holding;

/// Which of the calls since a request fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// All calls.
    Every,
    /// One call: 1 is the next one.
    Nth(u64),
    /// One call of this number on average, chosen by the seed of the fabric, the host, the function and the number of the
    /// call since the request. 1 is every call.
    OneIn(u64),
}

impl When {
    /// Checks the parameter.
    fn check(self) {
        if let Self::Nth(number) | Self::OneIn(number) = self {
            assert!(number > 0, "calls are counted from 1");
        }
    }
}

/// A request for failures of one function on a host, in effect until dropped. Made by [`Host::fail`](crate::Host::fail).
///
/// # Examples
/// See [`Host::fail`](crate::Host::fail).
#[derive(Debug)]
#[must_use = "dropping it ends the failures"]
pub struct Failing {
    failures: Arc<Failures>,
    request: Arc<Request>,
}

impl Failing {
    /// Number of calls since the request, failed ones included.
    pub fn calls(&self) -> u64 {
        self.request.calls.load(Ordering::Relaxed)
    }

    /// Number of calls that failed because of this request.
    pub fn failed(&self) -> u64 {
        self.request.failed.load(Ordering::Relaxed)
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        self.failures.remove(&self.request);
    }
}

/// A requested failure.
#[derive(Debug)]
struct Request {
    call: Call,
    when: When,
    errno: i32,
    calls: AtomicU64,
    failed: AtomicU64,
}

impl Request {
    /// Counts a call, and decides whether the call is due to fail.
    fn count(&self, seed: u64) -> bool {
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        match self.when {
            When::Every => true,
            When::Nth(nth) => number == nth,
            When::OneIn(count) => {
                let random = mix(mix(mix(seed) ^ self.call as u64) ^ number);
                random.is_multiple_of(count)
            }
        }
    }
}

/// Requested failures of a host's calls, or of a scripted device's.
#[derive(Debug)]
pub(crate) struct Failures {
    seed: u64,
    /// Number of requests: calls without requests take no lock.
    len: AtomicUsize,
    requests: Mutex<Vec<Arc<Request>>>,
    /// Number of gates.
    gate_count: AtomicUsize,
    gates: Mutex<Vec<Arc<Gate>>>,
}

impl Failures {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            len: AtomicUsize::new(0),
            requests: Mutex::default(),
            gate_count: AtomicUsize::new(0),
            gates: Mutex::default(),
        }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Request>>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, call: Call, when: When, errno: i32) -> Arc<Request> {
        when.check();
        assert!(errno > 0, "error numbers are positive");
        let request = Arc::new(Request {
            call,
            when,
            errno,
            calls: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        });
        let mut requests = self.lock();
        requests.push(Arc::clone(&request));
        self.len.store(requests.len(), Ordering::Release);
        request
    }

    fn remove(&self, request: &Arc<Request>) {
        let mut requests = self.lock();
        requests.retain(|pending| !Arc::ptr_eq(pending, request));
        self.len.store(requests.len(), Ordering::Release);
    }

    /// Requests failures until the result is dropped.
    pub(crate) fn request(self: &Arc<Self>, call: Call, when: When, errno: i32) -> Failing {
        Failing {
            request: self.insert(call, when, errno),
            failures: Arc::clone(self),
        }
    }

    /// Requests failures for as long as the device exists.
    pub(crate) fn add(&self, call: Call, when: When, errno: i32) {
        self.insert(call, when, errno);
    }

    fn gates(&self) -> MutexGuard<'_, Vec<Arc<Gate>>> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks calls until the result is dropped.
    pub(crate) fn hold(self: &Arc<Self>, call: Call) -> Holding {
        let gate = Arc::new(Gate::new(call));
        let mut gates = self.gates();
        gates.push(Arc::clone(&gate));
        self.gate_count.store(gates.len(), Ordering::Release);
        Holding {
            failures: Arc::clone(self),
            gate,
        }
    }

    fn remove_gate(&self, gate: &Arc<Gate>) {
        let mut gates = self.gates();
        gates.retain(|pending| !Arc::ptr_eq(pending, gate));
        self.gate_count.store(gates.len(), Ordering::Release);
    }

    /// Blocks a call, if requested.
    fn pass_gates(&self, call: Call) {
        if self.gate_count.load(Ordering::Acquire) > 0 {
            let gates = self.gates().clone();
            for gate in gates.iter().filter(|gate| gate.call == call) {
                gate.pass();
            }
        }
    }

    /// Blocks a call, if requested; then counts the call, and returns its failure, if requested: the errno of the oldest
    /// request with the call due.
    pub(crate) fn attempt(&self, call: Call) -> Result<(), i32> {
        self.pass_gates(call);
        if self.len.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut failed: Option<Arc<Request>> = None;
        for request in self.lock().iter().filter(|request| request.call == call) {
            if request.count(self.seed) && failed.is_none() {
                failed = Some(Arc::clone(request));
            }
        }
        match failed {
            Some(request) => {
                request.failed.fetch_add(1, Ordering::Relaxed);
                Err(request.errno)
            }
            None => Ok(()),
        }
    }

    /// Removes all requests, and returns the calls of those without a failure.
    pub(crate) fn unused(&self) -> Vec<Call> {
        let mut requests = self.lock();
        self.len.store(0, Ordering::Release);
        let unused = requests
            .drain(..)
            .filter(|request| request.failed.load(Ordering::Relaxed) == 0);
        unused.map(|request| request.call).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results of calls: the errno, or 0.
    fn results(failures: &Failures, call: Call, count: usize) -> Vec<i32> {
        let attempt = |_| failures.attempt(call).err().unwrap_or(0);
        (0..count).map(attempt).collect()
    }

    #[test]
    fn nth_call_fails_alone() {
        let failures = Arc::new(Failures::new(0));
        let failing = failures.request(Call::RegMr, When::Nth(2), 12);
        assert_eq!(results(&failures, Call::RegMr, 4), [0, 12, 0, 0]);
        assert_eq!(results(&failures, Call::AllocPd, 2), [0, 0]);
        assert_eq!((failing.calls(), failing.failed()), (4, 1));
    }

    #[test]
    fn every_call_fails_until_the_request_is_dropped() {
        let failures = Arc::new(Failures::new(0));
        let failing = failures.request(Call::RegMr, When::Every, 12);
        assert_eq!(results(&failures, Call::RegMr, 2), [12, 12]);
        assert_eq!(failing.failed(), 2);
        drop(failing);
        assert_eq!(results(&failures, Call::RegMr, 2), [0, 0]);
    }

    #[test]
    fn call_due_by_two_requests_fails_by_the_older_one() {
        let failures = Arc::new(Failures::new(0));
        let older = failures.request(Call::RegMr, When::Nth(2), 12);
        let newer = failures.request(Call::RegMr, When::Every, 22);
        assert_eq!(results(&failures, Call::RegMr, 3), [22, 12, 22]);
        assert_eq!((older.failed(), newer.failed()), (1, 2));
    }

    #[test]
    fn one_in_n_depends_on_the_seed_and_the_call() {
        let run = |seed, call| {
            let failures = Arc::new(Failures::new(seed));
            let failing = failures.request(call, When::OneIn(10), 12);
            let results = results(&failures, call, 10_000);
            assert!(failing.failed().abs_diff(1000) < 150, "{failing:?}");
            results
        };
        assert_eq!(run(7, Call::PostSend), run(7, Call::PostSend));
        assert_ne!(run(7, Call::PostSend), run(8, Call::PostSend));
        assert_ne!(run(7, Call::PostSend), run(7, Call::PostRecv));
    }

    #[test]
    fn requests_without_a_failure_are_unused() {
        let failures = Failures::new(0);
        failures.add(Call::RegMr, When::Nth(1), 12);
        failures.add(Call::AllocPd, When::Nth(2), 12);
        assert_eq!(failures.attempt(Call::RegMr), Err(12));
        assert_eq!(failures.attempt(Call::AllocPd), Ok(()));
        assert_eq!(failures.unused(), [Call::AllocPd]);
        assert_eq!(failures.attempt(Call::AllocPd), Ok(()));
    }

    #[test]
    #[should_panic(expected = "counted from 1")]
    fn call_number_0_is_refused() {
        Failures::new(0).add(Call::RegMr, When::Nth(0), 12);
    }
}
