//! Descriptors of a socket for event loops.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use verbs::{fd::NotifyFd, waiting::EventFd};

use super::Readiness;
use crate::{
    outbound::Payload,
    proto::{SocketId, node::Node},
    slots::Body,
};

/// Descriptors of a socket, and the state they show. Flags are written with the engine's lock held, and may be read without.
#[derive(Debug)]
pub(crate) struct Descriptors {
    id: SocketId,
    event: EventFd,
    /// Handed out instead of `event`, which a program could read or make blocking.
    notify_fd: NotifyFd,
    /// Signaled while the send buffer has room, with its descriptor for programs. Created on first
    /// use.
    room: OnceLock<(EventFd, NotifyFd)>,
    /// A descriptor was handed out, so `event` must be kept up to date.
    watched: AtomicBool,
    /// A nonblocking send has failed, so `event` includes room to send.
    blocked: AtomicBool,
    /// Completed zero-copy cookies may be queued.
    has_zero_copy_done: AtomicBool,
    /// Busy-poll time in microseconds.
    busy_poll: AtomicU64,
    /// Copy of [`Seen::signaled`], readable without its lock.
    signaled: AtomicBool,
    seen: Mutex<Seen>,
}

/// State shown by the descriptors.
#[derive(Debug, Default)]
struct Seen {
    signaled: bool,
    /// State of [`Descriptors::room`].
    room_signaled: bool,
    /// A congestion map has changed since the last query.
    map_changed: bool,
    /// Cookies of completed zero-copy messages.
    zero_copy_done: VecDeque<u32>,
}

/// Whole microseconds, rounded up so that only zero becomes zero.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX)
}

impl Descriptors {
    pub(crate) fn new(id: SocketId, busy_poll: Duration) -> io::Result<Self> {
        let event = EventFd::new()?;
        Ok(Self {
            id,
            notify_fd: NotifyFd::of(event.as_fd())?,
            event,
            room: OnceLock::new(),
            watched: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            has_zero_copy_done: AtomicBool::new(false),
            busy_poll: AtomicU64::new(micros(busy_poll)),
            signaled: AtomicBool::new(false),
            seen: Mutex::default(),
        })
    }

    /// Busy-poll time before sleeping.
    pub(crate) fn busy_poll(&self) -> Duration {
        Duration::from_micros(self.busy_poll.load(Relaxed))
    }

    pub(super) fn set_busy_poll(&self, time: Duration) {
        self.busy_poll.store(micros(time), Relaxed);
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the descriptors, if handed out.
    pub(crate) fn show_if_watched(&self, node: &mut Node<Payload, Body>) {
        if self.watched.load(Relaxed) && !self.is_right(node) {
            self.show(node);
        }
    }

    /// Quick check that the descriptor is up to date, in the common case without interest in room
    /// or congestion.
    fn is_right(&self, node: &Node<Payload, Body>) -> bool {
        let pending = node.pending(self.id).unwrap_or_default();
        let usual = !pending.map_changed && !self.has_zero_copy_done() && self.room.get().is_none();
        let readable = pending.message || pending.event;
        usual && !self.blocked.load(Relaxed) && readable == self.signaled.load(Relaxed)
    }

    /// Updates the descriptors; returns the readiness.
    pub(crate) fn show(&self, node: &mut Node<Payload, Body>) -> Readiness {
        let mut seen = self.seen();
        // A closed socket is never ready.
        let now = node.readiness(self.id).unwrap_or_default();
        seen.map_changed |= now.map_changed;
        let readable = now.readable || !seen.zero_copy_done.is_empty();
        let signal = readable || seen.map_changed || self.blocked.load(Relaxed) && now.writable;
        if signal != seen.signaled && self.watched.load(Relaxed) {
            seen.signaled = signal;
            self.signaled.store(signal, Relaxed);
            if signal {
                self.event.notify();
            } else {
                self.event.drain();
            }
        }
        if let Some((room, _)) = self.room.get()
            && now.writable != seen.room_signaled
        {
            seen.room_signaled = now.writable;
            if now.writable {
                room.notify();
            } else {
                room.drain();
            }
        }
        Readiness {
            readable,
            writable: now.writable,
            map_changed: seen.map_changed,
        }
    }

    /// Queues the cookie of a completed zero-copy message.
    pub(crate) fn add_zero_copy_done(&self, name: u32) {
        self.seen().zero_copy_done.push_back(name);
        self.has_zero_copy_done.store(true, Relaxed);
    }

    /// Whether cookies may be queued.
    pub(super) fn has_zero_copy_done(&self) -> bool {
        self.has_zero_copy_done.load(Relaxed)
    }

    /// Takes the next cookie.
    pub(super) fn take_zero_copy_done(&self) -> Option<u32> {
        let mut seen = self.seen();
        let free = seen.zero_copy_done.pop_front();
        self.has_zero_copy_done
            .store(!seen.zero_copy_done.is_empty(), Relaxed);
        free
    }

    /// Records a query of `map_changed`.
    pub(crate) fn clear_map_changed(&self) {
        self.seen().map_changed = false;
    }

    /// Sets whether `event` includes room to send.
    pub(crate) fn set_blocked(&self, node: &mut Node<Payload, Body>, blocked: bool) {
        if self.blocked.load(Relaxed) == blocked {
            return;
        }
        self.blocked.store(blocked, Relaxed);
        self.show_if_watched(node);
    }

    /// The descriptor, kept up to date from now on.
    pub(crate) fn watch(&self) -> BorrowedFd<'_> {
        self.watched.store(true, Relaxed);
        self.notify_fd.as_fd()
    }

    /// The descriptor for room to send. Up to date after the next [`show`](Self::show).
    pub(crate) fn watch_room(&self) -> io::Result<BorrowedFd<'_>> {
        self.watched.store(true, Relaxed);
        if let Some((_, notify)) = self.room.get() {
            return Ok(notify.as_fd());
        }
        let room = EventFd::new()?;
        let notify = NotifyFd::of(room.as_fd())?;
        // Another thread may have been first.
        Ok(self.room.get_or_init(|| (room, notify)).1.as_fd())
    }
}
