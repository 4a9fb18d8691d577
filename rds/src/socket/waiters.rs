//! Who waits for a socket.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::Waker,
    time::{Duration, Instant},
};

use verbs::fd::NotifyFd;

use super::Readiness;
use crate::{
    engine::State,
    event_fd::EventFd,
    outbound::Payload,
    proto::{SocketId, node::Node},
    slots::Body,
};

/// Those who wait for one socket: calls, and whoever watches its descriptor.
#[derive(Debug)]
pub(crate) struct Waiters {
    id: SocketId,
    changed: Condvar,
    /// How many calls wait for that.
    waiting: AtomicUsize,
    event: EventFd,
    /// Handed out in place of the bell, which a program could read or make blocking.
    notify_fd: NotifyFd,
    /// Rung while a message can be sent, and its descriptor for programs. Made when a caller has
    /// asked for it.
    room: OnceLock<(EventFd, NotifyFd)>,
    /// Somebody has the descriptor, so that it is worth keeping right.
    watched: AtomicBool,
    /// A call that does not wait could not send, and wants to know when it can. Set by who has the engine locked.
    blocked: AtomicBool,
    /// There may be memory that nobody has been told of. Likewise.
    has_zero_copy_done: AtomicBool,
    /// For how many microseconds a call looks before it sleeps.
    busy_poll: AtomicU64,
    /// What the descriptor shows, as far as it has to be known without a lock. Set by who has the engine locked.
    signaled: AtomicBool,
    seen: Mutex<Seen>,
    tasks: Mutex<Vec<Waker>>,
}

/// What the descriptor shows.
#[derive(Debug, Default)]
struct Seen {
    signaled: bool,
    /// That of the other bell.
    room_signaled: bool,
    /// A peer's map has come that nobody has been told of.
    map_changed: bool,
    /// Memory that was sent without a copy, and is not needed any more.
    zero_copy_done: VecDeque<u32>,
}

/// Whole microseconds; not nothing if it is something.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX)
}

impl Waiters {
    pub(crate) fn new(id: SocketId, busy_poll: Duration) -> io::Result<Self> {
        let event = EventFd::new()?;
        Ok(Self {
            id,
            changed: Condvar::new(),
            waiting: AtomicUsize::new(0),
            notify_fd: NotifyFd::of(event.as_fd())?,
            event,
            room: OnceLock::new(),
            watched: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            has_zero_copy_done: AtomicBool::new(false),
            busy_poll: AtomicU64::new(micros(busy_poll)),
            signaled: AtomicBool::new(false),
            seen: Mutex::default(),
            tasks: Mutex::default(),
        })
    }

    pub(crate) fn id(&self) -> SocketId {
        self.id
    }

    /// How long a call looks before it sleeps.
    pub(crate) fn busy_poll(&self) -> Duration {
        Duration::from_micros(self.busy_poll.load(Relaxed))
    }

    pub(super) fn set_busy_poll(&self, time: Duration) {
        self.busy_poll.store(micros(time), Relaxed);
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has changed. Tasks that wait go to `woken`, to be woken when nothing is locked: what
    /// a waker does is not known here.
    pub(crate) fn wake(&self, woken: &mut Vec<Waker>) {
        // Whoever waits has counted itself before it unlocked the engine.
        if self.waiting.load(Relaxed) > 0 {
            self.changed.notify_all();
        }
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        woken.append(&mut tasks);
    }

    /// Makes the descriptor right, if somebody has it.
    pub(crate) fn show_if_watched(&self, node: &mut Node<Payload, Body>) {
        if self.watched.load(Relaxed) && !self.is_right(node) {
            self.show(node);
        }
    }

    /// Whether the descriptor is known to be right, in the usual case: nobody wants to know of room, and no peer's map
    /// has come.
    fn is_right(&self, node: &Node<Payload, Body>) -> bool {
        let pending = node.pending(self.id).unwrap_or_default();
        let usual = !pending.map_changed && !self.has_zero_copy_done() && self.room.get().is_none();
        let readable = pending.message || pending.event;
        usual && !self.blocked.load(Relaxed) && readable == self.signaled.load(Relaxed)
    }

    /// Wakes a task when something changes next.
    pub(super) fn add_task(&self, waker: &Waker) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if !tasks.iter().any(|task| task.will_wake(waker)) {
            tasks.push(waker.clone());
        }
    }

    /// Makes the descriptors readable exactly if there is something to be done; returns what.
    pub(crate) fn show(&self, node: &mut Node<Payload, Body>) -> Readiness {
        let mut seen = self.seen();
        // A socket that is closed has nothing.
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

    /// Memory that was sent without a copy is not needed any more.
    pub(crate) fn add_zero_copy_done(&self, name: u32) {
        self.seen().zero_copy_done.push_back(name);
        self.has_zero_copy_done.store(true, Relaxed);
    }

    /// Whether there may be such memory.
    pub(super) fn has_zero_copy_done(&self) -> bool {
        self.has_zero_copy_done.load(Relaxed)
    }

    /// Such memory, if there is any that nobody has been told of.
    pub(super) fn take_zero_copy_done(&self) -> Option<u32> {
        let mut seen = self.seen();
        let free = seen.zero_copy_done.pop_front();
        self.has_zero_copy_done
            .store(!seen.zero_copy_done.is_empty(), Relaxed);
        free
    }

    /// Somebody has been told that a map has changed.
    pub(crate) fn told(&self) {
        self.seen().map_changed = false;
    }

    /// Whether somebody wants to know when the socket becomes writable.
    pub(crate) fn set_blocked(&self, node: &mut Node<Payload, Body>, blocked: bool) {
        if self.blocked.load(Relaxed) == blocked {
            return;
        }
        self.blocked.store(blocked, Relaxed);
        self.show_if_watched(node);
    }

    /// The descriptor, which is right from now on.
    pub(crate) fn watch(&self) -> BorrowedFd<'_> {
        self.watched.store(true, Relaxed);
        self.notify_fd.as_fd()
    }

    /// The descriptor that tells of room, which the next [`show`](Self::show) makes right, and from then
    /// on whoever makes room.
    pub(crate) fn watch_room(&self) -> io::Result<BorrowedFd<'_>> {
        self.watched.store(true, Relaxed);
        if let Some((_, notify)) = self.room.get() {
            return Ok(notify.as_fd());
        }
        let room = EventFd::new()?;
        let notify = NotifyFd::of(room.as_fd())?;
        // Another thread may have been faster.
        Ok(self.room.get_or_init(|| (room, notify)).1.as_fd())
    }

    /// Waits until something changes; `None` if that has not happened by `deadline`.
    pub(crate) fn wait<'s>(
        &self,
        state: MutexGuard<'s, State>,
        deadline: Option<Instant>,
    ) -> Option<MutexGuard<'s, State>> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return None;
        }
        self.waiting.fetch_add(1, Relaxed);
        let state = match left {
            None => self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner),
            Some(left) => {
                let waited = self.changed.wait_timeout(state, left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        self.waiting.fetch_sub(1, Relaxed);
        Some(state)
    }
}
