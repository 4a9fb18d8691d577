//! The calls that wait beside the one that leads.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Number of calls that wait beside the one that leads. While there are any, the leader leaves no work to the next
/// call: a call that sleeps does none.
#[derive(Debug, Default)]
pub(super) struct Followers(AtomicUsize);

impl Followers {
    /// Runs the wait of a call, which counts as long as it takes. The caller still holds the engine's lock when it
    /// begins.
    pub(super) fn wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.0.fetch_add(1, Relaxed);
        let waited = wait();
        self.0.fetch_sub(1, Relaxed);
        waited
    }

    /// Whether no call waits.
    pub(super) fn is_empty(&self) -> bool {
        self.0.load(Relaxed) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_counts_for_as_long_as_it_waits() {
        let followers = Followers::default();
        assert!(followers.is_empty());
        let inner = followers.wait(|| {
            assert!(!followers.is_empty());
            followers.wait(|| ());
            followers.is_empty()
        });
        assert!(!inner && followers.is_empty());
    }
}
