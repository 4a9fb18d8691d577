//! When the thread wakes up of its own accord.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst},
    time::Duration,
};

const NEVER: u64 = u64::MAX;

/// What the thread goes by while nothing is locked.
///
/// A program that keeps calling has everything locked most of the time: a thread that looked whether it still
/// does would wait for that, and the program would have to wake it.
#[derive(Debug)]
pub(super) struct Alarm {
    /// When there is something to be done. Set by who has everything locked.
    work: AtomicU64,
    /// Until when the thread sleeps.
    sleep: AtomicU64,
    /// When a call has last handled what has completed of any connection.
    call: AtomicU64,
}

fn nanos(at: Duration) -> u64 {
    u64::try_from(at.as_nanos()).unwrap_or(NEVER)
}

fn nanos_or_never(at: Option<Duration>) -> u64 {
    at.map_or(NEVER, nanos)
}

impl Alarm {
    /// There is nothing to be done, and no call has come.
    pub(super) fn new() -> Self {
        Self {
            work: AtomicU64::new(NEVER),
            sleep: AtomicU64::new(0),
            call: AtomicU64::new(0),
        }
    }

    /// This is when there is something to be done.
    pub(super) fn set(&self, at: Option<Duration>) {
        self.work.store(nanos_or_never(at), SeqCst);
    }

    /// Whether there is nothing to be done until then.
    pub(super) fn is_earlier(&self, at: Duration) -> bool {
        nanos(at) < self.work.load(Relaxed)
    }

    /// There is something to be done at that time. Returns whether the thread has to be rung for.
    pub(super) fn ask(&self, at: Duration) -> bool {
        let at = nanos(at);
        self.work.fetch_min(at, SeqCst);
        // If it does not see that, it has said before until when it sleeps.
        at < self.sleep.load(SeqCst)
    }

    /// The thread is going to sleep, until there is something to be done, or until `relief`; returns when that is.
    pub(super) fn sleep(&self, relief: Option<Duration>) -> Option<Duration> {
        let at = nanos_or_never(relief).min(self.work.load(SeqCst));
        self.sleep.store(at, SeqCst);
        let at = at.min(self.work.load(SeqCst));
        (at != NEVER).then(|| Duration::from_nanos(at))
    }

    /// Whether there is something to be done by now.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.work.load(SeqCst) <= nanos(now)
    }

    /// A call has handled what has completed.
    pub(super) fn call(&self, now: Duration) {
        self.call.store(nanos(now), Relaxed);
    }

    /// When one last has.
    pub(super) fn called_at(&self) -> Duration {
        Duration::from_nanos(self.call.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_thread_is_rung_for_if_it_would_sleep_too_long() {
        let alarm = Alarm::new();
        assert_eq!(alarm.sleep(None), None);
        assert!(alarm.is_earlier(at(50)));
        assert!(alarm.ask(at(50)), "it sleeps for ever");
        assert!(!alarm.is_earlier(at(50)) && alarm.is_earlier(at(49)));
        assert_eq!(alarm.sleep(Some(at(10))), Some(at(10)));
        assert!(!alarm.ask(at(40)), "it looks before that");
        assert_eq!(alarm.sleep(Some(at(60))), Some(at(40)));
        assert!(alarm.ask(at(39)));
        assert!(!alarm.is_due(at(38)) && alarm.is_due(at(39)));
        alarm.set(None);
        assert!(!alarm.is_due(at(39)));
        assert_eq!(alarm.sleep(None), None);
    }

    #[test]
    fn calls_are_seen() {
        let alarm = Alarm::new();
        assert_eq!(alarm.called_at(), Duration::ZERO);
        alarm.call(at(7));
        assert_eq!(alarm.called_at(), at(7));
        alarm.call(Duration::MAX);
        assert!(alarm.called_at() > at(7), "for ever");
    }
}
