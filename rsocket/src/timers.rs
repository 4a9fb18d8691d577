//! Timers of identifiers, in the order of their times.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Action of the engine thread at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Action {
    /// Sends a keepalive probe.
    KeepAlive,
    /// Checks for unacknowledged data.
    Check,
    /// Ends a connection attempt with this timeout.
    #[cfg(feature = "tokio")]
    TimeOut(Duration),
    /// Ends a half-open connection.
    Expire,
    /// Sends retained data and a shutdown message as soon as there is room.
    Deliver,
    /// Ends a delivery with this name.
    EndDelivery(u64),
}

/// Identifies a timer, by its time, the name of its owner, and its action.
pub(crate) type TimerId<K> = (Instant, K, Action);

/// The timers of the engine. The cost of a wake-up of the engine thread depends on the number of expired timers,
/// not on that of connections.
#[derive(Debug)]
pub(crate) struct Timers<K> {
    queue: BTreeSet<TimerId<K>>,
    /// Intervals of keepalive probes, with the time of the next one.
    keep_alive: BTreeMap<K, (Instant, Duration)>,
}

impl<K: Copy + Ord> Timers<K> {
    pub(crate) fn new() -> Self {
        Self {
            queue: BTreeSet::new(),
            keep_alive: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, timer: TimerId<K>) {
        self.queue.insert(timer);
    }

    pub(crate) fn remove(&mut self, timer: TimerId<K>) {
        self.queue.remove(&timer);
    }

    /// Sends a keepalive probe every `interval`, replacing an earlier interval. Zero ends the probes.
    pub(crate) fn keep_alive(&mut self, now: Instant, key: K, interval: Duration) {
        self.end_keep_alive(key);
        if let Some(next) = now.checked_add(interval)
            && !interval.is_zero()
        {
            self.keep_alive.insert(key, (next, interval));
            self.add((next, key, Action::KeepAlive));
        }
    }

    /// Ends the keepalive probes of an owner, and its check for unacknowledged data.
    pub(crate) fn end(&mut self, key: K, check_at: Option<Instant>) {
        self.end_keep_alive(key);
        if let Some(at) = check_at {
            self.remove((at, key, Action::Check));
        }
    }

    fn end_keep_alive(&mut self, key: K) {
        if let Some((next, _)) = self.keep_alive.remove(&key) {
            self.remove((next, key, Action::KeepAlive));
        }
    }

    /// Takes the next expired timer, and restarts that of keepalive probes.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Option<TimerId<K>> {
        self.next().filter(|at| *at <= now)?;
        let expired = self.queue.pop_first()?;
        if let (_, key, Action::KeepAlive) = expired
            && let Some((_, interval)) = self.keep_alive.get(&key)
        {
            self.keep_alive(now, key, *interval);
        }
        Some(expired)
    }

    /// The time of the next timer.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.queue.first().map(|(at, ..)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn timers_expire_in_their_order() {
        let start = Instant::now();
        let mut timers = Timers::new();
        assert_eq!(timers.next(), None);
        let [early, late, removed] = [1, 3, 2].map(|at| (start + at * SECOND, at, Action::Check));
        for timer in [late, removed, early] {
            timers.add(timer);
        }
        timers.remove(removed);
        assert_eq!(timers.next(), Some(early.0));
        assert_eq!(timers.take_expired(start), None);
        assert_eq!(timers.take_expired(early.0), Some(early));
        assert_eq!(timers.take_expired(early.0), None);
        assert_eq!(timers.take_expired(start + 5 * SECOND), Some(late));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn timers_of_ended_owner_are_removed() {
        let start = Instant::now();
        let mut timers = Timers::new();
        for key in [1, 2] {
            timers.keep_alive(start, key, SECOND);
            timers.add((start + 2 * SECOND, key, Action::Check));
        }
        timers.end(1, Some(start + 2 * SECOND));
        timers.end(1, None);
        let expiry = start + SECOND;
        assert_eq!(
            timers.take_expired(expiry),
            Some((expiry, 2, Action::KeepAlive))
        );
        timers.end(2, Some(start + 2 * SECOND));
        assert_eq!(timers.next(), None);
        assert!(timers.keep_alive.is_empty());
    }

    #[test]
    fn keepalive_timer_restarts_until_its_interval_is_zero() {
        let start = Instant::now();
        let mut timers = Timers::new();
        timers.keep_alive(start, 1, 9 * SECOND);
        timers.keep_alive(start, 1, 2 * SECOND);
        let probe = |seconds| (start + seconds * SECOND, 1, Action::KeepAlive);
        assert_eq!(timers.take_expired(start + 2 * SECOND), Some(probe(2)));
        assert_eq!(timers.take_expired(start + 2 * SECOND), None);
        // A late thread sends one probe, not one for each interval.
        assert_eq!(timers.take_expired(start + 9 * SECOND), Some(probe(4)));
        assert_eq!(timers.next(), Some(start + 11 * SECOND));
        timers.keep_alive(start, 1, Duration::ZERO);
        assert_eq!(timers.next(), None);
        timers.keep_alive(start, 1, Duration::MAX);
        assert_eq!(timers.next(), None, "beyond the clock's range");
    }
}
