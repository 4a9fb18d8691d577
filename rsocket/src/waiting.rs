//! Blocking of calls on a socket of any kind.

use std::{
    cell::RefCell,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};

use crate::{
    config::config,
    proto::stream::Readiness,
    waiters::{EventFd, Interest, Waiters, Watcher},
};

/// Number of polls between reads of the clock, possibly more expensive than a poll.
const POLLS_PER_CLOCK_READ: u32 = 16;

/// Adaptive spinning: if the last sleep was shorter than `EAGER` polling intervals, the next wait spins for
/// as long before sleeping. A wake-up takes longer.
const SPIN_FACTOR: u32 = 10;

/// After a longer sleep below `SHORT` polling intervals, one wait in `SELDOM` also spins: both sides may be
/// sleeping only because of the other.
const SHORT: u32 = 30;
const SPIN_INTERVAL: u32 = 8;

/// Maximum number of processing rounds per call; the rest remains for later, since a peer may send faster
/// than this side processes.
const ROUNDS: u32 = 1024;

/// Polling interval of a thread without a descriptor for wake-ups.
const RECHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Whether an error is the descriptor limit of the process or of the host.
fn is_out_of_descriptors(err: &io::Error) -> bool {
    let code = err.raw_os_error();
    code == Some(Errno::MFILE.raw_os_error()) || code == Some(Errno::NFILE.raw_os_error())
}

/// Blocking mode of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitMode {
    /// Nonblocking; the descriptor of this watcher signals a retry.
    Watch(usize),
    /// Blocks until a deadline.
    Until(Instant),
    /// Blocks without a limit.
    Endless,
}

impl WaitMode {
    pub(crate) fn from_timeout(timeout: Option<Duration>) -> Self {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        deadline.map_or(Self::Endless, Self::Until)
    }

    /// Returns the deadline, if any.
    pub(crate) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until(deadline) => Some(deadline),
            Self::Watch(_) | Self::Endless => None,
        }
    }
}

thread_local! {
    static EVENT_FD: RefCell<Option<(u64, EventFd)>> = const { RefCell::new(None) };
}

/// Returns the eventfd of this thread, for one wait at a time. A forked child gets a new eventfd.
pub(crate) fn thread_event_fd() -> io::Result<EventFd> {
    let process = verbs::fork::fork_generation();
    EVENT_FD.with_borrow_mut(|own| match own {
        Some((owner, event_fd)) if *owner == process => Ok(event_fd.clone()),
        _ => {
            let event_fd = EventFd::new()?;
            *own = Some((process, event_fd.clone()));
            Ok(event_fd)
        }
    })
}

/// Sleeps until a descriptor is readable. Returns which are.
///
/// # Errors
/// - `WouldBlock`: the deadline has passed.
/// - `Interrupted`: a signal interrupted the sleep.
pub(crate) fn sleep<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    deadline: Option<Instant>,
) -> io::Result<[bool; N]> {
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let timeout = left.and_then(|left| left.try_into().ok());
    match poll(&mut fds, timeout.as_ref())? {
        0 => Err(io::ErrorKind::WouldBlock.into()),
        _ => Ok(fds.map(|fd| !fd.revents().is_empty())),
    }
}

/// Mutable state of a socket, driven by the calls of all threads.
pub(crate) trait Pollable {
    /// Notifies of completions.
    type Channel: AsFd;

    fn waiters(&mut self) -> &mut Waiters;

    /// Returns the operations possible without blocking.
    fn readiness(&self) -> Readiness;

    /// Processes completions. Returns whether there was one.
    fn process(&mut self) -> io::Result<bool>;

    /// Like [`process`](Self::process) during spinning: completions irrelevant for `interest` may remain
    /// until `arm`, or until there is a relevant one.
    fn poll(&mut self, interest: Interest) -> io::Result<bool> {
        let _ = interest;
        self.process()
    }

    /// Requests events for `interest`, then processes completions that came before. Returns whether there was
    /// one.
    fn arm(&mut self, interest: Interest) -> io::Result<bool>;

    /// Takes the available events.
    fn take_events(&mut self, channel: &Self::Channel) -> io::Result<()>;

    /// Takes the events if due; otherwise makes no system call.
    fn take_due_events(&mut self, channel: &Self::Channel) -> io::Result<()>;

    /// Wakes the waiters whose interest is met.
    fn wake(&mut self) {
        let readiness = self.readiness();
        self.waiters().wake(readiness);
    }
}

/// Requests events and processes all earlier completions. Returns false if completions arrive faster than
/// this side processes them.
fn arm_and_process(state: &mut impl Pollable, interest: Interest) -> io::Result<bool> {
    for _ in 0..ROUNDS {
        if !state.arm(interest)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A socket shared by several threads.
///
/// Each call processes the completions present. A blocked call waits for the completion channel and for its
/// own eventfd, notified by a call that processes completions in the meantime.
#[derive(Debug)]
pub(crate) struct Shared<S: Pollable> {
    state: Mutex<S>,
    channel: S::Channel,
    /// Descriptor of the first watcher.
    poller: Arc<OwnedFd>,
    /// The next wait spins longer.
    spins_longer: AtomicBool,
    /// Number of sleeps of medium length.
    medium_sleeps: AtomicU32,
}

impl<S: Pollable> Shared<S> {
    /// `watcher` watches `channel`; `state` receives the waiters.
    pub(crate) fn new(
        channel: S::Channel,
        watcher: Watcher,
        state: impl FnOnce(Waiters) -> S,
    ) -> Self {
        let poller = Arc::clone(watcher.poller());
        Self {
            state: Mutex::new(state(Waiters::new(watcher))),
            channel,
            poller,
            spins_longer: AtomicBool::new(false),
            medium_sleeps: AtomicU32::new(0),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, S> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state, unless another thread has locked it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, S>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Descriptor notified of completions, while armed.
    pub(crate) fn completions(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Repeats an attempt until there is a result, processing completions and waiting in between.
    pub(crate) fn until<T>(
        &self,
        interest: Interest,
        mode: WaitMode,
        mut attempt: impl FnMut(&mut S) -> io::Result<Option<T>>,
    ) -> io::Result<T> {
        loop {
            {
                let mut state = self.lock();
                if let WaitMode::Watch(watcher) = mode
                    && let Some(watcher) = state.waiters().watcher(watcher)
                {
                    watcher.leave(interest);
                }
                if let Some(result) = attempt(&mut state)? {
                    return Ok(result);
                }
                if state.process()?
                    && let Some(result) = attempt(&mut state)?
                {
                    return Ok(result);
                }
                if let WaitMode::Watch(watcher) = mode {
                    self.watch(&mut state, watcher, interest)?;
                    let result = attempt(&mut state)?;
                    if result.is_some() {
                        // The result is returned now, so no notification is due.
                        if let Some(watcher) = state.waiters().watcher(watcher) {
                            watcher.leave(interest);
                        }
                    }
                    return result.ok_or_else(|| io::ErrorKind::WouldBlock.into());
                }
            }
            self.wait(interest, mode)?;
        }
    }

    /// Blocks until a retry is worthwhile.
    fn wait(&self, interest: Interest, mode: WaitMode) -> io::Result<()> {
        let deadline = mode.deadline();
        let polling_time = config().polling_time;
        let spins_longer = self.spins_longer.load(Relaxed);
        let mode = if spins_longer {
            polling_time * SPIN_FACTOR
        } else {
            polling_time
        };
        let start = Instant::now();
        let mut spinning = !mode.is_zero();
        while spinning {
            for _ in 0..POLLS_PER_CLOCK_READ {
                if self.lock().poll(interest)? {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            spinning = start.elapsed() < mode;
        }
        let (event_fd, name) = {
            let mut state = self.lock();
            state.take_due_events(&self.channel)?;
            // Taking the events also affects the other waiters.
            let all = state.waiters().interest_with(interest);
            if state.arm(all)? || !interest.any && interest.is_met(state.readiness()) {
                return Ok(());
            }
            match thread_event_fd() {
                Ok(event_fd) => {
                    let name = state.waiters().add(interest, &event_fd);
                    (event_fd, name)
                }
                Err(err) if is_out_of_descriptors(&err) => {
                    drop(state);
                    return self.wait_without_event_fd(deadline);
                }
                Err(err) => return Err(err),
            }
        };
        let waited = sleep([self.channel.as_fd(), event_fd.as_fd()], deadline);
        let spins_longer = self.is_spinning_worthwhile(start.elapsed(), polling_time);
        self.spins_longer.store(spins_longer, Relaxed);
        let ended = self.end_wait(name);
        // A notification after that only shortens the next wait.
        if let Ok([_, true]) = waited {
            event_fd.drain();
        }
        ended.and(waited.map(drop))
    }

    /// Waits for the completion channel only, in a thread without a descriptor for its eventfd. Another thread
    /// may take the event, so the state is checked every [`WITHOUT_BELL`].
    fn wait_without_event_fd(&self, deadline: Option<Instant>) -> io::Result<()> {
        let soon = Instant::now() + RECHECK_INTERVAL;
        let until = deadline.map_or(soon, |deadline| deadline.min(soon));
        match sleep([self.channel.as_fd()], Some(until)) {
            Err(err) if err.kind() == io::ErrorKind::WouldBlock && Some(until) != deadline => {}
            waited => drop(waited?),
        }
        self.lock().process().map(drop)
    }

    /// Whether the next wait should spin longer, after a sleep of `waited`.
    fn is_spinning_worthwhile(&self, waited: Duration, polling_time: Duration) -> bool {
        if waited >= polling_time * SHORT {
            return false;
        }
        waited < polling_time * SPIN_FACTOR
            || self
                .medium_sleeps
                .fetch_add(1, Relaxed)
                .is_multiple_of(SPIN_INTERVAL)
    }

    /// Registers a waiter, woken by `event_fd` or by the completion descriptor. Returns the present readiness,
    /// and the name for [`end_wait`](Self::end_wait).
    pub(crate) fn begin_wait(
        &self,
        interest: Interest,
        event_fd: &EventFd,
    ) -> io::Result<(Readiness, u64)> {
        let mut state = self.lock();
        state.take_due_events(&self.channel)?;
        let all = state.waiters().interest_with(interest);
        if !arm_and_process(&mut *state, all)? {
            event_fd.notify();
        }
        let name = state.waiters().add(interest, event_fd);
        Ok((state.readiness(), name))
    }

    /// Removes a waiter and processes completions.
    pub(crate) fn end_wait(&self, name: u64) -> io::Result<()> {
        let mut state = self.lock();
        state.waiters().remove(name);
        let came = state.process()?;
        let others = state.waiters().interest();
        if came && others.is_none() {
            // The next waiter takes the event.
            return Ok(());
        }
        state.take_events(&self.channel)?;
        if let Some(interest) = others {
            // The event taken was also the other waiters': arm again, and process all completions up to then.
            if !arm_and_process(&mut *state, interest)? {
                state.waiters().notify();
            }
        }
        Ok(())
    }

    /// Returns the operations possible without blocking.
    pub(crate) fn readiness_now(&self) -> io::Result<Readiness> {
        let mut state = self.lock();
        state.process()?;
        Ok(state.readiness())
    }

    /// Returns the operations possible without blocking, and keeps watchers notified, even if a call has
    /// changed the dependence on send completions: without room, writability depends on them.
    pub(crate) fn readiness_watched(&self) -> io::Result<Readiness> {
        let mut state = self.lock();
        let all = state.waiters().interest_with(Interest::default());
        for _ in 0..ROUNDS {
            state.take_due_events(&self.channel)?;
            if !state.arm(all)? {
                return Ok(state.readiness());
            }
        }
        state.waiters().notify();
        Ok(state.readiness())
    }

    /// Returns the operations possible without blocking, and notifies the descriptor of the next change.
    pub(crate) fn readiness(&self) -> io::Result<Readiness> {
        self.watch_readiness(0)
    }

    /// Works like [`readiness`](Self::readiness) for the descriptor of another watcher.
    pub(crate) fn watch_readiness(&self, watcher: usize) -> io::Result<Readiness> {
        let mut state = self.lock();
        self.watch(&mut state, watcher, Interest::BOTH)?;
        Ok(state.readiness())
    }

    /// Adds a watcher. Returns its index and its descriptor.
    pub(crate) fn add_watcher(&self) -> io::Result<(usize, Arc<OwnedFd>)> {
        let new = Watcher::new(self.channel.as_fd())?;
        let poller = Arc::clone(new.poller());
        let mut state = self.lock();
        Ok((state.waiters().add_watcher(new), poller))
    }

    /// Removes a watcher; its descriptor is no longer notified.
    #[cfg(feature = "tokio")]
    pub(crate) fn remove_watcher(&self, watcher: usize) {
        self.lock().waiters().remove_watcher(watcher);
    }

    /// Notifies other callers sharing a watcher.
    #[cfg(feature = "tokio")]
    pub(crate) fn pass_on(&self, watcher: usize, interest: Interest) {
        let mut state = self.lock();
        if let Some(watcher) = state.waiters().watcher(watcher) {
            watcher.watch(interest);
            watcher.notify(interest);
        }
    }

    /// Notifies the descriptor of a watcher of the next change.
    fn watch(&self, state: &mut S, watcher: usize, interest: Interest) -> io::Result<()> {
        let waiters = state.waiters();
        if let Some(watcher) = waiters.watcher(watcher) {
            watcher.watch(interest);
        }
        let all = waiters.interest_with(interest);
        for _ in 0..ROUNDS {
            state.take_due_events(&self.channel)?;
            if !state.arm(all)? {
                return Ok(());
            }
        }
        if let Some(watcher) = state.waiters().watcher(watcher) {
            watcher.notify(interest);
        }
        Ok(())
    }
}

impl<S: Pollable> AsFd for Shared<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test socket receiving numbers without notification.
    #[derive(Debug)]
    struct Numbers {
        waiters: Waiters,
        completed: Vec<u32>,
        arrived: Vec<u32>,
        /// Room available, not yet processed.
        freed: bool,
        room: bool,
        /// Numbers completing when events are requested.
        late: Vec<u32>,
        /// Requested events.
        asked: Vec<Interest>,
        /// Irrelevant completions arrive continuously.
        flooded: bool,
    }

    impl Pollable for Numbers {
        type Channel = EventFd;

        fn waiters(&mut self) -> &mut Waiters {
            &mut self.waiters
        }

        fn readiness(&self) -> Readiness {
            Readiness {
                readable: !self.arrived.is_empty(),
                writable: self.room,
                ..Readiness::default()
            }
        }

        fn process(&mut self) -> io::Result<bool> {
            let came = !self.completed.is_empty() || self.freed;
            self.arrived.append(&mut self.completed);
            self.room |= std::mem::take(&mut self.freed);
            if came {
                self.wake();
            }
            Ok(came || self.flooded)
        }

        fn arm(&mut self, interest: Interest) -> io::Result<bool> {
            self.asked.push(interest);
            self.completed.append(&mut self.late);
            self.process()
        }

        fn take_events(&mut self, _channel: &EventFd) -> io::Result<()> {
            Ok(())
        }

        fn take_due_events(&mut self, _channel: &EventFd) -> io::Result<()> {
            Ok(())
        }
    }

    fn numbers() -> Shared<Numbers> {
        let channel = EventFd::new().unwrap();
        let watcher = Watcher::new(channel.as_fd()).unwrap();
        Shared::new(channel, watcher, |waiters| Numbers {
            waiters,
            completed: vec![],
            arrived: vec![],
            freed: false,
            room: false,
            late: vec![],
            asked: vec![],
            flooded: false,
        })
    }

    fn take(shared: &Shared<Numbers>) -> io::Result<u32> {
        shared.until(Interest::READ, WaitMode::Watch(0), |state| {
            Ok(state.arrived.pop())
        })
    }

    /// Uses up the room.
    fn fill(shared: &Shared<Numbers>) -> io::Result<()> {
        shared.until(Interest::WRITE, WaitMode::Watch(0), |state| {
            Ok(std::mem::take(&mut state.room).then_some(()))
        })
    }

    fn would_block<T: std::fmt::Debug>(tried: io::Result<T>) -> bool {
        tried.unwrap_err().kind() == io::ErrorKind::WouldBlock
    }

    fn is_readable(shared: &Shared<Numbers>) -> bool {
        verbs::fd::wait_readable("poll", shared.as_fd(), Some(Duration::ZERO)).unwrap()
    }

    #[test]
    fn wait_after_short_sleep_spins_longer() {
        let shared = numbers();
        let unit = Duration::from_micros(10);
        let after = |waited| shared.is_spinning_worthwhile(Duration::from_micros(waited), unit);
        assert!((0..20).all(|_| after(99)));
        assert!((0..20).all(|_| !after(300)));
        let tries = (0..24).filter(|_| after(299)).count();
        assert_eq!(tries, 3, "now and then");
        // Without polling, there is no spinning.
        assert!(!shared.is_spinning_worthwhile(Duration::ZERO, Duration::ZERO));
    }

    /// One of two callers takes a number, and its processing finds one for the other.
    #[test]
    fn shared_watcher_passes_readiness_on() {
        let shared = numbers();
        let nothing = |taken: io::Result<u32>| taken.unwrap_err().kind();
        assert_eq!(nothing(take(&shared)), io::ErrorKind::WouldBlock);
        shared.lock().completed = vec![1, 2];
        assert_eq!(take(&shared).unwrap(), 2);
        assert!(!is_readable(&shared), "the descriptor stays unreadable");
        shared.pass_on(0, Interest::READ);
        assert!(is_readable(&shared));
        assert_eq!(take(&shared).unwrap(), 1);
        // A caller without a result watches again and is notified.
        assert_eq!(nothing(take(&shared)), io::ErrorKind::WouldBlock);
        assert!(!is_readable(&shared));
        shared.lock().completed = vec![3];
        assert!(shared.lock().process().unwrap());
        assert!(is_readable(&shared));
    }

    /// One descriptor signals both directions.
    #[test]
    fn read_keeps_descriptor_readable_for_room() {
        let shared = numbers();
        assert!(would_block(fill(&shared)));
        shared.lock().freed = true;
        assert!(would_block(take(&shared)));
        assert!(is_readable(&shared), "there is room");
        assert!(would_block(take(&shared)));
        assert!(is_readable(&shared), "no write has been tried");
        fill(&shared).unwrap();
        assert!(would_block(take(&shared)));
        assert!(!is_readable(&shared));
        // The same with exchanged directions.
        assert!(would_block(fill(&shared)));
        shared.lock().completed = vec![1];
        assert!(would_block(fill(&shared)));
        assert!(is_readable(&shared), "there is a number");
        assert_eq!(take(&shared).unwrap(), 1);
        assert!(would_block(fill(&shared)));
        assert!(!is_readable(&shared));
    }

    /// A write has used up the room, while a thread watches for room.
    #[test]
    fn readiness_call_keeps_watchers_armed() {
        let shared = numbers();
        let (watcher, fd) = shared.add_watcher().unwrap();
        shared.lock().room = true;
        shared.watch_readiness(watcher).unwrap();
        shared.lock().asked.clear();
        shared.lock().room = false;
        assert!(!shared.readiness_watched().unwrap().writable);
        assert_eq!(shared.lock().asked, [Interest::BOTH]);
        // A number has arrived; the watcher is notified.
        shared.lock().completed = vec![1];
        assert!(shared.readiness_watched().unwrap().readable);
        let notified = || {
            let limit = Some(Duration::ZERO);
            verbs::fd::wait_readable("poll", fd.as_fd(), limit).unwrap()
        };
        assert!(notified() && shared.readiness_watched().unwrap().readable && notified());
        shared.watch_readiness(watcher).unwrap();
        assert!(!notified());
    }

    /// A completion arrives while the descriptor is being registered.
    #[test]
    fn completion_found_while_arming_leaves_descriptor_quiet() {
        let shared = numbers();
        assert!(would_block(take(&shared)));
        let mut tries = 0;
        let taken = shared.until(Interest::READ, WaitMode::Watch(0), |state| {
            tries += 1;
            if tries == 1 {
                // The next `process` finds nothing, but `arm` does.
                state.late = vec![2];
            }
            Ok(state.arrived.pop())
        });
        assert_eq!(taken.unwrap(), 2);
        assert!(would_block(fill(&shared)));
        assert!(!is_readable(&shared), "it has been taken");
    }

    /// A new waiter takes the events of the present waiters.
    #[test]
    fn wait_arms_the_interest_of_all_waiters() {
        let shared = numbers();
        let event_fd = EventFd::new().unwrap();
        let asked = || std::mem::take(&mut shared.lock().asked);
        let begin = |interest| shared.begin_wait(interest, &event_fd).unwrap().1;
        let writer = begin(Interest::WRITE);
        assert_eq!(asked(), [Interest::WRITE]);
        let reader = begin(Interest::READ);
        assert_eq!(asked(), [Interest::BOTH]);
        shared.end_wait(reader).unwrap();
        assert_eq!(asked(), [Interest::WRITE]);
        // A sleeping call also takes events and restores the others'.
        let now = WaitMode::Until(Instant::now());
        shared.wait(Interest::READ, now).unwrap_err();
        assert_eq!(asked(), [Interest::BOTH, Interest::WRITE]);
        shared.end_wait(writer).unwrap();
        shared.wait(Interest::READ, now).unwrap_err();
        assert_eq!(
            asked(),
            [Interest::READ],
            "the interest of ended waits is not armed"
        );
    }

    #[test]
    fn endless_completions_do_not_block_a_call() {
        let shared = numbers();
        shared.lock().flooded = true;
        assert!(would_block(take(&shared)));
        assert!(is_readable(&shared), "there is more to look at");
        assert!(would_block(fill(&shared)));
        assert!(is_readable(&shared));
        let event_fds = [(); 2].map(|()| EventFd::new().unwrap());
        let names = event_fds.each_ref().map(|event_fd| {
            let name = shared.begin_wait(Interest::READ, event_fd).unwrap().1;
            verbs::fd::wait_readable("poll", event_fd.as_fd(), None).unwrap();
            event_fd.drain();
            name
        });
        shared.end_wait(names[0]).unwrap();
        verbs::fd::wait_readable("poll", event_fds[1].as_fd(), None).unwrap();
        shared.end_wait(names[1]).unwrap();
        shared.lock().flooded = false;
        assert!(would_block(fill(&shared)) && would_block(take(&shared)));
        assert!(!is_readable(&shared));
    }
}
