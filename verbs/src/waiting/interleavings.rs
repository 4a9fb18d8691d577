//! Blocked calls over a model of a device, of eventfds and of time: every interleaving of their
//! threads with at most three preemptions. A call that never returns is a deadlock, which loom
//! reports.

use std::{
    sync::Arc,
    task::{Wake, Waker},
    time::Duration,
};

use loom::thread;

use super::notifier;
use os::{Channel, Instant, KERNEL};
use shared::{Shared, Source, Standby, WaitEnd};
use waiters::{Sleep, Ticket, Waiters};

#[expect(
    clippy::duplicate_mod,
    dead_code,
    unreachable_pub,
    reason = "over a model; not all of the interface is used"
)]
#[path = "shared.rs"]
mod shared;
#[expect(
    clippy::duplicate_mod,
    dead_code,
    unreachable_pub,
    reason = "over a model; not all of the interface is used"
)]
#[path = "waiters.rs"]
mod waiters;

/// The model: a device with one queue, eventfds, and a clock that advances by ticks.
mod os {
    use std::{sync::Arc, task::Wake, time::Duration};

    use loom::sync::Condvar;

    use crate::error::Result;

    pub(super) use loom::{
        sync::{Mutex, MutexGuard},
        thread::yield_now,
    };
    pub(super) use std::sync::TryLockError;

    loom::lazy_static! {
        pub(super) static ref KERNEL: Kernel = Kernel::default();
    }

    #[derive(Default)]
    pub(super) struct Kernel {
        state: Mutex<KernelState>,
        changed: Condvar,
    }

    #[derive(Default)]
    pub(super) struct KernelState {
        /// Receivers of the completions in the queue.
        pub(super) completions: Vec<u8>,
        pub(super) armed: bool,
        /// Number of events in the channel.
        pub(super) events: u32,
        /// Readability of the eventfds.
        readable: Vec<bool>,
        /// Number of ticks. Each ends one sleep with a time limit of every eventfd, now or later.
        ticks: u32,
        /// Number of ticks that have ended a sleep, of each eventfd.
        ticks_seen: Vec<u32>,
        now: Duration,
        /// Duration of each poll, so that busy polling ends.
        pub(super) poll_time: Duration,
        /// The eventfd on which the next interrupted thread sleeps.
        signaled: Option<usize>,
        /// Tasks that have been woken.
        pub(super) woken_tasks: u32,
    }

    impl Kernel {
        /// A step that nothing divides, as on a device.
        pub(super) fn step<T>(&self, step: impl FnOnce(&mut KernelState) -> T) -> T {
            let done = step(&mut self.state.lock().unwrap());
            self.changed.notify_all();
            done
        }

        /// Takes the completions.
        pub(super) fn poll(&self) -> Vec<u8> {
            self.step(|state| {
                state.now += state.poll_time;
                std::mem::take(&mut state.completions)
            })
        }

        pub(super) fn complete(&self, receiver: u8) {
            self.step(|state| {
                state.completions.push(receiver);
                state.events += u32::from(std::mem::take(&mut state.armed));
            });
        }

        /// Time elapses.
        pub(super) fn tick(&self) {
            self.step(|state| {
                state.ticks += 1;
                state.now += Duration::from_secs(3600);
            });
        }

        /// Interrupts the thread that sleeps on the eventfd with this number.
        pub(super) fn signal(&self, event: usize) {
            self.step(|state| state.signaled = Some(event));
        }

        pub(super) fn wait_for_task(&self) {
            let mut state = self.state.lock().unwrap();
            while state.woken_tasks == 0 {
                state = self.changed.wait(state).unwrap();
            }
        }
    }

    pub(super) trait AsFd {}

    /// The channel of the queue.
    pub(super) struct Channel;

    impl AsFd for Channel {}

    /// An eventfd, by number.
    #[derive(Debug)]
    pub(super) struct EventFd(usize);

    impl EventFd {
        pub(super) fn new() -> Result<Self> {
            Ok(KERNEL.step(|state| {
                state.readable.push(false);
                state.ticks_seen.push(0);
                Self(state.readable.len() - 1)
            }))
        }

        pub(super) fn of_thread() -> Result<Arc<Self>> {
            Self::new().map(Arc::new)
        }

        pub(super) fn notify(&self) {
            KERNEL.step(|state| state.readable[self.0] = true);
        }
    }

    impl Wake for EventFd {
        fn wake(self: Arc<Self>) {
            self.notify();
        }
    }

    #[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
    pub(super) struct Instant(Duration);

    impl Instant {
        pub(super) fn now() -> Self {
            Self(KERNEL.step(|state| state.now))
        }

        pub(super) fn after(time: Duration) -> Self {
            Self(time)
        }

        pub(super) fn checked_add(self, time: Duration) -> Option<Self> {
            self.0.checked_add(time).map(Self)
        }

        pub(super) fn saturating_duration_since(self, earlier: Self) -> Duration {
            self.0.saturating_sub(earlier.0)
        }
    }

    pub(super) fn process() -> u64 {
        0
    }

    pub(super) fn sleep(
        event: Option<&EventFd>,
        channel: Option<&impl AsFd>,
        time: Option<Duration>,
    ) -> bool {
        let event = event.expect("descriptors are there");
        let mut state = KERNEL.state.lock().unwrap();
        loop {
            if std::mem::take(&mut state.readable[event.0]) || channel.is_some() && state.events > 0
            {
                return false;
            }
            if state.signaled.take_if(|on| *on == event.0).is_some() {
                return true;
            }
            if let Some(time) = time
                && state.ticks_seen[event.0] < state.ticks
            {
                state.ticks_seen[event.0] += 1;
                state.now += time;
                return false;
            }
            state = KERNEL.changed.wait(state).unwrap();
        }
    }
}

/// Messages for receivers with numbers.
#[derive(Default)]
struct Mailbox {
    waiters: Waiters<u8>,
    arrived: [u32; 3],
    handled: u32,
}

impl Source for Mailbox {
    type Interest = u8;
    type Error = crate::error::Error;

    fn waiters(&mut self) -> &mut Waiters<u8> {
        &mut self.waiters
    }

    fn process(&mut self) -> Result<bool, Self::Error> {
        let events = KERNEL.poll();
        for &receiver in &events {
            self.handled += 1;
            self.arrived[usize::from(receiver)] += 1;
            self.waiters.wake_interest(receiver);
        }
        Ok(!events.is_empty())
    }

    fn drain_events(&mut self) -> Result<(), Self::Error> {
        KERNEL.step(|state| state.events = 0);
        Ok(())
    }

    fn arm(&mut self) -> Result<(), Self::Error> {
        KERNEL.step(|state| state.armed = true);
        Ok(())
    }
}

type Mail = Shared<Mailbox, Channel>;

/// Takes the next message; blocks until there is one.
fn receive(mail: &Mail, receiver: u8) {
    receive_until(mail, receiver, None).expect("there is no deadline, and no signal");
}

/// As [`receive`], until the end of the wait by a deadline or a signal.
fn receive_until(mail: &Mail, receiver: u8, deadline: Option<Instant>) -> Result<(), WaitEnd> {
    let mut state = mail.lock();
    loop {
        let arrived = &mut state.arrived[usize::from(receiver)];
        if *arrived > 0 {
            *arrived -= 1;
            return Ok(());
        }
        let end;
        (state, end) = mail.wait(state, receiver, deadline, None).unwrap();
        if end != WaitEnd::Woken {
            return Err(end);
        }
    }
}

/// A call whose thread never runs again once it sleeps.
fn stalled_call(mail: &Mail, receiver: u8) -> (Ticket<u8>, Sleep) {
    let mut state = mail.lock();
    let mut ticket = state
        .waiters()
        .add(Some(receiver), os::EventFd::of_thread().ok());
    let sleep = shared::step(&mut *state, &mut ticket, false).unwrap();
    (ticket, sleep.expect("there are no messages yet"))
}

/// Runs a test with every interleaving of at most three preemptions.
fn every_interleaving(test: impl Fn(&Arc<Mail>) + Send + Sync + 'static) {
    interleavings(3, test);
}

fn interleavings(preemptions: usize, test: impl Fn(&Arc<Mail>) + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        test(&Arc::new(Shared::new(Mailbox::default(), Channel)));
    });
}

fn spawn(mail: &Arc<Mail>, run: impl FnOnce(&Mail) + Send + 'static) -> thread::JoinHandle<()> {
    let mail = Arc::clone(mail);
    thread::spawn(move || run(&mail))
}

fn check_handled(mail: &Mail, completions: u32) {
    let state = mail.lock();
    assert_eq!(state.handled, completions);
    assert_eq!(state.arrived, [0; 3]);
    assert!(state.waiters.is_empty(), "every call has returned");
}

#[test]
fn calls_of_two_threads_receive_each_message_once() {
    every_interleaving(|mail| {
        let other = spawn(mail, |mail| receive(mail, 1));
        let device = thread::spawn(|| [1, 0].map(|receiver| KERNEL.complete(receiver)));
        receive(mail, 0);
        other.join().unwrap();
        device.join().unwrap();
        check_handled(mail, 2);
    });
}

#[test]
fn calls_of_one_interest_both_return() {
    every_interleaving(|mail| {
        let other = spawn(mail, |mail| receive(mail, 0));
        let device = thread::spawn(|| [0, 0].map(|receiver| KERNEL.complete(receiver)));
        receive(mail, 0);
        other.join().unwrap();
        device.join().unwrap();
        check_handled(mail, 2);
    });
}

#[test]
fn call_that_polls_wakes_blocked_call() {
    every_interleaving(|mail| {
        let other = spawn(mail, |mail| receive(mail, 1));
        KERNEL.complete(1);
        mail.lock().process().unwrap();
        other.join().unwrap();
        check_handled(mail, 1);
    });
}

#[test]
fn poller_at_its_deadline_hands_over() {
    every_interleaving(|mail| {
        let other = spawn(mail, |mail| receive(mail, 1));
        let device = thread::spawn(|| {
            KERNEL.tick();
            KERNEL.complete(1);
        });
        let deadline = Instant::after(Duration::from_secs(1));
        assert_eq!(
            receive_until(mail, 0, Some(deadline)),
            Err(WaitEnd::TimedOut)
        );
        other.join().unwrap();
        device.join().unwrap();
        check_handled(mail, 1);
    });
}

#[test]
fn interrupted_poller_hands_over() {
    every_interleaving(|mail| {
        // The first eventfd is the poller's.
        let (ticket, sleep) = stalled_call(mail, 0);
        assert_eq!(sleep, Sleep::Channel);
        let other = spawn(mail, |mail| receive(mail, 1));
        KERNEL.signal(0);
        let interrupted = os::sleep(ticket.event.as_deref(), Some(mail.channel()), None);
        assert!(interrupted);
        mail.lock().waiters().remove(&ticket);
        KERNEL.complete(1);
        other.join().unwrap();
        check_handled(mail, 1);
    });
}

#[test]
fn signal_ends_wait_of_poller_and_of_follower() {
    for receivers in [0, 1] {
        every_interleaving(move |mail| {
            let stalled: Vec<_> = (0..receivers).map(|_| stalled_call(mail, 0)).collect();
            let signaled = thread::spawn(move || KERNEL.signal(receivers));
            assert_eq!(receive_until(mail, 1, None), Err(WaitEnd::Interrupted));
            signaled.join().unwrap();
            drop(stalled);
        });
    }
}

#[test]
fn poller_that_never_runs_is_replaced() {
    every_interleaving(|mail| {
        let (poller, sleep) = stalled_call(mail, 0);
        assert_eq!(sleep, Sleep::Channel);
        let receivers = [1, 2].map(|receiver| spawn(mail, move |mail| receive(mail, receiver)));
        for receiver in [1, 2] {
            KERNEL.complete(receiver);
            KERNEL.tick();
        }
        for other in receivers {
            other.join().unwrap();
        }
        mail.lock().waiters().remove(&poller);
        check_handled(mail, 2);
    });
}

#[test]
fn follower_that_never_runs_is_passed_over() {
    every_interleaving(|mail| {
        let (poller, _) = stalled_call(mail, 0);
        let other = spawn(mail, |mail| receive(mail, 1));
        let (follower, sleep) = stalled_call(mail, 2);
        assert_ne!(sleep, Sleep::Channel);
        // Hands over to the follower, or to the other call.
        mail.lock().waiters().remove(&poller);
        KERNEL.complete(1);
        KERNEL.tick();
        other.join().unwrap();
        mail.lock().waiters().remove(&follower);
        check_handled(mail, 1);
    });
}

#[test]
fn check_beside_running_poller_loses_no_wake_up() {
    every_interleaving(|mail| {
        let other = spawn(mail, |mail| receive(mail, 1));
        let device = thread::spawn(|| {
            KERNEL.complete(0);
            KERNEL.tick();
            KERNEL.complete(1);
        });
        receive(mail, 0);
        other.join().unwrap();
        device.join().unwrap();
        check_handled(mail, 2);
    });
}

/// A task of the model.
struct Task;

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        KERNEL.step(|state| state.woken_tasks += 1);
    }
}

/// Runs the standby thread until `completions` have been handled, by any thread.
fn stand_by(mail: &Mail, mut standby: Standby<u8>, completions: u32) {
    loop {
        let mut state = mail.lock();
        let sleep = standby.poll(&mut state).unwrap();
        if state.handled == completions {
            return;
        }
        drop(state);
        match sleep {
            None => {}
            Some(Sleep::Channel) => {
                os::sleep(Some(standby.event()), Some(mail.channel()), None);
            }
            Some(Sleep::Event(time)) => {
                os::sleep(Some(standby.event()), None::<&Channel>, Some(time));
            }
        }
    }
}

#[test]
fn task_is_woken_by_standby_thread() {
    every_interleaving(|mail| {
        let standby = mail.stand_by().unwrap();
        let thread = spawn(mail, |mail| stand_by(mail, standby, 1));
        mail.lock().waiters.add_task(1, &Arc::new(Task).into());
        KERNEL.complete(1);
        KERNEL.wait_for_task();
        thread.join().unwrap();
        assert_eq!(mail.lock().handled, 1);
    });
}

#[test]
fn standby_thread_polls_after_last_call() {
    every_interleaving(|mail| {
        let standby = mail.stand_by().unwrap();
        let thread = spawn(mail, |mail| stand_by(mail, standby, 2));
        KERNEL.complete(0);
        receive(mail, 0);
        // No call comes from here on: at the second check at the latest, the thread polls.
        KERNEL.complete(1);
        KERNEL.tick();
        KERNEL.tick();
        thread.join().unwrap();
        assert_eq!(mail.lock().arrived, [0, 1, 0]);
    });
}

/// A standby thread that polls, since no call has come between two checks.
fn polling_standby(mail: &Mail) -> Standby<u8> {
    let mut standby = mail.stand_by().unwrap();
    let sleeps = [(); 3].map(|()| {
        KERNEL.tick();
        standby.poll(&mut mail.lock()).unwrap()
    });
    assert_eq!(sleeps[2], Some(Sleep::Channel));
    standby
}

#[test]
fn replaced_standby_thread_polls_after_last_call() {
    // A third preemption would take a minute.
    interleavings(2, |mail| {
        let standby = polling_standby(mail);
        let thread = spawn(mail, |mail| stand_by(mail, standby, 2));
        let device = thread::spawn(|| KERNEL.complete(0));
        receive(mail, 0);
        device.join().unwrap();
        KERNEL.complete(1);
        KERNEL.tick();
        KERNEL.tick();
        thread.join().unwrap();
        assert_eq!(mail.lock().arrived, [0, 1, 0]);
    });
}

#[test]
fn call_replaces_standby_thread() {
    every_interleaving(|mail| {
        let _standby = polling_standby(mail);
        let device = thread::spawn(|| KERNEL.complete(0));
        // The thread does not run from here on.
        receive(mail, 0);
        device.join().unwrap();
    });
}

/// An event loop with one task, without a standby thread: polls, and watches the channel and the
/// task's eventfd.
fn event_loop(mail: &Mail, receiver: u8) {
    let event = Arc::new(os::EventFd::new().unwrap());
    let task = Waker::from(Arc::clone(&event));
    loop {
        let mut state = mail.lock();
        if state.arrived[usize::from(receiver)] > 0 {
            state.arrived[usize::from(receiver)] -= 1;
            return state.waiters().remove_task(&task);
        }
        state.waiters().add_task(receiver, &task);
        let is_armed = !state.poll_or_arm().unwrap();
        drop(state);
        if is_armed {
            os::sleep(Some(&event), Some(mail.channel()), None);
        }
        mail.lock().waiters().remove_task(&task);
    }
}

#[test]
fn event_loop_beside_call_loses_no_wake_up() {
    every_interleaving(|mail| {
        let other = spawn(mail, |mail| receive(mail, 1));
        let device = thread::spawn(|| [0, 1].map(|receiver| KERNEL.complete(receiver)));
        event_loop(mail, 0);
        other.join().unwrap();
        device.join().unwrap();
        check_handled(mail, 2);
    });
}

#[test]
fn two_event_loops_lose_no_wake_up() {
    every_interleaving(|mail| {
        let other = spawn(mail, |mail| event_loop(mail, 1));
        let device = thread::spawn(|| [0, 1].map(|receiver| KERNEL.complete(receiver)));
        event_loop(mail, 0);
        other.join().unwrap();
        device.join().unwrap();
        check_handled(mail, 2);
    });
}

#[test]
fn busy_call_loses_no_wake_up() {
    // A third preemption would take a minute.
    interleavings(2, |mail| {
        KERNEL.step(|state| state.poll_time = Duration::from_secs(1));
        let other = spawn(mail, |mail| receive(mail, 1));
        let device = thread::spawn(|| [1, 0].map(|receiver| KERNEL.complete(receiver)));
        let mut state = mail.lock();
        while state.arrived[0] == 0 {
            let busy_until = Some(Instant::after(Duration::from_secs(1)));
            state = mail.wait(state, 0, None, busy_until).unwrap().0;
        }
        state.arrived[0] -= 1;
        drop(state);
        other.join().unwrap();
        device.join().unwrap();
        check_handled(mail, 2);
    });
}
