//! Waiters on this system, with an eventfd as the channel.

use std::{
    cell::RefCell,
    collections::VecDeque,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::thread::JoinHandleExt,
    },
    panic::{AssertUnwindSafe, catch_unwind, panic_any},
    sync::{Arc, Mutex, mpsc},
    task::{Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use super::{EventFd, Guard, Shared, Sleep, Source, WaitEnd, Waiters, shared::step, waiters};
use crate::{
    error::{Error, Result},
    fd::wait_readable,
};

/// A queue of a device: completions name their receiver.
#[derive(Debug, Default)]
struct Device {
    queue: Mutex<(VecDeque<usize>, bool)>,
    channel: Option<EventFd>,
}

impl Device {
    fn complete(&self, receiver: usize) {
        let mut queue = self.queue.lock().unwrap();
        queue.0.push_back(receiver);
        if std::mem::take(&mut queue.1) {
            self.channel().notify();
        }
    }

    fn channel(&self) -> &EventFd {
        self.channel.as_ref().unwrap()
    }
}

/// The channel of a device.
struct Channel(Arc<Device>);

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.channel().as_fd()
    }
}

#[derive(Debug)]
struct Mailbox {
    device: Arc<Device>,
    waiters: Waiters<usize>,
    arrived: Vec<u32>,
    /// Polling fails.
    is_broken: bool,
    /// Polling panics.
    panics: bool,
    /// A completion arrives and is handled before the queue is armed, without an event.
    handles_while_arming: bool,
}

impl Source for Mailbox {
    type Interest = usize;
    type Error = Error;

    fn waiters(&mut self) -> &mut Waiters<usize> {
        &mut self.waiters
    }

    fn process(&mut self) -> Result<bool> {
        assert!(!self.panics, "the source panics");
        if self.is_broken {
            return Err(Error::from_errno("ibv_poll_cq", libc::EIO));
        }
        let next = self.device.queue.lock().unwrap().0.pop_front();
        if let Some(receiver) = next {
            self.arrived[receiver] += 1;
            self.waiters.wake_interest(receiver);
        }
        Ok(next.is_some())
    }

    fn drain_events(&mut self) -> Result<()> {
        self.device.channel().drain();
        Ok(())
    }

    fn arm(&mut self) -> Result<()> {
        if self.handles_while_arming {
            self.device.complete(0);
            self.process()?;
        }
        self.device.queue.lock().unwrap().1 = true;
        Ok(())
    }
}

type Mail = Shared<Mailbox, Channel>;

fn mail(receivers: usize) -> (Arc<Device>, Mail) {
    let device = Arc::new(Device {
        channel: Some(EventFd::new().unwrap()),
        ..Device::default()
    });
    let state = Mailbox {
        device: Arc::clone(&device),
        waiters: Waiters::new(),
        arrived: vec![0; receivers],
        is_broken: false,
        panics: false,
        handles_while_arming: false,
    };
    let channel = Channel(Arc::clone(&device));
    (device, Shared::new(state, channel))
}

fn receive(mail: &Mail, receiver: usize, deadline: Option<Instant>) -> Result<WaitEnd> {
    receive_with(EventFd::of_thread().ok(), mail, receiver, deadline)
}

/// Without an event, as when too many files are open.
fn receive_with(
    event: Option<Arc<EventFd>>,
    mail: &Mail,
    receiver: usize,
    deadline: Option<Instant>,
) -> Result<WaitEnd> {
    let mut state = mail.lock();
    loop {
        if state.arrived[receiver] > 0 {
            state.arrived[receiver] -= 1;
            return Ok(WaitEnd::Woken);
        }
        let end;
        (state, end) = mail.wait_with(event.clone(), state, receiver, deadline, None)?;
        if end != WaitEnd::Woken {
            return Ok(end);
        }
    }
}

/// A call that waits for a message.
type Ticket = waiters::Ticket<usize>;

/// A call whose thread never runs again once it sleeps.
fn stalled_call(mail: &Mail) -> (Ticket, Sleep) {
    stalled_call_for(mail, 0)
}

fn stalled_call_for(mail: &Mail, receiver: usize) -> (Ticket, Sleep) {
    let mut state = mail.lock();
    let mut ticket = state
        .waiters()
        .add(Some(receiver), EventFd::new().ok().map(Arc::new));
    let sleep = step(&mut *state, &mut ticket, false).unwrap();
    (ticket, sleep.expect("there are no messages yet"))
}

/// Steps of a follower whose time for a check has come.
fn check(mail: &Mail, follower: &mut Ticket) -> Option<Sleep> {
    follower.check_at = Some(Instant::now());
    step(&mut *mail.lock(), follower, false).unwrap()
}

#[test]
fn blocked_threads_receive_all_messages() {
    const ROUNDS: usize = 2000;
    const THREADS: usize = 4;
    let (device, mail) = mail(THREADS);
    thread::scope(|scope| {
        for receiver in 0..THREADS {
            let mail = &mail;
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    assert_eq!(receive(mail, receiver, None).unwrap(), WaitEnd::Woken);
                }
            });
        }
        for round in 0..ROUNDS {
            for receiver in 0..THREADS {
                device.complete((receiver + round) % THREADS);
            }
            thread::yield_now();
        }
    });
    let state = mail.lock();
    assert_eq!(state.arrived, [0; THREADS]);
    assert!(state.waiters.is_empty());
}

#[test]
fn call_past_its_deadline_times_out() {
    let (_device, mail) = mail(2);
    let soon = || Some(Instant::now() + Duration::from_millis(5));
    assert_eq!(
        receive(&mail, 1, Some(Instant::now())).unwrap(),
        WaitEnd::TimedOut
    );
    assert_eq!(receive(&mail, 1, soon()).unwrap(), WaitEnd::TimedOut);
    let (poller, _) = stalled_call(&mail);
    assert_eq!(
        receive(&mail, 1, soon()).unwrap(),
        WaitEnd::TimedOut,
        "as a follower"
    );
    mail.lock().waiters().remove(&poller);
    assert!(mail.lock().waiters.is_empty());
}

/// Neither the poller nor the latest follower runs.
#[test]
fn stalled_calls_delay_no_other_call() {
    let (device, mail) = mail(2);
    thread::scope(|scope| {
        let (poller, sleep) = stalled_call(&mail);
        assert_eq!(sleep, Sleep::Channel);
        let other = scope.spawn(|| receive(&mail, 1, None));
        let (follower, sleep) = stalled_call(&mail);
        assert!(matches!(sleep, Sleep::Event(_)));
        device.complete(1);
        assert_eq!(other.join().unwrap().unwrap(), WaitEnd::Woken);
        for stalled in [poller, follower] {
            mail.lock().waiters().remove(&stalled);
        }
    });
}

/// Two threads have descriptors: threads with and without are pollers and followers of each other.
#[test]
fn threads_without_descriptors_receive_all_messages() {
    const ROUNDS: usize = 100;
    const THREADS: usize = 4;
    let (device, mail) = mail(THREADS);
    thread::scope(|scope| {
        let threads = (0..THREADS).map(|receiver| {
            let mail = &mail;
            scope.spawn(move || {
                let event = (receiver % 2 == 0).then(|| EventFd::of_thread().unwrap());
                for _ in 0..ROUNDS {
                    let end = receive_with(event.clone(), mail, receiver, None).unwrap();
                    assert_eq!(end, WaitEnd::Woken);
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        for round in 0..ROUNDS {
            for receiver in 0..THREADS {
                device.complete((receiver + round) % THREADS);
            }
            thread::yield_now();
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
    assert!(mail.lock().waiters.is_empty());
}

/// The message was handled by another thread, so no event of the channel follows.
#[test]
fn poller_without_descriptor_notices_messages_handled_by_others() {
    let (_device, mail) = mail(1);
    let late = Instant::now() + Duration::from_secs(20);
    thread::scope(|scope| {
        let poller = scope.spawn(|| receive_with(None, &mail, 0, Some(late)));
        while mail.lock().waiters.is_empty() {
            thread::yield_now();
        }
        let mut state = mail.lock();
        state.arrived[0] += 1;
        state.waiters.wake_interest(0);
        drop(state);
        assert_eq!(poller.join().unwrap().unwrap(), WaitEnd::Woken);
        assert!(Instant::now() < late, "noticed at the deadline only");
    });
}

#[test]
fn thread_without_descriptor_times_out_at_its_deadline() {
    let (_device, mail) = mail(1);
    let start = Instant::now();
    let deadline = start + Duration::from_millis(20);
    let end = receive_with(None, &mail, 0, Some(deadline)).unwrap();
    assert_eq!(end, WaitEnd::TimedOut);
    assert!(Instant::now() >= deadline);
}

extern "C" fn ignore(_signal: libc::c_int) {}

#[test]
fn signal_interrupts_poller_and_follower() {
    let handler: extern "C" fn(libc::c_int) = ignore;
    // SAFETY: an action is plain data.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    // Restarts of system calls make no difference to `poll`.
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler does nothing, and C reads the action only before the return.
    let ret = unsafe { libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut()) };
    assert_eq!(ret, 0);
    let (_device, mail) = mail(2);
    let mail = Arc::new(mail);
    let mut stalled = Vec::new();
    for _ in 0..2 {
        let waiting = Arc::clone(&mail);
        let thread = thread::spawn(move || receive(&waiting, 1, None));
        while !thread.is_finished() {
            // SAFETY: the thread has not been joined, so its identifier is valid.
            unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGURG) };
            thread::yield_now();
        }
        assert_eq!(thread.join().unwrap().unwrap(), WaitEnd::Interrupted);
        stalled.push(stalled_call(&mail));
    }
}

#[test]
fn wait_in_forked_child_is_refused() {
    let (device, mail) = mail(2);
    let (poller, _) = stalled_call(&mail);
    // SAFETY: the child only locks, allocates, and exits; glibc's allocator works after a fork, and
    // no other thread uses the mailbox.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = mail.wait(mail.lock(), 0, None, None);
        let is_refused = refused.is_err_and(|err| err.kind() == io::ErrorKind::Unsupported);
        // The notification of the poller stays in the child.
        mail.lock().waiters().wake(|_| true);
        // SAFETY: ends the child without running any other code of the program.
        unsafe { libc::_exit(i32::from(!is_refused)) }
    }
    let mut status = -1;
    // SAFETY: `status` is there to be written.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(!is_readable(event_of(&poller)) && !is_readable(device.channel()));
    mail.lock().waiters().wake(|_| true);
    assert!(is_readable(event_of(&poller)));
}

#[test]
fn error_of_source_ends_wait_and_hands_over() {
    let (_device, mail) = mail(2);
    mail.lock().is_broken = true;
    let err = receive(&mail, 0, None).unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::EIO));
    let state: Guard<'_, Mailbox> = mail.lock();
    assert!(state.waiters.is_empty());
}

#[test]
fn call_woken_while_arming_does_not_sleep() {
    let (_device, mail) = mail(1);
    let mut state = mail.lock();
    state.handles_while_arming = true;
    let late = Instant::now() + Duration::from_secs(20);
    let (state, end) = mail.wait(state, 0, Some(late), None).unwrap();
    assert_eq!(end, WaitEnd::Woken);
    assert!(Instant::now() < late, "slept, though no event follows");
    assert_eq!(state.arrived, [1]);
}

#[test]
fn poller_that_returns_wakes_the_latest_follower() {
    let (_device, mail) = mail(3);
    let calls = [0, 2, 1].map(|receiver| stalled_call_for(&mail, receiver).0);
    mail.lock().waiters().remove(&calls[0]);
    let woken = calls.each_ref().map(|call| is_readable(event_of(call)));
    assert_eq!(woken, [false, false, true]);
}

#[test]
fn checks_of_followers_become_rarer() {
    let (_device, mail) = mail(1);
    let (poller, _) = stalled_call(&mail);
    let (mut follower, first) = stalled_call(&mail);
    let mut intervals = vec![first];
    for _ in 0..9 {
        intervals.push(check(&mail, &mut follower).expect("there are no messages"));
    }
    let millis = [1, 2, 4, 8, 16, 32, 64, 128, 200, 200];
    let expected = millis.map(|millis| Sleep::Event(Duration::from_millis(millis)));
    assert_eq!(intervals, expected);
    // A spurious wake-up is no check.
    let at = follower.check_at;
    let again = step(&mut *mail.lock(), &mut follower, false).unwrap();
    assert!(matches!(again, Some(Sleep::Event(_))));
    assert_eq!(follower.check_at, at);
    mail.lock().waiters().remove(&poller);
    let next = step(&mut *mail.lock(), &mut follower, false).unwrap();
    assert_eq!(next, Some(Sleep::Channel));
}

fn event_of(call: &Ticket) -> &EventFd {
    call.event.as_ref().unwrap()
}

fn is_readable(event: &EventFd) -> bool {
    wait_readable("poll", event.as_fd(), Some(Duration::ZERO)).unwrap()
}

#[test]
fn check_that_finds_completions_replaces_the_poller() {
    let (device, mail) = mail(2);
    let (poller, _) = stalled_call(&mail);
    let (mut follower, _) = stalled_call(&mail);
    assert!(matches!(check(&mail, &mut follower), Some(Sleep::Event(_))));
    device.complete(1);
    assert_eq!(check(&mail, &mut follower), None);
    let next = |ticket| step(&mut *mail.lock(), ticket, false).unwrap();
    assert_eq!(next(&mut follower), Some(Sleep::Channel));
    let mut replaced = poller;
    assert!(matches!(next(&mut replaced), Some(Sleep::Event(_))));
}

#[test]
fn new_follower_polls_and_arms_for_its_interest() {
    let (device, mail) = mail(2);
    let (_poller, _) = stalled_call(&mail);
    device.complete(1);
    assert!(is_readable(device.channel()));
    let mut state = mail.lock();
    let mut follower = state
        .waiters()
        .add(Some(0), EventFd::new().ok().map(Arc::new));
    let sleep = step(&mut *state, &mut follower, false).unwrap();
    assert_eq!(sleep, None);
    assert_eq!(state.arrived, [0, 1]);
    let sleep = step(&mut *state, &mut follower, false).unwrap();
    assert!(matches!(sleep, Some(Sleep::Event(_))));
    drop(state);
    assert!(!is_readable(device.channel()));
    device.complete(0);
    assert!(is_readable(device.channel()), "the queue is armed again");
}

#[test]
fn standby_thread_checks_rarely_while_calls_poll() {
    let (_device, mail) = mail(1);
    let mut standby = mail.stand_by().unwrap();
    let mut check = || {
        standby.ticket.check_at = Some(Instant::now());
        standby.poll(&mut mail.lock()).unwrap().unwrap()
    };
    let event = |millis| Sleep::Event(Duration::from_millis(millis));
    assert_eq!(check(), event(10));
    let (call, sleep) = stalled_call(&mail);
    assert_eq!(sleep, Sleep::Channel);
    // A call has come since the last check, and then stays.
    let intervals = [(); 9].map(|()| check());
    let expected = [10, 20, 40, 80, 160, 320, 640, 1000, 1000].map(event);
    assert_eq!(intervals, expected);
    mail.lock().waiters().remove(&call);
    assert_eq!(check(), Sleep::Channel, "no call has come since");
}

#[test]
fn standby_thread_waits_for_its_check() {
    let (_device, mail) = mail(1);
    let mut standby = mail.stand_by().unwrap();
    // The thread may be woken at any time, for its other work.
    for _ in 0..100 {
        let sleep = standby.poll(&mut mail.lock()).unwrap().unwrap();
        if sleep == Sleep::Channel {
            unreachable!("only a check, after its interval, makes the thread the poller");
        }
        standby.ticket.check_at = standby
            .ticket
            .check_at
            .map(|at| at + Duration::from_secs(60));
    }
    mail.lock().waiters().add_task(0, Waker::noop());
    assert!(is_readable(standby.event()));
    let sleep = standby.poll(&mut mail.lock()).unwrap().unwrap();
    assert_eq!(sleep, Sleep::Channel, "a task waits");
}

#[test]
fn standby_thread_polls_while_watched() {
    let (_device, mail) = mail(1);
    let mut standby = mail.stand_by().unwrap();
    let mut poll = || standby.poll(&mut mail.lock()).unwrap().unwrap();
    assert!(matches!(poll(), Sleep::Event(_)));
    mail.lock().waiters().set_watched(true);
    assert_eq!(poll(), Sleep::Channel);
    let (call, sleep) = stalled_call(&mail);
    assert_eq!(sleep, Sleep::Channel);
    assert!(matches!(poll(), Sleep::Event(_)), "the call polls");
    standby.event().drain();
    mail.lock().waiters().remove(&call);
    assert!(is_readable(standby.event()));
    mail.lock().waiters().set_watched(false);
    let sleep = standby.poll(&mut mail.lock()).unwrap().unwrap();
    assert!(matches!(sleep, Sleep::Event(_)));
    standby.event().drain();
    mail.lock().waiters().set_watched(true);
    assert!(is_readable(standby.event()));
}

#[test]
fn busy_call_polls_instead_of_standby_thread_and_arms_nothing() {
    let (device, mail) = mail(1);
    let mut standby = mail.stand_by().unwrap();
    mail.lock().waiters().set_watched(true);
    let sleep = standby.poll(&mut mail.lock()).unwrap();
    assert_eq!(sleep, Some(Sleep::Channel));
    device.complete(0);
    let busy_wait = |deadline| {
        let busy_until = Some(Instant::now() + Duration::from_secs(60));
        mail.wait(mail.lock(), 0, deadline, busy_until).unwrap().1
    };
    assert_eq!(busy_wait(None), WaitEnd::Woken);
    standby.event().drain();
    assert!(!mail.lock().waiters().poller_sleeps());
    let soon = Instant::now() + Duration::from_millis(5);
    assert_eq!(busy_wait(Some(soon)), WaitEnd::TimedOut);
    assert!(!device.queue.lock().unwrap().1, "the queue is not armed");
    assert!(is_readable(standby.event()), "the call hands over");
}

#[test]
fn busy_call_sleeps_after_its_time() {
    let (device, mail) = mail(2);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let busy_until = Some(Instant::now() + Duration::from_millis(5));
            mail.wait(mail.lock(), 0, None, busy_until).unwrap().1
        });
        while !mail.lock().waiters().poller_sleeps() {
            thread::yield_now();
        }
        device.complete(1);
        device.complete(0);
        assert_eq!(waiting.join().unwrap(), WaitEnd::Woken);
    });
}

#[test]
fn standby_thread_is_woken_for_other_work() {
    let (_device, mail) = mail(1);
    mail.lock().waiters().wake_standby();
    let standby = mail.stand_by().unwrap();
    assert!(!is_readable(standby.event()));
    mail.lock().waiters().wake_standby();
    assert!(is_readable(standby.event()));
}

#[test]
fn poller_sleeps_until_its_thread_runs() {
    let (_device, mail) = mail(1);
    assert!(!mail.lock().waiters().poller_sleeps());
    let (poller, _) = stalled_call(&mail);
    let (follower, _) = stalled_call(&mail);
    assert!(mail.lock().waiters().poller_sleeps());
    mail.lock().waiters().end_sleep(&poller);
    assert!(!mail.lock().waiters().poller_sleeps());
    for call in [poller, follower] {
        mail.lock().waiters().remove(&call);
    }
    assert!(!mail.lock().waiters().poller_sleeps());
}

#[test]
fn wake_reaches_waiters_of_the_interest_only() {
    let wakes: [fn(&mut Waiters<usize>); 2] = [
        |waiters| waiters.wake_interest(1),
        |waiters| waiters.wake(|&interest| interest == 1),
    ];
    for wake in wakes {
        let (_device, mail) = mail(3);
        let calls = [1, 0, 1, 2].map(|receiver| stalled_call_for(&mail, receiver).0);
        let tasks = [0, 1, 2].map(|receiver| {
            let event = Arc::new(EventFd::new().unwrap());
            let task = Waker::from(Arc::clone(&event));
            mail.lock().waiters().add_task(receiver, &task);
            event
        });
        wake(mail.lock().waiters());
        let woken = calls.each_ref().map(|call| is_readable(event_of(call)));
        assert_eq!(woken, [true, false, true, false]);
        let woken = tasks.each_ref().map(|event| is_readable(event));
        assert_eq!(woken, [false, true, false]);
        let mut state = mail.lock();
        assert_eq!(state.waiters().interests().count(), 6);
        for call in calls {
            state.waiters().remove(&call);
        }
        wake(state.waiters());
        assert_eq!(state.waiters().interests().count(), 2, "two tasks");
    }
}

#[test]
fn task_is_added_once() {
    let (_device, mail) = mail(2);
    let event = Arc::new(EventFd::new().unwrap());
    let task = Waker::from(Arc::clone(&event));
    let owners = Arc::strong_count(&event);
    for added in [1, 1, 2] {
        mail.lock().waiters().add_task(added - 1, &task);
        assert_eq!(Arc::strong_count(&event), owners + added);
    }
}

#[test]
fn descriptor_of_event_loop_is_readable_once_per_registration() {
    let (device, mail) = mail(2);
    let event = Arc::new(EventFd::new().unwrap());
    let task = Waker::from(Arc::clone(&event));
    let complete = |receiver| {
        device.complete(receiver);
        assert!(mail.lock().process().unwrap());
    };
    mail.lock().waiters().add_task(1, &task);
    assert!(!mail.lock().waiters.is_empty());
    complete(0);
    assert!(!is_readable(&event), "a message for another receiver");
    complete(1);
    assert!(is_readable(&event));
    event.drain();
    complete(1);
    assert!(!is_readable(&event), "not registered again");
    assert!(mail.lock().waiters.is_empty());
}

#[test]
fn eventfds_are_reused() {
    let first = EventFd::of_thread().unwrap();
    assert!(Arc::ptr_eq(&first, &EventFd::of_thread().unwrap()));
    let other = thread::spawn(|| EventFd::of_thread().unwrap());
    assert!(!Arc::ptr_eq(&first, &other.join().unwrap()));
}

/// A thread-local value that waits in its destructor.
struct WaitsAtEnd(mpsc::Sender<bool>);

impl Drop for WaitsAtEnd {
    fn drop(&mut self) {
        let event = EventFd::of_thread().unwrap();
        event.notify();
        self.0.send(is_readable(&event)).unwrap();
    }
}

#[test]
fn destructor_of_a_thread_local_value_has_an_eventfd() {
    thread_local! {
        static FIRST: RefCell<Option<WaitsAtEnd>> = const { RefCell::new(None) };
        static LAST: RefCell<Option<WaitsAtEnd>> = const { RefCell::new(None) };
    }
    let (sender, waited) = mpsc::channel();
    let thread = thread::spawn(move || {
        // In either order of the destructors, one of them runs after that of the thread's eventfd.
        FIRST.set(Some(WaitsAtEnd(sender.clone())));
        EventFd::of_thread().unwrap();
        LAST.set(Some(WaitsAtEnd(sender)));
    });
    thread.join().unwrap();
    assert_eq!(waited.iter().collect::<Vec<_>>(), [true, true]);
}

#[test]
fn removed_task_is_not_woken() {
    let (device, mail) = mail(1);
    let events = [(); 2].map(|()| Arc::new(EventFd::new().unwrap()));
    let tasks = events
        .each_ref()
        .map(|event| Waker::from(Arc::clone(event)));
    for task in &tasks {
        mail.lock().waiters().add_task(0, task);
    }
    mail.lock().waiters().remove_task(&tasks[0]);
    device.complete(0);
    assert!(mail.lock().process().unwrap());
    assert_eq!(
        events.each_ref().map(|event| is_readable(event)),
        [false, true]
    );
}

/// A waker that panics, and so does the destructor of its panic's payload.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic_any(Self);
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        assert!(thread::panicking(), "the payload panics");
    }
}

#[test]
fn waker_that_panics_loses_no_other_wake_up() {
    let (device, mail) = mail(1);
    let events = [(); 2].map(|()| Arc::new(EventFd::new().unwrap()));
    let [first, last] = events
        .each_ref()
        .map(|event| Waker::from(Arc::clone(event)));
    for task in [&first, &Waker::from(Arc::new(Panics)), &last] {
        mail.lock().waiters().add_task(0, task);
    }
    device.complete(0);
    assert!(mail.lock().process().unwrap());
    assert_eq!(events.each_ref().map(|event| is_readable(event)), [true; 2]);
    assert!(mail.lock().waiters().is_empty());
}

#[test]
fn call_whose_source_panics_is_no_waiter() {
    let (device, mail) = mail(2);
    // A follower from now on.
    let mut follower = mail
        .lock()
        .waiters()
        .add(Some(1), EventFd::new().ok().map(Arc::new));
    mail.lock().panics = true;
    for (interest, busy_for) in [(0, Duration::ZERO), (0, Duration::from_secs(60))] {
        let busy_until = Instant::now().checked_add(busy_for);
        let wait = || mail.wait(mail.lock(), interest, None, busy_until).map(drop);
        assert!(catch_unwind(AssertUnwindSafe(wait)).is_err());
        let mut state = mail.lock();
        assert_eq!(state.waiters().interests().collect::<Vec<_>>(), [&1]);
        drop(state);
        assert!(
            is_readable(follower.event.as_ref().unwrap()),
            "it hands over"
        );
        follower.event.as_ref().unwrap().drain();
    }
    let mut standby = mail.stand_by().unwrap();
    mail.lock().waiters().remove(&follower);
    mail.lock().waiters().add_task(0, Waker::noop());
    let poll = || standby.poll(&mut mail.lock()).map(drop);
    assert!(catch_unwind(AssertUnwindSafe(poll)).is_err());
    // The next call is the poller.
    mail.lock().panics = false;
    device.complete(1);
    assert_eq!(receive(&mail, 1, None).unwrap(), WaitEnd::Woken);
    follower = mail.lock().waiters().add(Some(1), None);
    let sleep = step(&mut *mail.lock(), &mut follower, false).unwrap();
    assert_eq!(sleep, Some(Sleep::Channel));
}

#[test]
fn locked_state_is_not_locked_again() {
    let (_device, mail) = mail(1);
    let state = mail.lock();
    assert!(mail.try_lock().is_none());
    drop(state);
    assert!(mail.try_lock().is_some());
}
