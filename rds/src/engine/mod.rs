//! What drives the protocol of a process: connections, completions, and time.

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

/// Everything that sockets share: their addresses, the connections to other hosts, and the thread
/// that works for them.
///
/// Programs with one engine need not know of it: [`Socket::new`] makes one, and it ends with the
/// last socket. An address belongs to one engine on a host; several processes need several
/// addresses.
///
/// It is a handle to something shared, like an `Arc`.
#[derive(Clone, Debug)]
pub struct Engine {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread and the sockets have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    channel: Arc<EventChannel>,
    /// Rung when the thread has to look again.
    thread_event: EventFd,
    /// Readable when there are completions, unless a call waits for them.
    poller: Arc<OwnedFd>,
    /// Of the call that does.
    leader_event: Arc<EventFd>,
    /// The calls that wait beside it.
    followers: Followers,
    clock: Arc<Clock>,
    schedule: Arc<WakeupSchedule>,
    stopped: AtomicBool,
    process: u64,
}

/// So many devices, or descriptors, need no memory of their own.
const INLINE_DEVICES: usize = 4;

/// Which descriptors are readable.
type Ready = SmallVec<[bool; INLINE_DEVICES]>;

/// The process that has first listened at an address, and so opened a device.
static FIRST_PROCESS: AtomicU64 = AtomicU64::new(0);

/// Whether this process may open devices: none that it descends from has.
///
/// The kernel lets nobody write to a device that another process has opened, and the connection manager
/// opens each only once.
fn check_process(first: u64) -> io::Result<()> {
    if [0, verbs::fork_generation()].contains(&first) {
        return Ok(());
    }
    let reason = "this is the child of a process that has used RDS: it has to exec first";
    Err(io::Error::new(io::ErrorKind::Unsupported, reason))
}

/// This process is about to open a device.
fn claim_devices() -> io::Result<()> {
    let own = verbs::fork_generation();
    let first = FIRST_PROCESS.compare_exchange(0, own, Relaxed, Relaxed);
    first.map_or_else(check_process, |_| Ok(()))
}

static DEFAULT: Mutex<Weak<Handle>> = Mutex::new(Weak::new());

impl Engine {
    /// The engine of sockets that are made without saying which: it is started with the first and
    /// ends with the last.
    ///
    /// # Errors
    /// As for [`EngineOptions::start`].
    pub fn shared() -> io::Result<Self> {
        let mut default = DEFAULT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = default.upgrade()
            && handle.shared.process == verbs::fork_generation()
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
        // Higher than those of every process before, on a host whose clock does not go back.
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
            process: verbs::fork_generation(),
        });
        let driven = Arc::clone(&shared);
        let thread = verbs::spawn_without_signals("rds", move || driven.run())?;
        let thread = Some(thread);
        Ok(Self {
            handle: Arc::new(Handle { shared, thread }),
        })
    }

    /// A socket without an address.
    ///
    /// # Errors
    /// - `Unsupported`: the engine was made before a fork, by the parent.
    pub fn socket(&self) -> io::Result<Socket> {
        Socket::of(self)
    }

    /// Keeps peers out until [`resume_accept`](Self::resume_accept): an address that a socket is bound to meanwhile does not
    /// accept connections. So several sockets can be bound before the first message comes; one that
    /// finds no socket is lost.
    ///
    /// # Errors
    /// As for [`socket`](Self::socket).
    pub fn pause_accept(&self) -> io::Result<()> {
        self.inner().lock()?.pause_accept();
        Ok(())
    }

    /// Lets peers in.
    ///
    /// # Errors
    /// As for [`Socket::bind_to`]: an address could not be listened at. All others are; the next call tries
    /// this one again, and until one succeeds, peers are kept out of addresses that are bound to meanwhile.
    pub fn resume_accept(&self) -> io::Result<()> {
        self.inner().lock()?.resume_accept()
    }

    pub(crate) fn inner(&self) -> &Arc<Shared> {
        &self.handle.shared
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // In a child, everything is the parent's.
        if self.shared.process != verbs::fork_generation() {
            return;
        }
        self.shared.stopped.store(true, Relaxed);
        self.shared.thread_event.notify();
        if let Some(thread) = self.thread.take()
            // A task that it has woken may have had the last socket.
            && thread.thread().id() != thread::current().id()
        {
            // It does not panic, and if it did, there would be nothing to be done here.
            drop(thread.join());
        }
    }
}

impl Shared {
    /// The time, as the protocol has it.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Everything, unless it belongs to the parent of this process.
    pub(crate) fn lock(&self) -> io::Result<MutexGuard<'_, State>> {
        if self.process != verbs::fork_generation() {
            let reason = "the sockets of a parent process cannot be used by its children";
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        }
        Ok(self.lock_here())
    }

    /// Everything, in the process that has made it.
    pub(crate) fn lock_here(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what has to be done at once after a call of a program's.
    pub(crate) fn drive(&self, state: &mut State) {
        if !state.is_quiet() {
            self.drive_at(state, self.now());
        }
    }

    /// The same, for who knows the time.
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

    /// Sleeps until the thread has something to do: something comes from the channel, the bell, or the poller,
    /// which it returns, or it is time, or messages have waited for others for too long. When it is time to see
    /// whether calls still come, it sees to that itself.
    fn doze(&self, mut relief: Option<Duration>, batch: &mut Batch) -> Ready {
        let fds = [
            self.channel.as_fd(),
            self.thread_event.as_fd(),
            self.poller.as_fd(),
        ];
        let mut patience = TAKEOVER_DELAY;
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
                patience = MAX_TAKEOVER_DELAY.min(2 * patience);
            }
            relief = Some(self.schedule.called_at() + patience);
        }
    }
}

/// Sleeps until one of the descriptors is readable, or the time is over, or a signal comes. Returns
/// which are, and whether one has.
fn sleep(fds: &[BorrowedFd<'_>], wait: Option<Duration>) -> (Ready, bool) {
    let mut polled = SmallVec::<[PollFd<'_>; INLINE_DEVICES]>::new();
    // One by one, which is cheaper than to collect them.
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
