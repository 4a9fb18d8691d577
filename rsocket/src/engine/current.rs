//! The engine of the process: its start, and its renewal after a change of the process's credentials.
//!
//! The kernel refuses calls on an event channel with other credentials than those of the opener, as after `setuid(2)`. From
//! then on, new sockets have another engine. Established streams remain with the old one: they need no call on the channel.
//!
//! Credentials are a thread's: after a change, those of two threads differ for the kernel, even if they are equal. A thread that
//! is started later has those of its starter. So there is at most one engine for each change and thread.

use std::{
    io, iter,
    mem::ManuallyDrop,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
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
};

/// Maximum number of attempts to find the engine at the exit of the process: the lock is held briefly, except while the engine
/// is started.
const MAX_ATTEMPTS: u32 = 100;

static ENGINE: Mutex<Option<Arc<Engine>>> = Mutex::new(None);

impl Engine {
    /// Returns the engine for new sockets of this process, started with the first one, and again after a change of credentials.
    pub(crate) fn get() -> io::Result<Arc<Self>> {
        let mut engine = ENGINE.lock().unwrap_or_else(PoisonError::into_inner);
        let is_of_process = |engine: &&Arc<Self>| engine.process == verbs::fork::fork_generation();
        let older = engine.as_ref().filter(is_of_process).map(Arc::clone);
        let mut engines = iter::successors(older.as_ref(), |engine| engine.older.as_ref());
        if let Some(engine) = engines.find(|engine| !engine.is_refused()) {
            return Ok(Arc::clone(engine));
        }
        let (setup, work) = mpsc::sync_channel(MAX_SETUP_WORK);
        let new = Arc::new(Self {
            setup,
            channel: EventChannel::new()?,
            devices: Devices::default(),
            owners: Mutex::default(),
            timers: Mutex::new(Timers::new()),
            unsent: Unsent::new()?,
            event_fd: EventFd::new()?,
            always_readable: EventFd::new()?,
            deferring: Mutex::default(),
            datagram_sockets: Mutex::default(),
            next_socket_name: AtomicU64::new(0),
            udp: verbs::fd::raised(epoll::create(epoll::CreateFlags::CLOEXEC)?),
            exit: ExitRequest::default(),
            process: verbs::fork::fork_generation(),
            pid: rustix::process::getpid(),
            older,
            is_refused: AtomicBool::new(false),
        });
        new.always_readable.notify();
        let served = Arc::downgrade(&new);
        verbs::signals::spawn_without_signals("rsocket-setup", move || {
            setup::run(|| served.upgrade(), &work);
        })?;
        let driven = Arc::clone(&new);
        verbs::signals::spawn_without_signals("rsocket", move || driven.run())?;
        wait_at_exit();
        if let Some(old) = engine.replace(Arc::clone(&new)) {
            // After a fork, the old engine belongs to the parent process, so the child must not drop it.
            let _kept = ManuallyDrop::new(old);
        }
        Ok(new)
    }

    /// Returns the engine of this process, if any. The caller may be inside a signal handler that interrupted
    /// [`get`](Self::get), so gives up after some time.
    pub(crate) fn running() -> Option<Arc<Self>> {
        for _ in 0..MAX_ATTEMPTS {
            let engine = match ENGINE.try_lock() {
                Ok(engine) => engine,
                Err(TryLockError::Poisoned(engine)) => engine.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    thread::sleep(ATTEMPT_INTERVAL);
                    continue;
                }
            };
            return engine.as_ref().filter(|engine| engine.is_own()).cloned();
        }
        None
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

    /// Ends the listeners and attempts, which get no event of the channel any more.
    fn end_refused(&self) {
        let is_ended =
            |owner: &IdOwner| matches!(owner, IdOwner::Listening(..) | IdOwner::Connecting(_));
        let ended: Vec<_> = self
            .owners()
            .extract_if(|_, owner| is_ended(owner))
            .collect();
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
