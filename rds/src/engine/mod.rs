//! The engine: drives the protocol with connection events, completions and timers.

mod connecting;
mod exports;
mod info;
mod jobs;
mod listening;
mod local_rdma;
mod operations;
mod options;
mod recovery;
mod schedule;
mod state;
mod traffic;
mod transport;
mod waiting;

use std::{
    io,
    num::NonZero,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use cm::{Event, EventChannel, Reaper};
use rustix::event::{PollFd, PollFlags, epoll, poll};
use verbs::{
    fd::NotifyFd,
    panics::survive,
    waiting::{EventFd, Sleep, Standby},
};

pub(crate) use exports::{Exported, random_address};
pub(crate) use operations::Progress;
pub use options::EngineOptions;
pub(crate) use state::EngineState;
use transport::Transport;
pub(crate) use waiting::{Guard, WaitMode};

use crate::{device::OpenDevices, proto::SocketId, socket::Socket};

/// How long the shutdown of an engine waits for identifiers to be destroyed.
const REAPER_TIMEOUT: Duration = Duration::from_secs(2);

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

/// Connection events handled before other work gets its turn.
const EVENT_BATCH: usize = 64;

/// State shared by the engine thread and the sockets.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Its channel is an epoll descriptor over the completion channels of all devices.
    state: verbs::waiting::Shared<EngineState, Arc<OwnedFd>>,
    channel: Arc<EventChannel>,
    reaper: Reaper,
    /// Zero of the times of the protocol.
    pub(crate) epoch: Instant,
    /// Locked while a thread changes the listeners, which enters the kernel.
    listening: Mutex<()>,
    /// A readable descriptor, for a socket that can create none.
    readable: (EventFd, NotifyFd),
    stopped: AtomicBool,
    process: u64,
}

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
    let generation = verbs::fork::fork_generation();
    let first = FIRST_PROCESS.compare_exchange(0, generation, Relaxed, Relaxed);
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
        options.node.receives = options.receives;
        options.node.queues = options.queues();
        options.node.max_receives = options.max_receives();
        let channels = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let epoch = Instant::now();
        let devices = OpenDevices {
            devices: Vec::new(),
            sends: options.sends,
            receives: options.receives,
            initial_receives: options.node.initial_receives,
        };
        let transport = Transport::new(devices, Arc::clone(&channels));
        let reaper = Reaper::default();
        let state = EngineState::new(options, transport, epoch, reaper.clone());
        let event = EventFd::new()?;
        event.notify();
        let notify_fd = NotifyFd::of(event.as_fd())?;
        let shared = Arc::new(Shared {
            listening: Mutex::new(()),
            readable: (event, notify_fd),
            state: verbs::waiting::Shared::new(state, channels),
            channel,
            reaper,
            epoch,
            stopped: AtomicBool::new(false),
            process: verbs::fork::fork_generation(),
        });
        let standby = shared.state.stand_by()?;
        let driven = Arc::clone(&shared);
        let thread = verbs::signals::spawn_without_signals("rds", move || driven.run(standby))?;
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
        self.inner().pause_accept()
    }

    /// Accepts connections on all addresses bound since [`pause_accept`](Self::pause_accept).
    ///
    /// # Errors
    /// As for [`Socket::bind_to`], if listening on an address fails. All other addresses accept
    /// connections. Call again to retry the failed ones; until a call succeeds, addresses bound in
    /// the meantime do not accept connections.
    pub fn resume_accept(&self) -> io::Result<()> {
        self.inner().resume_accept()
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
        self.shared.lock_here().schedule.waiters.wake_standby();
        if let Some(thread) = self.thread.take()
            // The last handle may be dropped by a task, woken on the engine thread.
            && thread.thread().id() != thread::current().id()
        {
            // Panics do not end the engine thread.
            drop(thread.join());
        }
    }
}

impl Shared {
    /// Time since the engine started.
    pub(crate) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// A descriptor that is always readable.
    pub(crate) fn readable_fd(&self) -> BorrowedFd<'_> {
        self.readable.1.as_fd()
    }

    /// Locks the state; fails in a child of the process that created the engine.
    pub(crate) fn lock(&self) -> io::Result<Guard<'_>> {
        if self.process != verbs::fork::fork_generation() {
            let reason =
                "the socket belongs to the parent process: create another one after the fork";
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        }
        Ok(self.lock_here())
    }

    /// Locks the state in the process that created the engine.
    pub(crate) fn lock_here(&self) -> Guard<'_> {
        self.state.lock()
    }

    /// Performs the work caused by a call, such as posting.
    pub(crate) fn drive(&self, state: &mut EngineState) {
        if !state.node.is_quiet() {
            state.drive(self.now());
        }
    }

    /// Runs the engine thread: connection events, timers, and completions while no call polls.
    fn run(&self, mut standby: Standby<SocketId>) {
        let mut has_events = false;
        while !self.stopped.load(Relaxed) {
            let events = match has_events {
                true => self.events(),
                false => Vec::new(),
            };
            has_events = self.run_once(&mut standby, events);
        }
        self.run_jobs();
        survive(|| self.lock_here().end(&self.channel));
        self.reaper.wait(REAPER_TIMEOUT);
    }

    /// Handles events, expired timers and completions, makes the requested calls, or sleeps. Returns whether there may be
    /// connection events.
    fn run_once(&self, standby: &mut Standby<SocketId>, events: Vec<Event>) -> bool {
        let mut state = self.lock_here();
        let now = self.now();
        for event in events {
            state.survive(|state| state.handle(now, event));
        }
        state.survive(|state| state.expire(now));
        if !state.schedule.jobs.is_empty() || !state.listeners.expired(now).is_empty() {
            drop(state);
            self.run_jobs();
            survive(|| self.listen_again(now));
            return false;
        }
        let Ok(Some(sleep)) = standby.poll(&mut state) else {
            return false;
        };
        let retry = state.listeners.deadline();
        let until = state.schedule.begin_sleep(now, retry);
        drop(state);
        self.sleep(standby, sleep, until)
    }

    /// The next connection events.
    fn events(&self) -> Vec<Event> {
        let events = std::iter::from_fn(|| self.channel.try_next().ok().flatten());
        events.take(EVENT_BATCH).collect()
    }

    /// Sleeps until the thread has work, at most for `time`. Returns whether there may be connection
    /// events.
    fn sleep(&self, standby: &Standby<SocketId>, sleep: Sleep, time: Option<Duration>) -> bool {
        let (polls, limit) = match sleep {
            Sleep::Channel => (true, None),
            Sleep::Event(limit) => (false, Some(limit)),
        };
        let mut fds = [
            self.channel.as_fd(),
            standby.event().as_fd(),
            self.state.channel().as_fd(),
        ]
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let fds = if polls { &mut fds[..] } else { &mut fds[..2] };
        let time = time.into_iter().chain(limit).min();
        let timeout = time.and_then(|time| time.try_into().ok());
        // Fails after a signal.
        let polled = poll(fds, timeout.as_ref());
        standby.event().drain();
        polled.is_err() || !fds[0].revents().is_empty()
    }
}
