//! The thread that keeps the mirrors of sockets up to date, and the updates made by calls.

use std::{
    collections::HashMap,
    io,
    mem::ManuallyDrop,
    os::fd::{BorrowedFd, OwnedFd, RawFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use verbs::panics::survive;

use super::{
    Socket,
    mirror::{IdleMirror, Mirror},
    poll::FAILED,
    source::Watch,
};
use crate::{ready_list::ReadyList, waiters::Interest};

/// Waits for events of the sockets with driven mirrors.
#[derive(Debug)]
struct MirrorDriver {
    ready: Arc<ReadyList>,
    sockets: Mutex<HashMap<u64, Weak<Socket>>>,
    next: AtomicU64,
    process: u64,
}

static DRIVER: Mutex<Option<Arc<MirrorDriver>>> = Mutex::new(None);

impl MirrorDriver {
    /// Returns the driver of this process, started with the first driven socket.
    fn get() -> io::Result<Arc<Self>> {
        let mut driver = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = &*driver
            && driver.process == verbs::fork::fork_generation()
        {
            return Ok(Arc::clone(driver));
        }
        let new = Arc::new(Self {
            ready: ReadyList::new()?,
            sockets: Mutex::default(),
            next: AtomicU64::new(0),
            process: verbs::fork::fork_generation(),
        });
        let thread = Arc::clone(&new);
        verbs::signals::spawn_without_signals("rsocket-ready", move || thread.run())?;
        if let Some(old) = driver.replace(Arc::clone(&new)) {
            // After a fork, the old driver belongs to the parent process, so the child must not drop it.
            let _kept = ManuallyDrop::new(old);
        }
        Ok(new)
    }

    fn sockets(&self) -> MutexGuard<'_, HashMap<u64, Weak<Socket>>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(self: Arc<Self>) {
        loop {
            for name in self.ready.take(None) {
                survive(|| self.serve(name));
            }
        }
    }

    /// Updates the mirror of one socket. After a panic, tries once more, and then shows an error: the panic concerns this socket
    /// alone.
    fn serve(&self, name: u64) {
        let socket = self.sockets().get(&name).and_then(Weak::upgrade);
        let Some(socket) = socket else { return };
        let updated = (0..2).any(|_| survive(|| socket.reflect(true)).is_some());
        if !updated {
            socket.show_failure();
        }
        // The program has dropped the socket meanwhile. Neither the program nor this thread waits for unsent data.
        if let Some(last) = Arc::into_inner(socket) {
            last.linger_in_background();
        }
    }
}

/// The mirror of a socket with its driver.
#[derive(Debug, Default)]
pub(super) struct Reflection {
    parts: Mutex<Parts>,
    /// The driver keeps the mirror up to date. Until then, calls leave the mirror unchanged.
    driven: AtomicBool,
    /// A call outside this library has read from the mirror.
    read_by_others: AtomicBool,
}

#[derive(Debug, Default)]
struct Parts {
    /// Until the mirror is driven.
    idle: Option<IdleMirror>,
    mirror: Option<Mirror>,
    driver: Option<(Arc<MirrorDriver>, Watch)>,
}

impl Reflection {
    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the mirror and closes the socket's own descriptors.
    pub(super) fn end(&self) {
        self.driven.store(false, SeqCst);
        let mut parts = self.lock();
        if let Some(mirror) = &mut parts.mirror
            && mirror.drain_packets()
        {
            self.read_by_others.store(true, SeqCst);
        }
        if let Some((driver, watch)) = parts.driver.take() {
            driver.sockets().remove(&watch.name());
        }
        let ended = std::mem::take(&mut *parts);
        drop(parts);
        drop(ended);
    }
}

impl Socket {
    /// Returns a descriptor for programs unaware of rsockets: a kernel socket with the readiness of this
    /// socket once [driven](Self::drive_mirror), for any kind of wait, including nested or edge-triggered
    /// `epoll`. The descriptor carries no data: writing fails, and reading finds nothing or an end of stream,
    /// recorded for [`mirror_was_read`](Self::mirror_was_read). A socket has one mirror, which the caller may duplicate.
    ///
    /// # Errors
    /// - `EMFILE`: too many open descriptors.
    /// - `EBADF`: the socket has been closed.
    /// - `EEXIST`: an earlier call has returned the mirror.
    pub fn mirror(&self) -> io::Result<OwnedFd> {
        let mut parts = self.reflection.lock();
        if self.is_closed() {
            return Err(super::os_error(rustix::io::Errno::BADF));
        }
        if parts.idle.is_some() || parts.mirror.is_some() {
            return Err(super::os_error(rustix::io::Errno::EXIST));
        }
        let (idle, shown) = IdleMirror::new()?;
        parts.idle = Some(idle);
        Ok(shown)
    }

    /// Whether a call unaware of this socket has read an end of stream from the [mirror](Self::mirror). Known
    /// once the socket has been [closed](Self::close).
    pub fn mirror_was_read(&self) -> bool {
        self.reflection.read_by_others.load(SeqCst)
    }

    /// Keeps the [mirror](Self::mirror) up to date from now on: by a thread of this crate, and by each call
    /// on the socket. `mirror` is one of its descriptors; this socket keeps a duplicate.
    ///
    /// # Errors
    /// - `EMFILE`: too many open descriptors.
    /// - `EINVAL`: `mirror` is another file.
    /// - The thread cannot be started.
    pub fn drive_mirror(self: &Arc<Self>, mirror: BorrowedFd<'_>) -> io::Result<()> {
        if self.reflection.driven.load(SeqCst) {
            return Ok(());
        }
        let driver = MirrorDriver::get()?;
        let mut parts = self.reflection.lock();
        if parts.driver.is_none() {
            let idle = parts.idle.as_ref();
            let idle = idle.ok_or_else(|| super::os_error(rustix::io::Errno::INVAL))?;
            let shown = idle.reach(mirror)?;
            parts.mirror = parts.idle.take().map(|idle| Mirror::new(idle, shown));
            let name = driver.next.fetch_add(1, SeqCst);
            driver.sockets().insert(name, Arc::downgrade(self));
            let watch = Watch::new(&driver.ready, name);
            parts.driver = Some((driver, watch));
        }
        drop(parts);
        self.reflection.driven.store(true, SeqCst);
        self.reflect(true);
        Ok(())
    }

    /// Whether a descriptor is internal to this socket.
    pub fn keeps_fd(&self, fd: RawFd) -> bool {
        let parts = self.reflection.lock();
        let mirrors = parts.mirror.as_ref().is_some_and(|mirror| mirror.has(fd))
            || parts.idle.as_ref().is_some_and(|idle| idle.has(fd));
        drop(parts);
        mirrors
            || self
                .datagram_socket()
                .is_some_and(|datagram| datagram.keeps_fd(fd))
    }

    /// Records a short write: the mirror signals an edge when there is room.
    pub(super) fn starved(&self) {
        if self.reflection.driven.load(SeqCst)
            && let Some(mirror) = &mut self.reflection.lock().mirror
        {
            mirror.starved = true;
        }
    }

    /// Clears the mirror's error after the program has read the socket's error.
    pub(super) fn clear_mirror_error(&self) {
        if self.reflection.driven.load(SeqCst)
            && let Some(mirror) = &self.reflection.lock().mirror
        {
            mirror.clear_error();
        }
    }

    /// Updates the mirror. `after_event` is set by the driver thread after an event.
    pub(super) fn reflect(&self, after_event: bool) {
        if !self.reflection.driven.load(SeqCst) {
            return;
        }
        let mut parts = self.reflection.lock();
        let parts = &mut *parts;
        let Some((_, watch)) = &mut parts.driver else {
            return;
        };
        let event_source = self.event_source();
        let ready = watch.readiness(event_source, Interest::BOTH, after_event);
        if ready.is_err() {
            watch.end();
        }
        if let Some(mirror) = &mut parts.mirror {
            // A failure here means kernel memory is short; the next change retries.
            drop(mirror.show(ready.unwrap_or(FAILED), after_event));
        }
    }

    /// Shows an error, which is final.
    fn show_failure(&self) {
        let mut parts = self.reflection.lock();
        let parts = &mut *parts;
        if let Some((_, watch)) = &mut parts.driver {
            watch.end();
        }
        if let Some(mirror) = &mut parts.mirror {
            drop(mirror.show(FAILED, true));
        }
    }
}
