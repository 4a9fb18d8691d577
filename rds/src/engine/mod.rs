//! The engine: drives the protocol with connection events, completions and timers.

mod clock;
mod connecting;
mod doorbell;
mod exports;
mod followers;
mod info;
mod leading;
mod listening;
mod local_rdma;
mod operations;
mod options;
mod reaper;
mod state;
mod traffic;
mod wakeup_schedule;

use std::{
    io, mem,
    num::NonZero,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::Waker,
    thread::{self, JoinHandle},
    time::{Duration, SystemTime},
};

use cm::EventChannel;
use rustix::{
    event::{PollFd, PollFlags, epoll, poll},
    io::Errno,
};
use smallvec::SmallVec;

use clock::Clock;
use doorbell::BATCH_DELAY;
pub(crate) use exports::{Exported, PAGE, random_address};
use followers::Followers;
use leading::{MAX_TAKEOVER_DELAY, TAKEOVER_DELAY};
pub(crate) use operations::Progress;
pub use options::EngineOptions;
pub(crate) use reaper::Reaper;
pub(crate) use state::State;
use wakeup_schedule::{Batch, WakeupSchedule};

use crate::{event_fd::EventFd, socket::Socket};

/// State shared by sockets: bound addresses, connections to other hosts, and the engine thread.
///
/// Most programs never name an engine: [`Socket::new`] uses a shared one, started with the first
/// socket and stopped with the last. An address belongs to one engine per host, so several
/// processes need several addresses.
///
/// Clones refer to the same engine, like an `Arc`.
#[derive(Clone, Debug)]
pub struct Engine {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// State shared by the engine thread and the sockets.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    channel: Arc<EventChannel>,
    /// Wakes the engine thread.
    thread_event: EventFd,
    /// An epoll descriptor over the completion channels while the engine thread handles
    /// completions; empty while calls do.
    poller: Arc<OwnedFd>,
    /// Wakes the leader, the blocked call that polls on behalf of all sockets.
    leader_event: Arc<EventFd>,
    /// Blocked calls other than the leader.
    followers: Followers,
    clock: Arc<Clock>,
    schedule: Arc<WakeupSchedule>,
    stopped: AtomicBool,
    process: u64,
}

/// Inline capacity of lists of devices and descriptors; longer lists are on the heap.
const INLINE_DEVICES: usize = 4;

/// Readability of the polled descriptors, by index.
type Ready = SmallVec<[bool; INLINE_DEVICES]>;

/// Fork generation of the first process that opened a device; 0 for none.
static FIRST_PROCESS: AtomicU64 = AtomicU64::new(0);

/// Fails in a child of a process with open devices.
///
/// The kernel rejects writes to a device opened by another process, and librdmacm opens each device
/// only once.
fn check_process(first: u64) -> io::Result<()> {
    if [0, verbs::fork::fork_generation()].contains(&first) {
        return Ok(());
    }
    let reason =
        "the parent process has open RDMA devices: call exec, or use RDS only after the fork";
    Err(io::Error::new(io::ErrorKind::Unsupported, reason))
}

/// Records that this process opens a device.
fn claim_devices() -> io::Result<()> {
    let own = verbs::fork::fork_generation();
    let first = FIRST_PROCESS.compare_exchange(0, own, Relaxed, Relaxed);
    first.map_or_else(check_process, |_| Ok(()))
}

static DEFAULT: Mutex<Weak<Handle>> = Mutex::new(Weak::new());

impl Engine {
    /// The shared engine of [`Socket::new`], started with the first socket and stopped with the
    /// last.
    ///
    /// # Errors
    /// As for [`EngineOptions::start`].
    pub fn shared() -> io::Result<Self> {
        let mut default = DEFAULT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = default.upgrade()
            && handle.shared.process == verbs::fork::fork_generation()
        {
            return Ok(Self { handle });
        }
        let engine = EngineOptions::new().start()?;
        *default = Arc::downgrade(&engine.handle);
        Ok(engine)
    }

    fn start(mut options: EngineOptions) -> io::Result<Self> {
        check_process(FIRST_PROCESS.load(Relaxed))?;
        let channel = Arc::new(EventChannel::new()?);
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let micros = wall.unwrap_or_default().as_micros();
        let micros = u64::try_from(micros).unwrap_or(u64::MAX);
        // Must exceed the sequence numbers of earlier processes at the same address, on a host with
        // a monotonic wall clock.
        options.node.first_sequence = NonZero::new(micros).unwrap_or(NonZero::<u64>::MIN);
        options.node.seed = micros ^ u64::from(std::process::id()).rotate_right(16);
        options.node.max_links = options.max_links();
        let poller = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let clock = Arc::new(Clock::start());
        let schedule = Arc::new(WakeupSchedule::new());
        let state = State::new(
            options,
            Arc::clone(&channel),
            Arc::clone(&poller),
            Arc::clone(&clock),
            Arc::clone(&schedule),
        );
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            channel,
            thread_event: EventFd::new()?,
            poller,
            leader_event: Arc::new(EventFd::new()?),
            followers: Followers::default(),
            clock,
            schedule,
            stopped: AtomicBool::new(false),
            process: verbs::fork::fork_generation(),
        });
        let driven = Arc::clone(&shared);
        let thread = verbs::signals::spawn_without_signals("rds", move || driven.run())?;
        let thread = Some(thread);
        Ok(Self {
            handle: Arc::new(Handle { shared, thread }),
        })
    }

    /// Creates an unbound socket.
    ///
    /// # Errors
    /// - `Unsupported`: the engine was created before a fork, by the parent process.
    pub fn socket(&self) -> io::Result<Socket> {
        Socket::of(self)
    }

    /// Stops accepting connections until [`resume_accept`](Self::resume_accept) is called. Affects
    /// addresses bound after this call. Use the pair to bind several sockets before the first
    /// message arrives: a message to an unbound port is dropped.
    ///
    /// # Errors
    /// As for [`socket`](Self::socket).
    pub fn pause_accept(&self) -> io::Result<()> {
        self.inner().lock()?.pause_accept();
        Ok(())
    }

    /// Accepts connections on all addresses bound since [`pause_accept`](Self::pause_accept).
    ///
    /// # Errors
    /// As for [`Socket::bind_to`], if listening on an address fails. All other addresses accept
    /// connections. Call again to retry the failed ones; until a call succeeds, addresses bound in
    /// the meantime do not accept connections.
    pub fn resume_accept(&self) -> io::Result<()> {
        self.inner().lock()?.resume_accept()
    }

    pub(crate) fn inner(&self) -> &Arc<Shared> {
        &self.handle.shared
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // After a fork, everything belongs to the parent.
        if self.shared.process != verbs::fork::fork_generation() {
            return;
        }
        self.shared.stopped.store(true, Relaxed);
        self.shared.thread_event.notify();
        if let Some(thread) = self.thread.take()
            // The last handle may be dropped by a task, woken on the engine thread.
            && thread.thread().id() != thread::current().id()
        {
            // The engine thread does not panic; there is nothing to do with an error here.
            drop(thread.join());
        }
    }
}

impl Shared {
    /// Time since the engine started.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Locks the state; fails in a child of the process that created the engine.
    pub(crate) fn lock(&self) -> io::Result<MutexGuard<'_, State>> {
        if self.process != verbs::fork::fork_generation() {
            let reason =
                "the socket belongs to the parent process: create another one after the fork";
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        }
        Ok(self.lock_here())
    }

    /// Locks the state in the process that created the engine.
    pub(crate) fn lock_here(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Performs the work caused by a call, such as posting.
    pub(crate) fn drive(&self, state: &mut State) {
        if !state.is_quiet() {
            self.drive_at(state, self.now());
        }
    }

    /// [`drive`](Self::drive) with a known time.
    pub(crate) fn drive_at(&self, state: &mut State, now: Duration) {
        if state.work(now) {
            self.thread_event.notify();
        }
    }

    fn run(&self) {
        let mut batch = self.schedule.batch();
        while !self.stopped.load(Relaxed) {
            let (relief, tasks) = {
                let mut state = self.lock_here();
                let relief = state.prepare(self.now());
                (relief, mem::take(&mut state.tasks))
            };
            tasks.into_iter().for_each(Waker::wake);
            let ready = self.doze(relief, &mut batch);
            if ready[1] {
                self.thread_event.drain();
            }
            let mut state = self.lock_here();
            let now = self.now();
            while ready[0]
                && let Ok(Some(event)) = self.channel.try_next()
            {
                state.handle(now, event);
            }
            if ready[2] {
                state.take_all_events();
            }
            state.complete(now);
            if ready[2] {
                self.leave_to_calls(&mut state, now);
            }
            state.work(now);
            let tasks = mem::take(&mut state.tasks);
            drop(state);
            tasks.into_iter().for_each(Waker::wake);
        }
        self.lock_here().end();
    }

    /// Sleeps until the connection manager channel, the thread event or the poller is readable,
    /// until a deadline, or until a message batch is overdue. Returns the readable descriptors.
    /// `relief` is the time to check whether calls still handle completions; the thread sleeps on
    /// while they do.
    fn doze(&self, mut relief: Option<Duration>, batch: &mut Batch) -> Ready {
        let fds = [
            self.channel.as_fd(),
            self.thread_event.as_fd(),
            self.poller.as_fd(),
        ];
        let mut delay = TAKEOVER_DELAY;
        loop {
            let before = self.now();
            let soon = before + BATCH_DELAY;
            let last = mem::replace(batch, self.schedule.batch());
            let goes_on = *batch != last;
            let wanted = relief.map(|at| if goes_on { at.min(soon) } else { at });
            let at = self.schedule.sleep(wanted, soon);
            let (ready, _) = sleep(&fds, at.map(|at| at.saturating_sub(before)));
            let now = self.now();
            let is_late = batch.waits() && *batch == self.schedule.batch();
            let nothing = self.schedule.calls_come(now) && !is_late && !self.schedule.is_due(now);
            if relief.is_none() || !nothing || ready.contains(&true) {
                return ready;
            }
            if !goes_on {
                delay = MAX_TAKEOVER_DELAY.min(2 * delay);
            }
            relief = Some(self.schedule.called_at() + delay);
        }
    }
}

/// Sleeps until a descriptor is readable, the timeout elapses or a signal arrives. Returns the
/// readable descriptors, and whether a signal arrived.
fn sleep(fds: &[BorrowedFd<'_>], wait: Option<Duration>) -> (Ready, bool) {
    let mut polled = SmallVec::<[PollFd<'_>; INLINE_DEVICES]>::new();
    // Pushing one by one is cheaper than `collect`.
    for fd in fds {
        polled.push(PollFd::from_borrowed_fd(*fd, PollFlags::IN));
    }
    let timeout = wait.and_then(|wait| wait.try_into().ok());
    let result = poll(&mut polled, timeout.as_ref());
    let mut ready = Ready::new();
    for fd in &polled {
        ready.push(result.is_ok() && !fd.revents().is_empty());
    }
    (ready, result == Err(Errno::INTR))
}
