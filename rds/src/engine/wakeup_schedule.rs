//! When the thread wakes up of its own accord.

#[cfg(not(test))]
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use std::time::Duration;

#[cfg(test)]
use loom::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
    fence,
};

use super::leading::TAKEOVER_DELAY;

const NEVER: u64 = u64::MAX;

/// Messages that wait for others, or that none does: each time that changes, it is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch(u64);

impl Batch {
    /// Whether some wait.
    pub(super) fn waits(self) -> bool {
        self.0 % 2 == 1
    }
}

/// What the thread goes by while nothing is locked.
///
/// A program that keeps calling has everything locked most of the time: a thread that looked whether it still
/// does would wait for that, and the program would have to wake it.
///
/// A call that leaves work writes the work's time, and then reads until when the thread sleeps; the thread writes
/// that, and then reads the work's time. A sequentially consistent fence between the write and the read of each side
/// guarantees that one of the two sees the other's write: the thread sleeps shorter, or the call rings. `interleavings`
/// has the proof, by loom.
#[derive(Debug)]
pub(super) struct WakeupSchedule {
    /// When there is something to be done. Set by who has everything locked.
    work: AtomicU64,
    /// Until when the thread sleeps.
    sleep: AtomicU64,
    /// When a call has last handled what has completed of any connection.
    call: AtomicU64,
    /// How often messages have begun to wait for others, and how often they have been posted.
    batch: AtomicU64,
}

fn nanos(at: Duration) -> u64 {
    u64::try_from(at.as_nanos()).unwrap_or(NEVER)
}

fn nanos_or_never(at: Option<Duration>) -> u64 {
    at.map_or(NEVER, nanos)
}

impl WakeupSchedule {
    /// There is nothing to be done, and no call has come.
    pub(super) fn new() -> Self {
        Self {
            work: AtomicU64::new(NEVER),
            sleep: AtomicU64::new(0),
            call: AtomicU64::new(0),
            batch: AtomicU64::new(0),
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

    /// Records work that is due at that time. Returns whether the thread has to be rung for.
    pub(super) fn ask(&self, at: Duration) -> bool {
        let at = nanos(at);
        self.work.fetch_min(at, SeqCst);
        // A thread that does not see that has written before until when it sleeps.
        fence(SeqCst);
        at < self.sleep.load(SeqCst)
    }

    /// Records that the thread is going to sleep: until work is due, or until `relief`, or if messages wait for
    /// others, until `soon`. Returns when that is.
    pub(super) fn sleep(&self, relief: Option<Duration>, soon: Duration) -> Option<Duration> {
        let at = nanos_or_never(relief).min(self.work.load(SeqCst));
        self.sleep.store(at, SeqCst);
        // A call that does not see that has recorded its work, or its batch, before.
        fence(SeqCst);
        let mut at = at.min(self.work.load(SeqCst));
        if self.batch().waits() {
            at = at.min(nanos(soon));
        }
        (at != NEVER).then(|| Duration::from_nanos(at))
    }

    /// Whether there is something to be done by now.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.work.load(SeqCst) <= nanos(now)
    }

    /// Records that messages begin to wait for others, until `soon` at the latest. Returns whether the thread has to be
    /// rung for.
    pub(super) fn delay(&self, soon: Duration) -> bool {
        self.batch.fetch_add(1, SeqCst);
        // A thread that does not see that has written before until when it sleeps.
        fence(SeqCst);
        nanos(soon) < self.sleep.load(SeqCst)
    }

    /// They are posted.
    pub(super) fn posted(&self) {
        self.batch.fetch_add(1, SeqCst);
    }

    /// Whether messages wait for others, and which.
    pub(super) fn batch(&self) -> Batch {
        Batch(self.batch.load(SeqCst))
    }

    /// A call has handled what has completed.
    pub(super) fn call(&self, now: Duration) {
        self.call.store(nanos(now), Relaxed);
    }

    /// Whether calls keep coming that do.
    pub(super) fn calls_come(&self, now: Duration) -> bool {
        now < self.called_at() + TAKEOVER_DELAY
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
        loom::model(|| {
            let schedule = WakeupSchedule::new();
            assert_eq!(schedule.sleep(None, at(2)), None);
            assert!(schedule.is_earlier(at(50)));
            assert!(schedule.ask(at(50)), "it sleeps for ever");
            assert!(!schedule.is_earlier(at(50)) && schedule.is_earlier(at(49)));
            assert_eq!(schedule.sleep(Some(at(10)), at(2)), Some(at(10)));
            assert!(!schedule.ask(at(40)), "it looks before that");
            assert_eq!(schedule.sleep(Some(at(60)), at(2)), Some(at(40)));
            assert!(schedule.ask(at(39)));
            assert!(!schedule.is_due(at(38)) && schedule.is_due(at(39)));
            schedule.set(None);
            assert!(!schedule.is_due(at(39)));
            assert_eq!(schedule.sleep(None, at(2)), None);
        });
    }

    #[test]
    fn calls_are_seen() {
        loom::model(|| {
            let schedule = WakeupSchedule::new();
            assert_eq!(schedule.called_at(), Duration::ZERO);
            schedule.call(at(7));
            assert_eq!(schedule.called_at(), at(7));
            assert!(schedule.calls_come(at(16)) && !schedule.calls_come(at(17)));
            schedule.call(Duration::MAX);
            assert!(schedule.called_at() > at(7), "for ever");
        });
    }

    #[test]
    fn the_thread_looks_soon_while_messages_wait() {
        loom::model(|| {
            let schedule = WakeupSchedule::new();
            let none = schedule.batch();
            assert!(!none.waits());
            assert_eq!(schedule.sleep(Some(at(10)), at(2)), Some(at(10)));
            assert!(schedule.delay(at(3)), "it sleeps for longer");
            let first = schedule.batch();
            assert!(first.waits());
            assert_eq!(schedule.sleep(Some(at(10)), at(4)), Some(at(4)));
            assert_eq!(schedule.sleep(Some(at(3)), at(4)), Some(at(3)));
            schedule.posted();
            assert_eq!(schedule.sleep(Some(at(5)), at(4)), Some(at(5)));
            assert!(!schedule.delay(at(6)), "it looks before that");
            let second = schedule.batch();
            assert!(second.waits());
            assert_ne!(first, second);
        });
    }
}

#[cfg(test)]
mod interleavings {
    //! Every order of the thread's steps and of those of calls, with what the memory model allows: by the time that
    //! the thread sleeps, it wakes up in time, or a call rings.

    use loom::{
        sync::{Arc, Mutex, atomic::AtomicBool},
        thread,
    };

    use super::*;

    const fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// The schedule, the bell, and the lock with the time that calls have asked for.
    struct Engine {
        schedule: WakeupSchedule,
        notified: AtomicBool,
        asked: Mutex<Option<Duration>>,
    }

    impl Engine {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                schedule: WakeupSchedule::new(),
                notified: AtomicBool::new(false),
                asked: Mutex::new(None),
            })
        }

        /// A call leaves work that is due at that time, as `State::wake_at` does.
        fn leave_work(&self, due: Duration) {
            let mut asked = self.asked.lock().unwrap();
            if self.schedule.is_earlier(due) {
                *asked = Some(asked.map_or(due, |other| other.min(due)));
                if self.schedule.ask(due) {
                    self.notified.store(true, SeqCst);
                }
            }
        }

        /// A call leaves a message for the next ones, as `Shared::delay` does.
        fn leave_message(&self, soon: Duration) {
            let _asked = self.asked.lock().unwrap();
            if self.schedule.delay(soon) {
                self.notified.store(true, SeqCst);
            }
        }

        /// The thread does what is due, and goes to sleep; until when.
        fn go_to_sleep(&self, soon: Duration) -> Option<Duration> {
            let asked = self.asked.lock().unwrap();
            self.schedule.set(*asked);
            drop(asked);
            self.schedule.sleep(None, soon)
        }
    }

    /// Runs `calls`, each in a thread of its own, beside the thread of the engine; that has to wake up by `latest`.
    fn every_order(calls: &'static [fn(&Engine)], latest: Duration) {
        loom::model(move || {
            let engine = Engine::new();
            let calls: Vec<_> = calls
                .iter()
                .map(|call| {
                    let engine = Arc::clone(&engine);
                    thread::spawn(move || call(&engine))
                })
                .collect();
            let until = engine.go_to_sleep(at(2));
            for call in calls {
                call.join().unwrap();
            }
            let in_time = until.is_some_and(|until| until <= latest);
            let notified = engine.notified.load(SeqCst);
            assert!(in_time || notified, "the thread sleeps until {until:?}");
        });
    }

    #[test]
    fn work_that_a_call_leaves_is_done_in_time() {
        every_order(&[|engine| engine.leave_work(at(5))], at(5));
    }

    #[test]
    fn the_earliest_work_of_two_calls_is_done_in_time() {
        let calls: &[fn(&Engine)] = &[
            |engine| engine.leave_work(at(5)),
            |engine| engine.leave_work(at(3)),
        ];
        every_order(calls, at(3));
    }

    #[test]
    fn messages_that_a_call_leaves_are_posted_soon() {
        every_order(&[|engine| engine.leave_message(at(3))], at(3));
    }

    #[test]
    fn messages_that_are_left_while_work_is_are_posted_soon() {
        let calls: &[fn(&Engine)] = &[
            |engine| engine.leave_work(at(50)),
            |engine| engine.leave_message(at(3)),
        ];
        every_order(calls, at(3));
    }
}
