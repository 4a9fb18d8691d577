//! Blocked calls other than the leader.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Number of blocked calls other than the leader. While there are any, the leader completes its
/// work before returning, because a sleeping call does none.
#[derive(Debug, Default)]
pub(super) struct Followers(AtomicUsize);

impl Followers {
    /// Runs `wait`, counting the caller as blocked. The caller enters with the engine's lock held.
    pub(super) fn wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.0.fetch_add(1, Relaxed);
        let waited = wait();
        self.0.fetch_sub(1, Relaxed);
        waited
    }

    /// Whether no other call is blocked.
    pub(super) fn is_empty(&self) -> bool {
        self.0.load(Relaxed) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn followers_count_blocked_calls() {
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
