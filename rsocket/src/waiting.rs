//! How a call waits for a socket, whatever that is made of.

use std::{
    cell::RefCell,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
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
    waiters::{Bell, Interest, Waiters, Watcher},
};

/// How often a call looks before it asks for the time again, which may be dearer than a look.
const LOOKS: u32 = 16;

/// Who has slept for less than so many polling times looks for so many, the next time, before it
/// sleeps. To be woken takes longer than that.
const EAGER: u32 = 10;

/// Who has slept for longer, but less than so many polling times, tries that as well, one time of so many:
/// it may be that both sides sleep only because the other does.
const SHORT: u32 = 30;
const SELDOM: u32 = 8;

/// How often a call handles what has come before it leaves the rest for later: a peer may send faster than
/// that.
const ROUNDS: u32 = 1024;

/// Interval between looks of a thread that has no descriptor to be woken by.
const WITHOUT_BELL: Duration = Duration::from_millis(10);

/// Whether the process, or the host, has as many descriptors open as it may.
fn is_out_of_descriptors(err: &io::Error) -> bool {
    let code = err.raw_os_error();
    code == Some(Errno::MFILE.raw_os_error()) || code == Some(Errno::NFILE.raw_os_error())
}

/// How a call waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// Not at all; the descriptor of this watcher tells when to try again.
    Watch(usize),
    /// Until then.
    Until(Instant),
    /// For ever.
    Endless,
}

impl Patience {
    pub(crate) fn from_timeout(timeout: Option<Duration>) -> Self {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        deadline.map_or(Self::Endless, Self::Until)
    }

    /// When it ends, if that is known.
    pub(crate) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until(deadline) => Some(deadline),
            Self::Watch(_) | Self::Endless => None,
        }
    }
}

thread_local! {
    static BELL: RefCell<Option<(u64, Bell)>> = const { RefCell::new(None) };
}

/// The bell of this thread, which waits for one thing at a time. A child has another than its
/// parent.
pub(crate) fn thread_bell() -> io::Result<Bell> {
    let process = verbs::fork_generation();
    BELL.with_borrow_mut(|own| match own {
        Some((owner, bell)) if *owner == process => Ok(bell.clone()),
        _ => {
            let bell = Bell::new()?;
            *own = Some((process, bell.clone()));
            Ok(bell)
        }
    })
}

/// Sleeps until one of the descriptors is readable. Returns which are.
///
/// # Errors
/// - `WouldBlock`: the deadline has come.
/// - `Interrupted`: a signal has.
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

/// What changes of a socket.
pub(crate) trait Driven {
    /// What tells of completions.
    type Channel: AsFd;

    fn waiters(&mut self) -> &mut Waiters;

    /// What can be done without waiting.
    fn readiness(&self) -> Readiness;

    /// Handles what has completed. Returns whether there was something.
    fn process(&mut self) -> io::Result<bool>;

    /// The same while a call looks, again and again, for what is of that interest: what is not may be left
    /// until it arms, or until there is something.
    fn look(&mut self, interest: Interest) -> io::Result<bool> {
        let _ = interest;
        self.process()
    }

    /// Asks for events of what is of that interest, and looks again for what came before that.
    /// Returns whether there was something.
    fn arm(&mut self, interest: Interest) -> io::Result<bool>;

    /// Takes the events that have come.
    fn take_events(&mut self, channel: &Self::Channel) -> io::Result<()>;

    /// The same where an event has come, or is about to. Elsewhere this does not enter the kernel.
    fn take_due_events(&mut self, channel: &Self::Channel) -> io::Result<()>;

    /// Wakes everybody who waits for what is possible now.
    fn wake(&mut self) {
        let readiness = self.readiness();
        self.waiters().wake(readiness);
    }
}

/// Asks for events, and handles what came before that. Returns whether that is all, as it is unless a peer
/// sends faster than this side can look.
fn settle(state: &mut impl Driven, interest: Interest) -> io::Result<bool> {
    for _ in 0..ROUNDS {
        if !state.arm(interest)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A socket that any thread may use.
///
/// Whoever wants something of it handles the completions that have come. Who has to wait does so
/// for the completion channel, and for a bell of its own, which is rung by whoever handles the
/// completions in the meantime.
#[derive(Debug)]
pub(crate) struct Shared<S: Driven> {
    state: Mutex<S>,
    channel: S::Channel,
    /// The descriptor of the first watcher.
    poller: Arc<OwnedFd>,
    /// Who waits next looks for longer.
    eager: AtomicBool,
    /// How many sleeps were neither short nor long.
    middling: AtomicU32,
}

impl<S: Driven> Shared<S> {
    /// `watcher` is that of `channel`, and `state` is given those who wait.
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
            eager: AtomicBool::new(false),
            middling: AtomicU32::new(0),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, S> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The descriptor that tells of completions, where somebody has asked for it.
    pub(crate) fn completions(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Tries, handling completions and waiting in between, until there is a result.
    pub(crate) fn until<T>(
        &self,
        interest: Interest,
        patience: Patience,
        mut attempt: impl FnMut(&mut S) -> io::Result<Option<T>>,
    ) -> io::Result<T> {
        loop {
            {
                let mut state = self.lock();
                if let Patience::Watch(watcher) = patience
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
                if let Patience::Watch(watcher) = patience {
                    self.watch(&mut state, watcher, interest)?;
                    let result = attempt(&mut state)?;
                    if result.is_some() {
                        // What has come is taken, and not to be told.
                        if let Some(watcher) = state.waiters().watcher(watcher) {
                            watcher.leave(interest);
                        }
                    }
                    return result.ok_or_else(|| io::ErrorKind::WouldBlock.into());
                }
            }
            self.wait(interest, patience)?;
        }
    }

    /// Waits until it is worth trying again.
    fn wait(&self, interest: Interest, patience: Patience) -> io::Result<()> {
        let deadline = patience.deadline();
        let polling_time = config().polling_time;
        let eager = self.eager.load(Relaxed);
        let patience = if eager {
            polling_time * EAGER
        } else {
            polling_time
        };
        let start = Instant::now();
        let mut looking = !patience.is_zero();
        while looking {
            for _ in 0..LOOKS {
                if self.lock().look(interest)? {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            looking = start.elapsed() < patience;
        }
        let (bell, name) = {
            let mut state = self.lock();
            state.take_due_events(&self.channel)?;
            // The events that are taken are those of others, too.
            let all = state.waiters().interest_with(interest);
            if state.arm(all)? || !interest.any && interest.is_met(state.readiness()) {
                return Ok(());
            }
            match thread_bell() {
                Ok(bell) => {
                    let name = state.waiters().add(interest, &bell);
                    (bell, name)
                }
                Err(err) if is_out_of_descriptors(&err) => {
                    drop(state);
                    return self.wait_without_bell(deadline);
                }
                Err(err) => return Err(err),
            }
        };
        let waited = sleep([self.channel.as_fd(), bell.as_fd()], deadline);
        let eager = self.is_worth_looking(start.elapsed(), polling_time);
        self.eager.store(eager, Relaxed);
        let ended = self.end_wait(name);
        // If it has been rung since, the next wait is a short one.
        if let Ok([_, true]) = waited {
            bell.clear();
        }
        ended.and(waited.map(drop))
    }

    /// Waits for the completion channel alone, in a thread for which the process has no descriptor left. Another
    /// thread may take the event, so that the state is looked at again every [`WITHOUT_BELL`].
    fn wait_without_bell(&self, deadline: Option<Instant>) -> io::Result<()> {
        let soon = Instant::now() + WITHOUT_BELL;
        let until = deadline.map_or(soon, |deadline| deadline.min(soon));
        match sleep([self.channel.as_fd()], Some(until)) {
            Err(err) if err.kind() == io::ErrorKind::WouldBlock && Some(until) != deadline => {}
            waited => drop(waited?),
        }
        self.lock().process().map(drop)
    }

    /// Whether who waits next is to look for longer, after a wait with a sleep.
    fn is_worth_looking(&self, waited: Duration, polling_time: Duration) -> bool {
        if waited >= polling_time * SHORT {
            return false;
        }
        waited < polling_time * EAGER || self.middling.fetch_add(1, Relaxed).is_multiple_of(SELDOM)
    }

    /// Joins those who wait, to be woken by `bell`, or by the descriptor that tells of completions.
    /// Returns what can be done already, and the name by which to [leave](Self::end_wait).
    pub(crate) fn begin_wait(
        &self,
        interest: Interest,
        bell: &Bell,
    ) -> io::Result<(Readiness, u64)> {
        let mut state = self.lock();
        state.take_due_events(&self.channel)?;
        let all = state.waiters().interest_with(interest);
        if !settle(&mut *state, all)? {
            bell.ring();
        }
        let name = state.waiters().add(interest, bell);
        Ok((state.readiness(), name))
    }

    /// Leaves those who wait, and handles what has come.
    pub(crate) fn end_wait(&self, name: u64) -> io::Result<()> {
        let mut state = self.lock();
        state.waiters().remove(name);
        let came = state.process()?;
        let others = state.waiters().interest();
        if came && others.is_none() {
            // The event is taken by who waits next, who is not in such a hurry.
            return Ok(());
        }
        state.take_events(&self.channel)?;
        if let Some(interest) = others {
            // The event that is taken was theirs, too: another one tells of what comes from now on, and
            // what has come is handled to the end.
            if !settle(&mut *state, interest)? {
                state.waiters().ring();
            }
        }
        Ok(())
    }

    /// What can be done without waiting.
    pub(crate) fn readiness_now(&self) -> io::Result<Readiness> {
        let mut state = self.lock();
        state.process()?;
        Ok(state.readiness())
    }

    /// What can be done without waiting. Watchers are told of what comes next, also where a call has changed what
    /// that depends on: once the room is used up, it depends on completions of sends.
    pub(crate) fn readiness_watched(&self) -> io::Result<Readiness> {
        let mut state = self.lock();
        let all = state.waiters().interest_with(Interest::default());
        for _ in 0..ROUNDS {
            state.take_due_events(&self.channel)?;
            if !state.arm(all)? {
                return Ok(state.readiness());
            }
        }
        state.waiters().ring();
        Ok(state.readiness())
    }

    /// What can be done without waiting; and asks for the descriptor to tell when that changes.
    pub(crate) fn readiness(&self) -> io::Result<Readiness> {
        self.watch_readiness(0)
    }

    /// [`readiness`](Self::readiness), to be told of by the descriptor of another watcher.
    pub(crate) fn watch_readiness(&self, watcher: usize) -> io::Result<Readiness> {
        let mut state = self.lock();
        self.watch(&mut state, watcher, Interest::BOTH)?;
        Ok(state.readiness())
    }

    /// Another descriptor that tells when it is worth trying again, and the watcher it belongs to.
    pub(crate) fn add_watcher(&self) -> io::Result<(usize, Arc<OwnedFd>)> {
        let new = Watcher::new(self.channel.as_fd())?;
        let poller = Arc::clone(new.poller());
        let mut state = self.lock();
        Ok((state.waiters().add_watcher(new), poller))
    }

    /// Removes a watcher, whose descriptor tells of nothing more.
    #[cfg(feature = "tokio")]
    pub(crate) fn remove_watcher(&self, watcher: usize) {
        self.lock().waiters().remove_watcher(watcher);
    }

    /// Lets others who share a watcher look, too, and watch on.
    #[cfg(feature = "tokio")]
    pub(crate) fn pass_on(&self, watcher: usize, interest: Interest) {
        let mut state = self.lock();
        if let Some(watcher) = state.waiters().watcher(watcher) {
            watcher.watch(interest);
            watcher.ring(interest);
        }
    }

    /// Makes the descriptor of a watcher tell of the next change.
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
            watcher.ring(interest);
        }
        Ok(())
    }
}

impl<S: Driven> AsFd for Shared<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket to which numbers come, of which nobody tells.
    #[derive(Debug)]
    struct Numbers {
        waiters: Waiters,
        completed: Vec<u32>,
        arrived: Vec<u32>,
        /// Room has come that nobody knows of yet.
        freed: bool,
        room: bool,
        /// What completes when an event is asked for.
        late: Vec<u32>,
        /// What events have been asked for.
        asked: Vec<Interest>,
        /// Something comes all the time, which is of no use.
        flooded: bool,
    }

    impl Driven for Numbers {
        type Channel = Bell;

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

        fn take_events(&mut self, _channel: &Bell) -> io::Result<()> {
            Ok(())
        }

        fn take_due_events(&mut self, _channel: &Bell) -> io::Result<()> {
            Ok(())
        }
    }

    fn numbers() -> Shared<Numbers> {
        let channel = Bell::new().unwrap();
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
        shared.until(Interest::READ, Patience::Watch(0), |state| {
            Ok(state.arrived.pop())
        })
    }

    /// Uses up the room that there is.
    fn fill(shared: &Shared<Numbers>) -> io::Result<()> {
        shared.until(Interest::WRITE, Patience::Watch(0), |state| {
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
    fn who_sleeps_for_a_moment_looks_for_longer_the_next_time() {
        let shared = numbers();
        let unit = Duration::from_micros(10);
        let after = |waited| shared.is_worth_looking(Duration::from_micros(waited), unit);
        assert!((0..20).all(|_| after(99)));
        assert!((0..20).all(|_| !after(300)));
        let tries = (0..24).filter(|_| after(299)).count();
        assert_eq!(tries, 3, "now and then");
        // Who does not poll at all does not begin to.
        assert!(!shared.is_worth_looking(Duration::ZERO, Duration::ZERO));
    }

    /// One of two takes what has come, and finds something for the other by that.
    #[test]
    fn who_shares_a_watcher_passes_on_what_it_leaves() {
        let shared = numbers();
        let nothing = |taken: io::Result<u32>| taken.unwrap_err().kind();
        assert_eq!(nothing(take(&shared)), io::ErrorKind::WouldBlock);
        shared.lock().completed = vec![1, 2];
        assert_eq!(take(&shared).unwrap(), 2);
        assert!(!is_readable(&shared), "nobody is told by that alone");
        shared.pass_on(0, Interest::READ);
        assert!(is_readable(&shared));
        assert_eq!(take(&shared).unwrap(), 1);
        // Who finds nothing watches again, and is told.
        assert_eq!(nothing(take(&shared)), io::ErrorKind::WouldBlock);
        assert!(!is_readable(&shared));
        shared.lock().completed = vec![3];
        assert!(shared.lock().process().unwrap());
        assert!(is_readable(&shared));
    }

    /// One descriptor tells of both directions.
    #[test]
    fn who_reads_keeps_the_descriptor_telling_of_room() {
        let shared = numbers();
        assert!(would_block(fill(&shared)));
        shared.lock().freed = true;
        assert!(would_block(take(&shared)));
        assert!(is_readable(&shared), "there is room");
        assert!(would_block(take(&shared)));
        assert!(is_readable(&shared), "nobody has tried to write");
        fill(&shared).unwrap();
        assert!(would_block(take(&shared)));
        assert!(!is_readable(&shared));
        // And the other way round.
        assert!(would_block(fill(&shared)));
        shared.lock().completed = vec![1];
        assert!(would_block(fill(&shared)));
        assert!(is_readable(&shared), "there is a number");
        assert_eq!(take(&shared).unwrap(), 1);
        assert!(would_block(fill(&shared)));
        assert!(!is_readable(&shared));
    }

    /// A write has left no room without being told so, and a thread watches for room.
    #[test]
    fn readiness_that_a_call_looks_at_keeps_watchers_told() {
        let shared = numbers();
        let (watcher, fd) = shared.add_watcher().unwrap();
        shared.lock().room = true;
        shared.watch_readiness(watcher).unwrap();
        shared.lock().asked.clear();
        shared.lock().room = false;
        assert!(!shared.readiness_watched().unwrap().writable);
        assert_eq!(shared.lock().asked, [Interest::BOTH]);
        // A number has come, and the call leaves it to the watcher to tell.
        shared.lock().completed = vec![1];
        assert!(shared.readiness_watched().unwrap().readable);
        let told = || {
            let limit = Some(Duration::ZERO);
            verbs::fd::wait_readable("poll", fd.as_fd(), limit).unwrap()
        };
        assert!(told() && shared.readiness_watched().unwrap().readable && told());
        shared.watch_readiness(watcher).unwrap();
        assert!(!told());
    }

    /// Something comes just when the descriptor begins to be watched.
    #[test]
    fn what_comes_at_the_last_moment_and_is_taken_is_not_told() {
        let shared = numbers();
        assert!(would_block(take(&shared)));
        let mut tries = 0;
        let taken = shared.until(Interest::READ, Patience::Watch(0), |state| {
            tries += 1;
            if tries == 1 {
                // What is processed next finds nothing, what is armed for does.
                state.late = vec![2];
            }
            Ok(state.arrived.pop())
        });
        assert_eq!(taken.unwrap(), 2);
        assert!(would_block(fill(&shared)));
        assert!(!is_readable(&shared), "it has been taken");
    }

    /// Who begins to wait takes the events of those who wait already.
    #[test]
    fn who_waits_asks_for_what_others_wait_for() {
        let shared = numbers();
        let bell = Bell::new().unwrap();
        let asked = || std::mem::take(&mut shared.lock().asked);
        let begin = |interest| shared.begin_wait(interest, &bell).unwrap().1;
        let writer = begin(Interest::WRITE);
        assert_eq!(asked(), [Interest::WRITE]);
        let reader = begin(Interest::READ);
        assert_eq!(asked(), [Interest::BOTH]);
        shared.end_wait(reader).unwrap();
        assert_eq!(asked(), [Interest::WRITE]);
        // So does who sleeps, and he leaves them theirs.
        let now = Patience::Until(Instant::now());
        shared.wait(Interest::READ, now).unwrap_err();
        assert_eq!(asked(), [Interest::BOTH, Interest::WRITE]);
        shared.end_wait(writer).unwrap();
        shared.wait(Interest::READ, now).unwrap_err();
        assert_eq!(
            asked(),
            [Interest::READ],
            "of what concerns nobody, nobody is told"
        );
    }

    #[test]
    fn a_flood_keeps_nobody_in_a_call() {
        let shared = numbers();
        shared.lock().flooded = true;
        assert!(would_block(take(&shared)));
        assert!(is_readable(&shared), "there is more to look at");
        assert!(would_block(fill(&shared)));
        assert!(is_readable(&shared));
        let bells = [(); 2].map(|()| Bell::new().unwrap());
        let names = bells.each_ref().map(|bell| {
            let name = shared.begin_wait(Interest::READ, bell).unwrap().1;
            verbs::fd::wait_readable("poll", bell.as_fd(), None).unwrap();
            bell.clear();
            name
        });
        shared.end_wait(names[0]).unwrap();
        verbs::fd::wait_readable("poll", bells[1].as_fd(), None).unwrap();
        shared.end_wait(names[1]).unwrap();
        shared.lock().flooded = false;
        assert!(would_block(fill(&shared)) && would_block(take(&shared)));
        assert!(!is_readable(&shared));
    }
}
