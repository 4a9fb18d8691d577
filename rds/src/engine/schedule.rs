//! Times and waiting calls: scheduling, without devices.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use verbs::waiting::Waiters;

use super::jobs::{Job, Jobs};
use crate::proto::SocketId;

/// Blocked calls, and the work of the engine thread. `K` names a connection.
pub(crate) struct Schedule<K> {
    pub(crate) waiters: Waiters<SocketId>,
    /// Sockets with possible waiters on the descriptor, since no call has blocked on them.
    watched: BTreeSet<SocketId>,
    /// One timer for each connection, at or before the connection's deadline. Deadlines mostly move
    /// later, with each message: the timer stays, and the deadline is computed anew when it expires.
    timers: BTreeSet<(Duration, K)>,
    times: BTreeMap<K, Duration>,
    /// Time of the engine thread's next wake-up: zero while the thread is awake.
    thread_wakes_at: Duration,
    /// Calls into the kernel, made by the engine thread without the lock.
    pub(super) jobs: Jobs<K>,
}

impl<K: Copy + Ord> Schedule<K> {
    pub(super) fn new() -> Self {
        Self {
            waiters: Waiters::new(),
            watched: BTreeSet::new(),
            timers: BTreeSet::new(),
            times: BTreeMap::new(),
            thread_wakes_at: Duration::ZERO,
            jobs: Jobs::new(),
        }
    }

    /// Has the engine thread poll while no call does, since a program waits for the descriptor of a
    /// socket.
    pub(crate) fn watch(&mut self, id: SocketId) {
        if self.watched.insert(id) {
            self.waiters.set_watched(true);
        }
    }

    /// Ends [`watch`](Self::watch), once a call blocks on the socket or the socket is closed.
    pub(super) fn unwatch(&mut self, id: SocketId) {
        if self.watched.remove(&id) {
            self.waiters.set_watched(!self.watched.is_empty());
        }
    }

    /// Has the engine thread make calls without the lock.
    pub(super) fn add_job(&mut self, job: Job<K>) {
        self.jobs.push(job);
        self.waiters.wake_standby();
    }

    /// Sets the timer of a connection, unless it expires earlier.
    pub(super) fn set_timer(&mut self, connection: K, at: Duration) {
        match self.times.get(&connection) {
            Some(&earlier) if earlier <= at => return,
            Some(&later) => self.timers.remove(&(later, connection)),
            None => false,
        };
        self.times.insert(connection, at);
        self.timers.insert((at, connection));
    }

    fn next_timer(&self) -> Option<Duration> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// Ends the sleep of the engine thread. Returns the connections whose timers have expired.
    pub(super) fn expire(&mut self, now: Duration) -> Vec<K> {
        self.thread_wakes_at = Duration::ZERO;
        let mut expired = Vec::new();
        while let Some(&(_, key)) = self.timers.first().filter(|(at, _)| *at <= now) {
            self.timers.pop_first();
            self.times.remove(&key);
            expired.push(key);
        }
        expired
    }

    /// Begins the sleep of the engine thread, at most until `deadline`. Returns its length.
    pub(super) fn begin_sleep(
        &mut self,
        now: Duration,
        deadline: Option<Duration>,
    ) -> Option<Duration> {
        let at = self.next_timer().into_iter().chain(deadline).min();
        self.thread_wakes_at = at.unwrap_or(Duration::MAX);
        at.map(|at| at.saturating_sub(now))
    }

    /// Wakes the engine thread if a timer expires before its next wake-up.
    pub(super) fn wake_for_timers(&mut self) {
        if let Some(at) = self.next_timer().filter(|at| *at < self.thread_wakes_at) {
            self.thread_wakes_at = at;
            self.waiters.wake_standby();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use verbs::{
        fd::wait_readable,
        waiting::{EventFd, Shared, Source, Standby},
    };

    use super::*;

    /// An engine without devices.
    struct Idle(Schedule<u32>);

    impl Source for Idle {
        type Interest = SocketId;
        type Error = verbs::Error;

        fn waiters(&mut self) -> &mut Waiters<SocketId> {
            &mut self.0.waiters
        }

        fn process(&mut self) -> verbs::Result<bool> {
            Ok(false)
        }

        fn drain_events(&mut self) -> verbs::Result<()> {
            Ok(())
        }

        fn arm(&mut self) -> verbs::Result<()> {
            Ok(())
        }
    }

    const fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Whether the engine thread is woken.
    fn is_woken(standby: &Standby<SocketId>) -> bool {
        let event = standby.event();
        let woken = wait_readable("poll", event.as_fd(), Some(Duration::ZERO)).unwrap();
        event.drain();
        woken
    }

    #[test]
    fn earlier_timer_wakes_the_sleeping_thread_once() {
        let shared = Shared::new(Idle(Schedule::new()), EventFd::new().unwrap());
        let mut standby = shared.stand_by().unwrap();
        let set = |connection, time| {
            let mut state = shared.lock();
            state.0.set_timer(connection, at(time));
            state.0.wake_for_timers();
        };
        let sleep = |now, deadline: Option<u64>| {
            let length = shared.lock().0.begin_sleep(at(now), deadline.map(at));
            length.map(|length| length.as_millis())
        };
        set(1, 50);
        assert_eq!(sleep(10, None), Some(40));
        standby.poll(&mut shared.lock()).unwrap();
        assert!(!is_woken(&standby));
        set(3, 60);
        assert!(!is_woken(&standby), "the thread wakes up before");
        set(3, 40);
        assert!(is_woken(&standby));
        set(4, 40);
        assert!(!is_woken(&standby));
        set(4, 90);
        assert_eq!(shared.lock().0.expire(at(49)), [3, 4]);
        assert_eq!(shared.lock().0.expire(at(50)), [1]);
        let later = shared.lock().0.expire(at(99));
        assert_eq!(later, [], "a connection has one timer");
        set(5, 20);
        assert!(!is_woken(&standby), "the thread is awake");
        assert_eq!(sleep(15, Some(18)), Some(3));
        assert_eq!(sleep(15, Some(25)), Some(5));
    }

    #[test]
    fn job_wakes_the_sleeping_thread() {
        let shared = Shared::new(Idle(Schedule::new()), EventFd::new().unwrap());
        let mut standby = shared.stand_by().unwrap();
        standby.poll(&mut shared.lock()).unwrap();
        assert!(!is_woken(&standby));
        let connection = Some(7);
        let calls = Box::new(|_: &_| {});
        shared.lock().0.add_job(Job { connection, calls });
        assert!(is_woken(&standby));
        assert!(!shared.lock().0.jobs.is_empty());
        assert!([7, 8].map(|id| shared.lock().0.jobs.has(id)) == [true, false]);
    }
}
