//! The thread that keeps mirrors of sockets as they should be, and what calls do for theirs.

use std::{
    collections::HashMap,
    io,
    mem::ManuallyDrop,
    os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use rustix::event::epoll;

use super::{Phase, Socket, mirror::Mirror, poll::FAILED};
use crate::{
    connection::Connection,
    datagram::Port,
    proto::stream::Readiness,
    waiters::Bell,
    waiting::{Driven, Shared},
};

/// Sockets that are looked at in one turn.
const MOST_AT_ONCE: usize = 64;

/// Watches what tells of the sockets whose mirrors are driven.
#[derive(Debug)]
struct Driver {
    sources: OwnedFd,
    sockets: Mutex<HashMap<u64, Weak<Socket>>>,
    next: AtomicU64,
    process: u64,
}

static DRIVER: Mutex<Option<Arc<Driver>>> = Mutex::new(None);

impl Driver {
    /// The driver of this process, which is started with its first socket.
    fn get() -> io::Result<Arc<Self>> {
        let mut driver = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = &*driver
            && driver.process == verbs::fork_generation()
        {
            return Ok(Arc::clone(driver));
        }
        let new = Arc::new(Self {
            sources: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            sockets: Mutex::default(),
            next: AtomicU64::new(0),
            process: verbs::fork_generation(),
        });
        let thread = Arc::clone(&new);
        verbs::spawn_without_signals("rsocket-ready", move || thread.run())?;
        if let Some(old) = driver.replace(Arc::clone(&new)) {
            // A fork has left it behind, and it is not this process's to clean up.
            let _kept = ManuallyDrop::new(old);
        }
        Ok(new)
    }

    fn sockets(&self) -> MutexGuard<'_, HashMap<u64, Weak<Socket>>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(self: Arc<Self>) {
        loop {
            let mut events = Vec::with_capacity(MOST_AT_ONCE);
            let room = rustix::buffer::spare_capacity(&mut events);
            // It fails by signals only, and this thread takes none.
            let _: rustix::io::Result<usize> = epoll::wait(&self.sources, room, None);
            for event in events {
                let socket = self
                    .sockets()
                    .get(&event.data.u64())
                    .and_then(Weak::upgrade);
                let Some(socket) = socket else { continue };
                socket.reflect(true);
                // Who has dropped it meanwhile does not wait for what it has sent, nor does this thread.
                if let Some(last) = Arc::into_inner(socket) {
                    last.linger_in_background();
                }
            }
        }
    }
}

/// What tells that the readiness of a socket has changed.
#[derive(Debug)]
enum Source {
    /// Connecting has ended.
    Opening(Bell),
    /// There is a connection to accept.
    Listening(Bell),
    /// What a watcher watches for has come.
    Watched { fd: Arc<OwnedFd>, watcher: usize },
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Opening(bell) | Self::Listening(bell) => bell.as_fd(),
            Self::Watched { fd, .. } => fd.as_fd(),
        }
    }
}

/// The mirror of a socket, and what drives it.
#[derive(Debug, Default)]
pub(super) struct Reflection {
    parts: Mutex<Parts>,
    /// The mirror is kept up to date. Until then, calls leave it alone.
    driven: AtomicBool,
    /// A call that does not know of the socket has read from the mirror.
    read_by_others: AtomicBool,
}

#[derive(Debug, Default)]
struct Parts {
    mirror: Option<Mirror>,
    driver: Option<(Arc<Driver>, u64)>,
    source: Option<Source>,
}

impl Parts {
    /// Watches another source, or none.
    fn set_source(&mut self, source: Option<Source>) -> io::Result<()> {
        let Some((driver, name)) = &self.driver else {
            return Ok(());
        };
        if let Some(old) = self.source.take() {
            let _: rustix::io::Result<()> = epoll::delete(&driver.sources, &old);
        }
        if let Some(new) = source {
            let data = epoll::EventData::new_u64(*name);
            // A bell goes on ringing until the program has done something.
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&driver.sources, &new, data, flags)?;
            self.source = Some(new);
        }
        Ok(())
    }
}

/// A phase as far as the mirror of a socket in it goes.
enum Subject {
    Quiet,
    Opening(Bell),
    Listening(Bell, bool),
    Stream(Arc<Connection>),
    Datagram(Arc<Port>),
    Failed,
    Ended,
}

impl Reflection {
    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the mirror: the descriptors that are the socket's own are closed.
    pub(super) fn end(&self) {
        self.driven.store(false, SeqCst);
        let mut parts = self.lock();
        if let Some(mirror) = &mut parts.mirror
            && mirror.take_back()
        {
            self.read_by_others.store(true, SeqCst);
        }
        // It fails only to add.
        drop(parts.set_source(None));
        if let Some((driver, name)) = parts.driver.take() {
            driver.sockets().remove(&name);
        }
        let ended = std::mem::take(&mut *parts);
        drop(parts);
        drop(ended);
    }
}

impl Socket {
    /// A descriptor for programs that do not know of rsockets: to the kernel it is a socket, and once it is
    /// [driven](Self::drive_mirror), any wait for it, by `epoll` of any kind, tells what this socket is ready
    /// for. It carries no data: writing to it fails, and reading from it finds nothing, or an end, which
    /// [`mirror_was_read`](Self::mirror_was_read) tells of. All descriptors that this gives are duplicates.
    ///
    /// # Errors
    /// - `EMFILE`: there are too many descriptors.
    /// - `EBADF`: the socket has been closed.
    pub fn mirror(&self) -> io::Result<OwnedFd> {
        let mut parts = self.reflection.lock();
        if self.is_closed() {
            return Err(super::os_error(rustix::io::Errno::BADF));
        }
        if parts.mirror.is_none() {
            parts.mirror = Some(Mirror::new()?);
        }
        match &parts.mirror {
            Some(mirror) => mirror.duplicate(),
            None => Err(super::os_error(rustix::io::Errno::BADF)),
        }
    }

    /// Whether a call that does not know of this socket has read from its [mirror](Self::mirror) and found an
    /// end there. It is known once this socket has been [closed](Self::close).
    pub fn mirror_was_read(&self) -> bool {
        self.reflection.read_by_others.load(SeqCst)
    }

    /// Keeps the [mirror](Self::mirror) up to date from now on: by a thread of this crate's, and by each call
    /// of the socket's.
    ///
    /// # Errors
    /// - `EMFILE`: there are too many descriptors.
    /// - The thread cannot be started.
    pub fn drive_mirror(self: &Arc<Self>) -> io::Result<()> {
        if self.reflection.driven.load(SeqCst) {
            return Ok(());
        }
        drop(self.mirror()?);
        let driver = Driver::get()?;
        let mut parts = self.reflection.lock();
        if parts.driver.is_none() {
            let name = driver.next.fetch_add(1, SeqCst);
            driver.sockets().insert(name, Arc::downgrade(self));
            parts.driver = Some((driver, name));
        }
        drop(parts);
        self.reflection.driven.store(true, SeqCst);
        self.reflect(true);
        Ok(())
    }

    /// Whether a descriptor is one that this socket keeps for itself.
    pub fn keeps_fd(&self, fd: RawFd) -> bool {
        let parts = self.reflection.lock();
        let mirrors = parts.mirror.as_ref().is_some_and(|mirror| mirror.has(fd));
        drop(parts);
        mirrors || self.port().is_some_and(|port| port.keeps_fd(fd))
    }

    /// A write was short of room: the mirror tells when there is some.
    pub(super) fn starved(&self) {
        if self.reflection.driven.load(SeqCst)
            && let Some(mirror) = &mut self.reflection.lock().mirror
        {
            mirror.starved = true;
        }
    }

    /// The error of the socket has been told, and is not to be shown any more.
    pub(super) fn error_is_told(&self) {
        if self.reflection.driven.load(SeqCst)
            && let Some(mirror) = &self.reflection.lock().mirror
        {
            mirror.clear_error();
        }
    }

    /// Shows what the socket is ready for now. `news` is said by the thread that has been told of something.
    pub(super) fn reflect(&self, news: bool) {
        if !self.reflection.driven.load(SeqCst) {
            return;
        }
        let mut parts = self.reflection.lock();
        let parts = &mut *parts;
        let subject = self.subject();
        let ready = parts.readiness(subject, news);
        if ready.is_err() {
            // It would tell of the same again and again.
            drop(parts.set_source(None));
        }
        if let Some(mirror) = &mut parts.mirror {
            // What fails here is want of memory in the kernel; the next change tries again.
            drop(mirror.show(ready.unwrap_or(FAILED), news));
        }
    }

    fn subject(&self) -> Subject {
        match &self.lock().phase {
            Phase::Idle(_) | Phase::Closed => Subject::Quiet,
            Phase::Opening(opening) => Subject::Opening(opening.bell().clone()),
            Phase::Listening(listener) => {
                Subject::Listening(listener.bell().clone(), listener.is_ready())
            }
            Phase::Connected(stream) => Subject::Stream(Arc::clone(stream.connection())),
            Phase::Datagram(port) => Subject::Datagram(Arc::clone(port)),
            Phase::Failed => Subject::Failed,
            Phase::Ended => Subject::Ended,
        }
    }
}

impl Parts {
    /// The readiness of a socket, after its source has become that of its phase. The thread goes on being told of
    /// changes.
    fn readiness(&mut self, subject: Subject, news: bool) -> io::Result<Readiness> {
        match subject {
            Subject::Quiet => Ok(Readiness::default()),
            Subject::Failed => {
                self.set_source(None)?;
                Ok(FAILED)
            }
            Subject::Ended => {
                self.set_source(None)?;
                Ok(Readiness {
                    failed: false,
                    ..FAILED
                })
            }
            Subject::Opening(bell) => {
                if !matches!(self.source, Some(Source::Opening(_))) {
                    self.set_source(Some(Source::Opening(bell)))?;
                }
                Ok(Readiness::default())
            }
            Subject::Listening(bell, readable) => {
                if !matches!(self.source, Some(Source::Listening(_))) {
                    self.set_source(Some(Source::Listening(bell)))?;
                }
                Ok(Readiness {
                    readable,
                    ..Readiness::default()
                })
            }
            Subject::Stream(connection) => self.watched(connection.shared(), news),
            Subject::Datagram(port) => {
                let mut ready = self.watched(port.shared(), news)?;
                // An error of a datagram is not the end, and comes with the next call.
                ready.readable |= ready.failed;
                ready.writable |= ready.failed;
                ready.failed = false;
                Ok(ready)
            }
        }
    }

    fn watched<S: Driven>(&mut self, shared: &Shared<S>, news: bool) -> io::Result<Readiness> {
        let (watcher, is_new) = match &self.source {
            Some(Source::Watched { watcher, .. }) => (*watcher, false),
            _ => {
                let (watcher, fd) = shared.add_watcher()?;
                self.set_source(Some(Source::Watched { fd, watcher }))?;
                (watcher, true)
            }
        };
        if news || is_new {
            return shared.watch_readiness(watcher);
        }
        shared.readiness_watched()
    }
}
