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
    slots::FrameBody,
};

/// Descriptors of a socket, and the state they show. Flags are written with the engine's lock held, and may be read without.
#[derive(Debug)]
pub(crate) struct Descriptors {
    id: SocketId,
    /// Signaled while something can be received. Created on first use, as most programs have no
    /// event loop.
    event: OnceLock<Watched>,
    /// Signaled while the send buffer has room. Created on first use.
    writable: OnceLock<Watched>,
    /// A nonblocking send has failed, so `event` includes room to send.
    blocked: AtomicBool,
    /// Completed zero-copy cookies may be queued.
    has_zero_copy_done: AtomicBool,
    /// Busy-poll time in microseconds.
    busy_poll: AtomicU64,
    /// Copy of [`Shown::signaled`], readable without its lock.
    signaled: AtomicBool,
    shown: Mutex<Shown>,
}

/// A descriptor for programs.
#[derive(Debug)]
struct Watched {
    event: EventFd,
    /// Handed out instead of `event`, which a program could read or make blocking.
    notify_fd: NotifyFd,
}

impl Watched {
    /// The descriptor in `cell`, created by the first call.
    fn at(cell: &OnceLock<Self>) -> io::Result<BorrowedFd<'_>> {
        if let Some(watched) = cell.get() {
            return Ok(watched.notify_fd.as_fd());
        }
        let event = EventFd::new()?;
        let notify_fd = NotifyFd::of(event.as_fd())?;
        // Another thread may have been first.
        let watched = cell.get_or_init(|| Self { event, notify_fd });
        Ok(watched.notify_fd.as_fd())
    }

    /// Makes the descriptor readable, or unreadable.
    fn show(&self, signaled: bool) {
        if signaled {
            self.event.notify();
        } else {
            self.event.drain();
        }
    }
}

/// State shown by the descriptors.
#[derive(Debug, Default)]
struct Shown {
    signaled: bool,
    /// State of [`Descriptors::writable`].
    writable_signaled: bool,
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
    pub(crate) fn new(id: SocketId, busy_poll: Duration) -> Self {
        Self {
            id,
            event: OnceLock::new(),
            writable: OnceLock::new(),
            blocked: AtomicBool::new(false),
            has_zero_copy_done: AtomicBool::new(false),
            busy_poll: AtomicU64::new(micros(busy_poll)),
            signaled: AtomicBool::new(false),
            shown: Mutex::default(),
        }
    }

    /// Busy-poll time before sleeping.
    pub(crate) fn busy_poll(&self) -> Duration {
        Duration::from_micros(self.busy_poll.load(Relaxed))
    }

    pub(super) fn set_busy_poll(&self, time: Duration) {
        self.busy_poll.store(micros(time), Relaxed);
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the descriptors, if handed out.
    pub(crate) fn show_if_watched(&self, node: &mut Node<Payload, FrameBody>) {
        let is_watched = self.event.get().is_some() || self.writable.get().is_some();
        if is_watched && !self.is_right(node) {
            self.show(node);
        }
    }

    /// Quick check that the descriptor is up to date, in the common case without interest in room
    /// or congestion.
    fn is_right(&self, node: &Node<Payload, FrameBody>) -> bool {
        let pending = node.pending(self.id).unwrap_or_default();
        let usual =
            !pending.map_changed && !self.has_zero_copy_done() && self.writable.get().is_none();
        let readable = pending.message || pending.event;
        usual && !self.blocked.load(Relaxed) && readable == self.signaled.load(Relaxed)
    }

    /// Updates the descriptors; returns the readiness.
    pub(crate) fn show(&self, node: &mut Node<Payload, FrameBody>) -> Readiness {
        let mut shown = self.shown();
        // A closed socket is never ready.
        let now = node.readiness(self.id).unwrap_or_default();
        shown.map_changed |= now.map_changed;
        let readable = now.readable || !shown.zero_copy_done.is_empty();
        let signal = readable || shown.map_changed || self.blocked.load(Relaxed) && now.writable;
        if let Some(event) = self.event.get()
            && signal != shown.signaled
        {
            shown.signaled = signal;
            self.signaled.store(signal, Relaxed);
            event.show(signal);
        }
        if let Some(writable) = self.writable.get()
            && now.writable != shown.writable_signaled
        {
            shown.writable_signaled = now.writable;
            writable.show(now.writable);
        }
        Readiness {
            readable,
            writable: now.writable,
            map_changed: shown.map_changed,
        }
    }

    /// Queues the cookie of a completed zero-copy message.
    pub(crate) fn add_zero_copy_done(&self, name: u32) {
        self.shown().zero_copy_done.push_back(name);
        self.has_zero_copy_done.store(true, Relaxed);
    }

    /// Whether cookies may be queued.
    pub(super) fn has_zero_copy_done(&self) -> bool {
        self.has_zero_copy_done.load(Relaxed)
    }

    /// Takes the next cookie.
    pub(super) fn take_zero_copy_done(&self) -> Option<u32> {
        let mut shown = self.shown();
        let free = shown.zero_copy_done.pop_front();
        self.has_zero_copy_done
            .store(!shown.zero_copy_done.is_empty(), Relaxed);
        free
    }

    /// Records a query of `map_changed`.
    pub(crate) fn clear_map_changed(&self) {
        self.shown().map_changed = false;
    }

    /// Sets whether `event` includes room to send.
    pub(crate) fn set_blocked(&self, node: &mut Node<Payload, FrameBody>, blocked: bool) {
        if self.blocked.load(Relaxed) == blocked {
            return;
        }
        self.blocked.store(blocked, Relaxed);
        self.show_if_watched(node);
    }

    /// The descriptor. Up to date after the next [`show`](Self::show).
    ///
    /// # Errors
    /// The first call creates the descriptor, and fails without a free one.
    pub(crate) fn watch(&self) -> io::Result<BorrowedFd<'_>> {
        Watched::at(&self.event)
    }

    /// The descriptor for room to send. As for [`watch`](Self::watch).
    ///
    /// # Errors
    /// As for [`watch`](Self::watch).
    pub(crate) fn watch_writable(&self) -> io::Result<BorrowedFd<'_>> {
        Watched::at(&self.writable)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use verbs::fd::wait_readable;

    use super::*;
    use crate::proto::node::Settings;

    fn is_readable(fd: BorrowedFd<'_>) -> bool {
        wait_readable("poll", fd, Some(Duration::ZERO)).unwrap()
    }

    #[test]
    fn descriptors_are_created_on_first_use() {
        let mut node = Node::new(Settings::new(NonZero::<u64>::MIN, 1));
        let id = node.socket();
        let descriptors = Descriptors::new(id, Duration::ZERO);
        descriptors.add_zero_copy_done(1);
        descriptors.show_if_watched(&mut node);
        descriptors.show(&mut node);
        assert!(descriptors.event.get().is_none() && descriptors.writable.get().is_none());
        // The state at the time of creation is shown.
        let event = descriptors.watch().unwrap();
        assert!(!is_readable(event));
        descriptors.show(&mut node);
        assert!(is_readable(event));
        assert!(descriptors.writable.get().is_none());
        let writable = descriptors.watch_writable().unwrap();
        descriptors.show(&mut node);
        assert!(is_readable(writable));
        assert_eq!(descriptors.take_zero_copy_done(), Some(1));
        descriptors.show(&mut node);
        assert!(!is_readable(event) && is_readable(writable));
    }
}
