//! Lock-free wake-up times of the engine thread.

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

/// Counter of batches: odd while messages are held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch(u64);

impl Batch {
    /// Whether messages are held back.
    pub(super) fn waits(self) -> bool {
        self.0 % 2 == 1
    }
}

/// Wake-up times of the engine thread, accessible without the engine's lock.
///
/// In a program with frequent calls, the lock is mostly taken. A thread that needed it for the
/// check would block, and waking the thread would cost the program a system call.
///
/// A call stores the deadline of its work, then loads the thread's wake-up time; the thread stores
/// its wake-up time, then loads the deadline of work. A sequentially consistent fence between store
/// and load on both sides guarantees that at least one side sees the other's store: the thread
/// sleeps for a shorter time, or the call notifies the thread. The loom tests in `interleavings`
/// verify this.
#[derive(Debug)]
pub(super) struct WakeupSchedule {
    /// Deadline of the next work. Stored with the engine's lock held.
    work: AtomicU64,
    /// Time at which the thread wakes up.
    sleep: AtomicU64,
    /// Time of the last call that handled completions.
    call: AtomicU64,
    /// Number of batches begun plus number of batches posted.
    batch: AtomicU64,
}

fn nanos(at: Duration) -> u64 {
    u64::try_from(at.as_nanos()).unwrap_or(NEVER)
}

fn nanos_or_never(at: Option<Duration>) -> u64 {
    at.map_or(NEVER, nanos)
}

impl WakeupSchedule {
    /// An empty schedule.
    pub(super) fn new() -> Self {
        Self {
            work: AtomicU64::new(NEVER),
            sleep: AtomicU64::new(0),
            call: AtomicU64::new(0),
            batch: AtomicU64::new(0),
        }
    }

    /// Sets the deadline of the next work.
    pub(super) fn set(&self, at: Option<Duration>) {
        self.work.store(nanos_or_never(at), SeqCst);
    }

    /// Whether `at` is before the deadline of the next work.
    pub(super) fn is_earlier(&self, at: Duration) -> bool {
        nanos(at) < self.work.load(Relaxed)
    }

    /// Adds work with a deadline. Returns whether the thread must be notified.
    pub(super) fn add(&self, at: Duration) -> bool {
        let at = nanos(at);
        self.work.fetch_min(at, SeqCst);
        // If the thread misses this store, the wake-up time was stored before.
        fence(SeqCst);
        at < self.sleep.load(SeqCst)
    }

    /// Records that the thread goes to sleep until work is due, until `relief`, or until `soon` if
    /// messages are held back. Returns the wake-up time.
    pub(super) fn sleep(&self, relief: Option<Duration>, soon: Duration) -> Option<Duration> {
        let at = nanos_or_never(relief).min(self.work.load(SeqCst));
        self.sleep.store(at, SeqCst);
        // If a call misses this store, the work or the batch was stored before.
        fence(SeqCst);
        let mut at = at.min(self.work.load(SeqCst));
        if self.batch().waits() {
            at = at.min(nanos(soon));
        }
        (at != NEVER).then(|| Duration::from_nanos(at))
    }

    /// Whether work is due.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.work.load(SeqCst) <= nanos(now)
    }

    /// Begins a batch, due at `soon`. Returns whether the thread must be notified.
    pub(super) fn delay(&self, soon: Duration) -> bool {
        self.batch.fetch_add(1, SeqCst);
        // If the thread misses this store, the wake-up time was stored before.
        fence(SeqCst);
        nanos(soon) < self.sleep.load(SeqCst)
    }

    /// Ends a batch.
    pub(super) fn posted(&self) {
        self.batch.fetch_add(1, SeqCst);
    }

    /// The current batch.
    pub(super) fn batch(&self) -> Batch {
        Batch(self.batch.load(SeqCst))
    }

    /// Records a call that handled completions.
    pub(super) fn call(&self, now: Duration) {
        self.call.store(nanos(now), Relaxed);
    }

    /// Whether a call has handled completions within [`TAKEOVER_DELAY`].
    pub(super) fn calls_come(&self, now: Duration) -> bool {
        now < self.called_at() + TAKEOVER_DELAY
    }

    /// Time of the last call that handled completions.
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
    fn schedule_notifies_thread_sleeping_past_deadline() {
        loom::model(|| {
            let schedule = WakeupSchedule::new();
            assert_eq!(schedule.sleep(None, at(2)), None);
            assert!(schedule.is_earlier(at(50)));
            assert!(schedule.add(at(50)), "it sleeps for ever");
            assert!(!schedule.is_earlier(at(50)) && schedule.is_earlier(at(49)));
            assert_eq!(schedule.sleep(Some(at(10)), at(2)), Some(at(10)));
            assert!(!schedule.add(at(40)), "it looks before that");
            assert_eq!(schedule.sleep(Some(at(60)), at(2)), Some(at(40)));
            assert!(schedule.add(at(39)));
            assert!(!schedule.is_due(at(38)) && schedule.is_due(at(39)));
            schedule.set(None);
            assert!(!schedule.is_due(at(39)));
            assert_eq!(schedule.sleep(None, at(2)), None);
        });
    }

    #[test]
    fn schedule_records_last_call() {
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
    fn schedule_wakes_thread_for_delayed_batch() {
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
    //! All interleavings of the thread and of calls, under the C11 memory model: before the thread
    //! sleeps too long, the wake-up time is early enough, or a call notifies the thread.

    use loom::{
        sync::{Arc, Mutex, atomic::AtomicBool},
        thread,
    };

    use super::*;

    const fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// The schedule, a notification flag, and the deadline of work under a lock.
    struct Engine {
        schedule: WakeupSchedule,
        notified: AtomicBool,
        requested: Mutex<Option<Duration>>,
    }

    impl Engine {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                schedule: WakeupSchedule::new(),
                notified: AtomicBool::new(false),
                requested: Mutex::new(None),
            })
        }

        /// Adds work, as `State::wake_at` does.
        fn leave_work(&self, due: Duration) {
            let mut requested = self.requested.lock().unwrap();
            if self.schedule.is_earlier(due) {
                *requested = Some(requested.map_or(due, |other| other.min(due)));
                if self.schedule.add(due) {
                    self.notified.store(true, SeqCst);
                }
            }
        }

        /// Begins a batch, as `Shared::delay` does.
        fn leave_message(&self, soon: Duration) {
            let _asked = self.requested.lock().unwrap();
            if self.schedule.delay(soon) {
                self.notified.store(true, SeqCst);
            }
        }

        /// Runs the thread until it sleeps; returns the wake-up time.
        fn go_to_sleep(&self, soon: Duration) -> Option<Duration> {
            let requested = self.requested.lock().unwrap();
            self.schedule.set(*requested);
            drop(requested);
            self.schedule.sleep(None, soon)
        }
    }

    /// Runs each of `calls` in a thread beside the engine thread, and checks its wake-up by
    /// `latest`.
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
    fn schedule_work_is_done_by_its_deadline() {
        every_order(&[|engine| engine.leave_work(at(5))], at(5));
    }

    #[test]
    fn schedule_earliest_work_of_two_calls_is_done() {
        let calls: &[fn(&Engine)] = &[
            |engine| engine.leave_work(at(5)),
            |engine| engine.leave_work(at(3)),
        ];
        every_order(calls, at(3));
    }

    #[test]
    fn schedule_delayed_batch_is_posted() {
        every_order(&[|engine| engine.leave_message(at(3))], at(3));
    }

    #[test]
    fn schedule_delayed_batch_beside_work_is_posted() {
        let calls: &[fn(&Engine)] = &[
            |engine| engine.leave_work(at(50)),
            |engine| engine.leave_message(at(3)),
        ];
        every_order(calls, at(3));
    }
}
