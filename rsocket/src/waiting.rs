//! Calls on a socket of any kind, blocking or not, over [`verbs::waiting`].

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, OnceLock},
    task::Waker,
    time::{Duration, Instant},
};

use rustix::event::epoll;
use verbs::{
    cq::CompletionChannel,
    fd::InternalFd,
    waiting::{self, EventFd, Guard, Source, WaitEnd},
};

use crate::{
    config::config,
    proto::stream::Readiness,
    waiters::{Interest, Watcher},
};

/// Maximum number of processing rounds per nonblocking call; the rest remains for later, since a peer may send
/// faster than this side processes.
const MAX_ROUNDS: u32 = 1024;

/// Blocking mode of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitMode<'t> {
    /// Nonblocking; the socket's descriptor signals a retry.
    Watch,
    /// Nonblocking; the task is woken for a retry. The waker has an identity of its own.
    Task(&'t Waker),
    /// Blocks until a deadline.
    Until(Instant),
    /// Blocks without a limit.
    Endless,
}

impl WaitMode<'_> {
    pub(crate) fn from_timeout(timeout: Option<Duration>) -> Self {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        deadline.map_or(Self::Endless, Self::Until)
    }

    /// Limits a blocking mode to a time from now on.
    pub(crate) fn with_limit(self, limit: Duration) -> Self {
        match (self, Instant::now().checked_add(limit)) {
            (Self::Until(deadline), Some(end)) => Self::Until(deadline.min(end)),
            (Self::Endless, Some(end)) => Self::Until(end),
            (mode, _) => mode,
        }
    }

    /// Returns the deadline, if any.
    pub(crate) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until(deadline) => Some(deadline),
            Self::Watch | Self::Task(_) | Self::Endless => None,
        }
    }

    pub(crate) fn is_nonblocking(self) -> bool {
        matches!(self, Self::Watch | Self::Task(_))
    }
}

/// Mutable state of a socket, driven by the calls of all threads.
pub(crate) trait Pollable: Source<Interest = Interest, Error = io::Error> {
    /// Returns the operations possible without blocking.
    fn readiness(&self) -> Readiness;

    /// Wakes the waiters whose interest is met.
    fn wake(&mut self) {
        let readiness = self.readiness();
        self.waiters().wake(|interest| interest.is_met(readiness));
    }
}

/// A socket shared by several threads. Each call processes the completions present.
#[derive(Debug)]
pub(crate) struct Shared<S, C> {
    state: waiting::Shared<S, C>,
    /// Of nonblocking callers.
    watcher: OnceLock<Watcher>,
}

/// Descriptor notified of a socket's events.
pub(crate) trait EventSource: AsFd {
    /// Adds the source to an `epoll` instance.
    fn add_to(&self, epoll: &InternalFd, edge_triggered: bool, data: u64) -> io::Result<()> {
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::ET, edge_triggered);
        let data = epoll::EventData::new_u64(data);
        Ok(epoll::add(epoll, self, data, flags)?)
    }

    fn remove_from(&self, epoll: &InternalFd) -> io::Result<()> {
        Ok(epoll::delete(epoll, self)?)
    }
}

impl EventSource for Arc<EventFd> {}

impl EventSource for Arc<OwnedFd> {}

/// Without the descriptor of [`AsFd`]: a watched stream has one descriptor.
impl EventSource for Arc<CompletionChannel> {
    fn add_to(&self, epoll: &InternalFd, edge_triggered: bool, data: u64) -> io::Result<()> {
        Ok(self.add_to_epoll(epoll.as_fd(), edge_triggered, data)?)
    }

    fn remove_from(&self, epoll: &InternalFd) -> io::Result<()> {
        Ok(self.remove_from_epoll(epoll.as_fd())?)
    }
}

impl<S: Pollable, C: EventSource> Shared<S, C> {
    /// `channel` is readable while a requested event is pending.
    pub(crate) fn new(state: S, channel: C) -> Self {
        Self {
            state: waiting::Shared::new(state, channel),
            watcher: OnceLock::new(),
        }
    }

    pub(crate) fn lock(&self) -> Guard<'_, S> {
        self.state.lock()
    }

    /// Locks the state, unless another thread has locked it.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, S>> {
        self.state.try_lock()
    }

    /// Descriptor notified of completions, while armed.
    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.state.channel().as_fd()
    }

    /// The source of the events.
    pub(crate) fn source(&self) -> &C {
        self.state.channel()
    }

    fn watcher(&self) -> &Watcher {
        self.watcher.get_or_init(Watcher::new)
    }

    /// Makes an `epoll` instance the descriptor of [`AsFd`], before the first use.
    pub(crate) fn notify_in(&self, epoll: &Arc<InternalFd>) -> io::Result<()> {
        let descriptor = self.watcher().notify_in(epoll, self.source());
        descriptor.map(drop)
    }

    /// Repeats an attempt until there is a result, processing completions and waiting in between.
    pub(crate) fn until<T>(
        &self,
        interest: Interest,
        mode: WaitMode<'_>,
        attempt: impl FnMut(&mut S) -> io::Result<Option<T>>,
    ) -> io::Result<T> {
        if mode.is_nonblocking() {
            self.attempt_now(interest, mode, attempt)
        } else {
            self.block(interest, mode.deadline(), attempt)
        }
    }

    fn block<T>(
        &self,
        interest: Interest,
        deadline: Option<Instant>,
        mut attempt: impl FnMut(&mut S) -> io::Result<Option<T>>,
    ) -> io::Result<T> {
        let mut busy_until = None;
        let mut state = self.lock();
        loop {
            if let Some(result) = attempt(&mut state)? {
                return Ok(result);
            }
            if state.process()?
                && let Some(result) = attempt(&mut state)?
            {
                return Ok(result);
            }
            let busy_until =
                *busy_until.get_or_insert_with(|| Instant::now() + config().polling_time);
            let end;
            (state, end) = self
                .state
                .wait(state, interest, deadline, Some(busy_until))?;
            match end {
                WaitEnd::Woken => {}
                WaitEnd::TimedOut => return Err(io::ErrorKind::WouldBlock.into()),
                WaitEnd::Interrupted => return Err(io::ErrorKind::Interrupted.into()),
            }
        }
    }

    /// Makes a nonblocking attempt. Without a result, the caller is notified when to retry.
    fn attempt_now<T>(
        &self,
        interest: Interest,
        mode: WaitMode<'_>,
        mut attempt: impl FnMut(&mut S) -> io::Result<Option<T>>,
    ) -> io::Result<T> {
        let mut state = self.lock();
        for _ in 0..MAX_ROUNDS {
            self.unregister(&mut state, interest, mode);
            if let Some(result) = attempt(&mut state)? {
                return Ok(result);
            }
            if state.process()? {
                continue;
            }
            self.register(&mut state, interest, mode)?;
            if !state.poll_or_arm()? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        self.register(&mut state, interest, mode)?;
        state.waiters().wake(|_| true);
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn unregister(&self, state: &mut S, interest: Interest, mode: WaitMode<'_>) {
        match mode {
            WaitMode::Task(task) => state.waiters().remove_task(task),
            _ => {
                if let Some(watcher) = self.watcher.get() {
                    watcher.unwatch(state.waiters(), interest);
                }
            }
        }
    }

    fn register(&self, state: &mut S, interest: Interest, mode: WaitMode<'_>) -> io::Result<()> {
        match mode {
            WaitMode::Task(task) => state.waiters().add_task(interest, task),
            _ => {
                let watcher = self.watcher();
                if watcher.lacks_descriptor() {
                    watcher.descriptor(self.source())?;
                }
                watcher.watch(state.waiters(), interest);
            }
        }
        Ok(())
    }

    /// Processes completions and requests events for all waiters. More completions than that wake all waiters.
    fn poll_or_arm(state: &mut Guard<'_, S>) -> io::Result<()> {
        for _ in 0..MAX_ROUNDS {
            if !state.poll_or_arm()? {
                return Ok(());
            }
        }
        state.waiters().wake(|_| true);
        Ok(())
    }

    /// Returns the operations possible without blocking.
    pub(crate) fn readiness_now(&self) -> io::Result<Readiness> {
        let mut state = self.lock();
        state.process()?;
        Ok(state.readiness())
    }

    /// Returns the operations possible without blocking, and requests events for all waiters, even if a call
    /// has changed the dependence on send completions: without room, writability depends on them.
    pub(crate) fn readiness_armed(&self) -> io::Result<Readiness> {
        let mut state = self.lock();
        Self::poll_or_arm(&mut state)?;
        Ok(state.readiness())
    }

    /// Returns the operations possible without blocking, and notifies the descriptor of the next change.
    pub(crate) fn readiness(&self) -> io::Result<Readiness> {
        self.watch_readiness(Interest::BOTH, WaitMode::Watch)
    }

    /// Returns the operations possible without blocking, and wakes a task for the next change. Replaces the task's earlier
    /// interest. The task watches the [channel](Self::channel) too.
    pub(crate) fn begin_wait(&self, interest: Interest, task: &Waker) -> io::Result<Readiness> {
        self.watch_readiness(interest, WaitMode::Task(task))
    }

    fn watch_readiness(&self, interest: Interest, mode: WaitMode<'_>) -> io::Result<Readiness> {
        let mut state = self.lock();
        self.unregister(&mut state, interest, mode);
        self.register(&mut state, interest, mode)?;
        Self::poll_or_arm(&mut state)?;
        Ok(state.readiness())
    }

    /// Removes a task.
    pub(crate) fn end_wait(&self, task: &Waker) {
        self.lock().waiters().remove_task(task);
    }

    /// Processes completions for the waiting tasks, and requests events for the others: the part of a thread
    /// that watches the [channel](Self::channel).
    #[cfg(feature = "tokio")]
    pub(crate) fn poll_for_tasks(&self) {
        let mut state = self.lock();
        for _ in 0..MAX_ROUNDS {
            if state.waiters().is_empty() {
                return;
            }
            match state.poll_or_arm() {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => break,
            }
        }
        // There are more completions, or the queue is broken: each waiter checks for itself.
        state.waiters().wake(|_| true);
    }
}

impl<S: Pollable, C: EventSource> AsFd for Shared<S, C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // Too many open files: the next nonblocking call that would block fails.
        let descriptor = self.watcher().descriptor(self.source());
        descriptor.map_or_else(|_| self.channel(), AsFd::as_fd)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use verbs::waiting::Waiters;

    use super::*;

    /// A test socket that receives numbers.
    #[derive(Debug)]
    struct Numbers {
        waiters: Waiters<Interest>,
        channel: Arc<EventFd>,
        completed: Vec<u32>,
        arrived: Vec<u32>,
        /// Room available, not yet processed.
        freed: bool,
        has_space: bool,
        /// Numbers completing when events are requested.
        late: Vec<u32>,
        /// Unions of the interests for which events were requested.
        armed_interests: Vec<Interest>,
        /// Irrelevant completions arrive continuously.
        flooded: bool,
        is_broken: bool,
    }

    impl Pollable for Numbers {
        fn readiness(&self) -> Readiness {
            Readiness {
                readable: !self.arrived.is_empty(),
                writable: self.has_space,
                ..Readiness::default()
            }
        }
    }

    impl Source for Numbers {
        type Interest = Interest;
        type Error = io::Error;

        fn waiters(&mut self) -> &mut Waiters<Interest> {
            &mut self.waiters
        }

        fn process(&mut self) -> io::Result<bool> {
            if self.is_broken {
                return Err(io::ErrorKind::Other.into());
            }
            let progressed = !self.completed.is_empty() || self.freed;
            self.arrived.append(&mut self.completed);
            self.has_space |= std::mem::take(&mut self.freed);
            if progressed {
                self.wake();
            }
            Ok(progressed || self.flooded)
        }

        fn drain_events(&mut self) -> io::Result<()> {
            self.channel.drain();
            Ok(())
        }

        fn arm(&mut self) -> io::Result<()> {
            let interests = self.waiters.interests().copied();
            let all = interests.fold(Interest::default(), Interest::or);
            self.armed_interests.push(all);
            self.completed.append(&mut self.late);
            Ok(())
        }
    }

    type Socket = Shared<Numbers, Arc<EventFd>>;

    fn numbers() -> Socket {
        let channel = Arc::new(EventFd::new().unwrap());
        let state = Numbers {
            waiters: Waiters::new(),
            channel: Arc::clone(&channel),
            completed: vec![],
            arrived: vec![],
            freed: false,
            has_space: false,
            late: vec![],
            armed_interests: vec![],
            flooded: false,
            is_broken: false,
        };
        Shared::new(state, channel)
    }

    /// A number arrives, with an event.
    fn complete(shared: &Socket, number: u32) {
        let mut state = shared.lock();
        state.completed.push(number);
        state.channel.notify();
    }

    fn take_by(shared: &Socket, mode: WaitMode<'_>) -> io::Result<u32> {
        shared.until(Interest::READ, mode, |state| Ok(state.arrived.pop()))
    }

    fn take(shared: &Socket) -> io::Result<u32> {
        take_by(shared, WaitMode::Watch)
    }

    /// Uses up the room.
    fn fill(shared: &Socket) -> io::Result<()> {
        shared.until(Interest::WRITE, WaitMode::Watch, |state| {
            Ok(std::mem::take(&mut state.has_space).then_some(()))
        })
    }

    fn would_block<T: std::fmt::Debug>(tried: io::Result<T>) -> bool {
        tried.unwrap_err().kind() == io::ErrorKind::WouldBlock
    }

    fn is_readable(fd: impl AsFd) -> bool {
        verbs::fd::wait_readable("poll", fd.as_fd(), Some(Duration::ZERO)).unwrap()
    }

    fn task() -> (Arc<EventFd>, Waker) {
        let event = Arc::new(EventFd::new().unwrap());
        let task = Waker::from(Arc::clone(&event));
        (event, task)
    }

    #[test]
    fn blocked_call_returns_at_completion_or_deadline() {
        let shared = numbers();
        let soon = WaitMode::from_timeout(Some(Duration::from_millis(20)));
        assert!(would_block(take_by(&shared, soon)));
        let (sender, results) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..2 {
                let (shared, sender) = (&shared, sender.clone());
                scope.spawn(move || sender.send(take_by(shared, WaitMode::Endless).unwrap()));
            }
            let mut numbers = [1, 2].map(|number| {
                complete(&shared, number);
                results.recv_timeout(Duration::from_secs(50)).unwrap()
            });
            numbers.sort_unstable();
            assert_eq!(numbers, [1, 2]);
        });
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

    #[test]
    fn attempt_with_a_result_leaves_the_descriptor_unreadable() {
        let shared = numbers();
        assert!(would_block(take(&shared)));
        complete(&shared, 1);
        assert!(is_readable(&shared), "by the channel");
        assert_eq!(take(&shared).unwrap(), 1);
        shared.lock().late = vec![2];
        assert_eq!(take(&shared).unwrap(), 2, "it completes while arming");
        assert!(would_block(take(&shared)));
        assert!(!is_readable(&shared));
    }

    /// Another thread takes the event and processes the completions.
    #[test]
    fn descriptor_and_tasks_are_notified_of_completions_processed_elsewhere() {
        let shared = numbers();
        let (event, task) = task();
        assert!(would_block(take(&shared)));
        assert!(would_block(take_by(&shared, WaitMode::Task(&task))));
        complete(&shared, 1);
        assert!(shared.lock().process().unwrap());
        shared.lock().drain_events().unwrap();
        assert!(is_readable(&shared) && is_readable(&event));
        assert_eq!(take_by(&shared, WaitMode::Task(&task)).unwrap(), 1);
        // The descriptor is readable until the retry.
        assert!(is_readable(&shared));
        assert!(would_block(take(&shared)));
        assert!(!is_readable(&shared));
        event.drain();
        shared.end_wait(&task);
        shared.lock().completed = vec![2];
        assert!(shared.lock().process().unwrap());
        assert!(!is_readable(&event), "the task has left");
    }

    #[test]
    fn events_are_requested_for_all_waiters() {
        let shared = numbers();
        let (_event, task) = task();
        assert!(would_block(fill(&shared)));
        shared.begin_wait(Interest::READ, &task).unwrap();
        shared.readiness_armed().unwrap();
        shared.end_wait(&task);
        shared.readiness_armed().unwrap();
        let expected = [
            Interest::WRITE,
            Interest::BOTH,
            Interest::BOTH,
            Interest::WRITE,
        ];
        assert_eq!(shared.lock().armed_interests, expected);
    }

    /// More completions than a call processes: every waiter retries.
    #[test]
    fn endless_completions_end_in_a_notification() {
        let shared = numbers();
        let (event, task) = task();
        assert!(would_block(take(&shared)));
        shared.lock().flooded = true;
        assert!(would_block(take(&shared)));
        assert!(is_readable(&shared), "there is more to process");
        assert!(would_block(take_by(&shared, WaitMode::Task(&task))));
        assert!(is_readable(&event));
        event.drain();
        shared.begin_wait(Interest::READ, &task).unwrap();
        assert!(is_readable(&event));
        event.drain();
        shared.lock().flooded = false;
        shared.begin_wait(Interest::READ, &task).unwrap();
        assert!(!is_readable(&event));
        shared.lock().flooded = true;
        shared.readiness_armed().unwrap();
        assert!(is_readable(&event));
        shared.lock().flooded = false;
        assert!(would_block(take(&shared)));
        assert!(!is_readable(&shared));
    }

    #[test]
    #[cfg(feature = "tokio")]
    fn event_is_processed_for_waiting_tasks_only() {
        let shared = numbers();
        let (event, task) = task();
        complete(&shared, 1);
        shared.poll_for_tasks();
        assert_eq!(shared.lock().completed, [1], "no task waits");
        assert_eq!(take_by(&shared, WaitMode::Task(&task)).unwrap(), 1);
        assert!(would_block(take_by(&shared, WaitMode::Task(&task))));
        complete(&shared, 2);
        shared.poll_for_tasks();
        assert!(is_readable(&event));
        assert_eq!(shared.lock().arrived, [2]);
        event.drain();
        assert_eq!(take_by(&shared, WaitMode::Task(&task)).unwrap(), 2);
        assert!(would_block(take_by(&shared, WaitMode::Task(&task))));
        shared.lock().is_broken = true;
        shared.poll_for_tasks();
        assert!(is_readable(&event), "the task finds the error");
    }
}
