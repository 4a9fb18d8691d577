//! The engine of the process: its start, and its renewal after a change of the process's credentials.
//!
//! The kernel refuses calls on an event channel with other credentials than those of the opener, as after `setuid(2)`. From
//! then on, new sockets have another engine. Established streams remain with the old one: they need no call on the channel.
//!
//! Credentials are a thread's: after a change, those of two threads differ for the kernel, even if they are equal. A thread that
//! is started later has those of its starter. So each change and thread takes another engine; one without sockets ends.

use std::{
    io,
    mem::{self, ManuallyDrop},
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst, fence},
        mpsc,
    },
    thread,
};

use cm::EventChannel;
use rustix::{event::epoll, io::Errno};
use verbs::waiting::EventFd;

use super::{ATTEMPT_INTERVAL, Engine, IdOwner};
use crate::{
    backlog::Closed,
    device::Devices,
    exit::{ExitRequest, wait_at_exit},
    setup::{self, MAX_SETUP_WORK},
    timers::Timers,
    unsent::Unsent,
    waiters::always_readable,
};

/// Maximum number of attempts to find the engines at the exit of the process: the lock is held briefly, except while the engine
/// is started.
const MAX_ATTEMPTS: u32 = 100;

/// Maximum number of engines of a process, each with two threads and an event channel.
const MAX_ENGINES: usize = 16;

/// The engines of the process.
type Engines = [Option<Arc<Engine>>; MAX_ENGINES];

static ENGINES: Mutex<Engines> = Mutex::new([const { None }; MAX_ENGINES]);

impl Engine {
    /// Returns the engine for new sockets of this thread, started with the first one, and again after a change of credentials.
    /// Engines without sockets then end.
    ///
    /// # Errors
    /// - `PermissionDenied`: the sockets from before changes of credentials have all engines.
    pub(crate) fn get() -> io::Result<Arc<Self>> {
        let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
        let process = verbs::fork::fork_generation();
        if engines.iter().flatten().any(|old| old.process != process) {
            // After a fork, the old engines belong to the parent process, so the child must not drop them.
            let _kept = ManuallyDrop::new(mem::take(&mut *engines));
        }
        let usable = engines.iter().flatten().find(|engine| !engine.is_refused());
        if let Some(engine) = usable {
            return Ok(Arc::clone(engine));
        }
        for entry in &mut *engines {
            drop(entry.take_if(|engine| engine.end_if_unused()));
        }
        let free = engines.iter_mut().find(|entry| entry.is_none());
        let free = free.ok_or_else(too_many)?;
        Ok(Arc::clone(free.insert(Self::start()?)))
    }

    fn start() -> io::Result<Arc<Self>> {
        let (setup, work) = mpsc::sync_channel(MAX_SETUP_WORK);
        let new = Arc::new(Self {
            setup,
            channel: EventChannel::new()?,
            devices: Devices::default(),
            owners: Mutex::default(),
            timers: Mutex::new(Timers::new()),
            unsent: Unsent::new()?,
            event_fd: EventFd::new()?,
            always_readable: always_readable()?,
            deferring: Mutex::default(),
            datagram_sockets: Mutex::default(),
            next_socket_name: AtomicU64::new(0),
            udp: verbs::fd::raised(epoll::create(epoll::CreateFlags::CLOEXEC)?),
            exit: ExitRequest::default(),
            process: verbs::fork::fork_generation(),
            pid: rustix::process::getpid(),
            is_refused: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        });
        let served = Arc::downgrade(&new);
        verbs::signals::spawn_without_signals("rsocket-setup", move || {
            setup::run(|| served.upgrade(), &work);
        })?;
        let driven = Arc::clone(&new);
        verbs::signals::spawn_without_signals("rsocket", move || driven.run())?;
        wait_at_exit();
        Ok(new)
    }

    /// Ends the engine if it has no socket and no dropped stream with unsent data. The caller has the lock of the engines.
    fn end_if_unused(self: &Arc<Self>) -> bool {
        // References of the table and of the engine's thread. The set-up thread has no reference between events, and counts as a socket
        // during one.
        const WITHOUT_SOCKETS: usize = 2;
        let is_unused = Arc::strong_count(self) == WITHOUT_SOCKETS && {
            // A dropped stream is counted before its reference ends.
            fence(SeqCst);
            !self.has_dropped()
        };
        if is_unused {
            self.has_ended.store(true, SeqCst);
            self.event_fd.notify();
        }
        is_unused
    }

    /// Returns the engines of this process. The caller may be inside a signal handler that interrupted
    /// [`get`](Self::get), so gives up after some time.
    pub(crate) fn running() -> Engines {
        for _ in 0..MAX_ATTEMPTS {
            let engines = match ENGINES.try_lock() {
                Ok(engines) => engines,
                Err(TryLockError::Poisoned(engines)) => engines.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    thread::sleep(ATTEMPT_INTERVAL);
                    continue;
                }
            };
            let is_own = |engine: &&Arc<Self>| engine.is_own();
            return engines
                .each_ref()
                .map(|entry| entry.as_ref().filter(is_own).cloned());
        }
        Engines::default()
    }

    fn is_own(&self) -> bool {
        self.process == verbs::fork::fork_generation() && self.pid == rustix::process::getpid()
    }

    /// Whether the kernel refuses this thread's calls on the channel, because the thread has other credentials than its opener.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.load(SeqCst) || self.channel.is_refused()
    }

    /// The channel, for a wait; a refused one is readable for ever.
    pub(super) fn readable_channel(&self) -> BorrowedFd<'_> {
        match self.is_refused.load(SeqCst) {
            true => self.event_fd.as_fd(),
            false => self.channel.as_fd(),
        }
    }

    /// Handles the events of the channel.
    pub(super) fn receive_events(&self) {
        while !self.is_refused.load(SeqCst) {
            match self.channel.try_next() {
                Ok(Some(event)) => self.dispatch(event),
                Ok(None) => return,
                Err(error) if error.raw_os_error() == Some(Errno::ACCESS.raw_os_error()) => {
                    self.is_refused.store(true, SeqCst);
                    self.end_refused();
                }
                Err(_) => return,
            }
        }
    }

    /// Ends the listeners, attempts, handshakes and resolutions, which get no event of the channel any more.
    fn end_refused(&self) {
        let is_ended =
            |owner: &IdOwner| matches!(owner, IdOwner::Listening(..) | IdOwner::Connecting(_));
        let mut table = self.owners();
        let ended: Vec<_> = table.extract_if(|_, owner| is_ended(owner)).collect();
        let is_failed =
            |owner: &IdOwner| matches!(owner, IdOwner::Accepting(..) | IdOwner::Resolving(..));
        let failed: Vec<_> = table
            .iter()
            .filter_map(|(key, owner)| is_failed(owner).then_some(*key))
            .collect();
        drop(table);
        for key in failed {
            self.ended(key, None);
            self.channel.cancel(key);
        }
        for (_, owner) in ended {
            match owner {
                IdOwner::Listening(backlog, _) => {
                    if let Some(backlog) = backlog.upgrade() {
                        backlog.close(self, Closed::Refused);
                    }
                }
                IdOwner::Connecting(connecting) => {
                    if let Some(connecting) = connecting.upgrade() {
                        connecting.refused();
                    }
                }
                _ => {}
            }
        }
    }
}

fn too_many() -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "sockets from before {MAX_ENGINES} changes of credentials, as by `seteuid`, are open: close those of one"
        ),
    )
}
