//! Times at which connections have work.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// One timer for each connection, at or before the connection's deadline.
///
/// Deadlines mostly move later, with each message. A timer keeps its time then: when it expires, the
/// deadline is computed anew. So a message costs no change here.
#[derive(Debug)]
pub(super) struct Timers<K> {
    queue: BTreeSet<(Duration, K)>,
    times: BTreeMap<K, Duration>,
}

impl<K: Copy + Ord> Timers<K> {
    /// No timers.
    pub(super) fn new() -> Self {
        Self {
            queue: BTreeSet::new(),
            times: BTreeMap::new(),
        }
    }

    /// Sets a timer to `at`, unless it expires earlier.
    pub(super) fn set(&mut self, key: K, at: Duration) {
        match self.times.get(&key) {
            Some(&earlier) if earlier <= at => return,
            Some(&later) => self.queue.remove(&(later, key)),
            None => false,
        };
        self.times.insert(key, at);
        self.queue.insert((at, key));
    }

    /// Time of the first timer.
    pub(super) fn next(&self) -> Option<Duration> {
        self.queue.first().map(|&(at, _)| at)
    }

    /// Removes the timers that have expired, and returns their connections.
    pub(super) fn expire(&mut self, now: Duration) -> Vec<K> {
        let mut expired = Vec::new();
        while let Some(&(at, key)) = self.queue.first()
            && at <= now
        {
            self.queue.pop_first();
            self.times.remove(&key);
            expired.push(key);
        }
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn timers_expire_in_order() {
        let mut timers = Timers::new();
        assert_eq!(timers.next(), None);
        for (key, millis) in [(1, 30), (2, 10), (3, 20), (4, 10)] {
            timers.set(key, at(millis));
        }
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(timers.expire(at(9)), []);
        assert_eq!(timers.expire(at(20)), [2, 4, 3]);
        assert_eq!(
            (timers.next(), timers.expire(at(30))),
            (Some(at(30)), vec![1])
        );
        assert_eq!((timers.next(), timers.expire(at(99))), (None, vec![]));
    }

    #[test]
    fn timer_moves_to_earlier_times_only() {
        let mut timers = Timers::new();
        for millis in [20, 30, 10, 15] {
            timers.set(1, at(millis));
        }
        assert_eq!(timers.expire(at(10)), [1]);
        assert_eq!(timers.next(), None, "a connection has one timer");
        timers.set(1, at(30));
        assert_eq!(timers.expire(at(30)), [1]);
    }
}
