//! State behind a lock, and the blocking of calls on it.
//!
//! The parent module provides `os`: the tests compile this file a second time, over a model.

use std::{
    fmt, io,
    ops::{Deref, DerefMut},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, PoisonError},
    time::Duration,
};

use super::{
    notifier::{self, NotifySource},
    os::{self, AsFd, EventFd, Instant, Mutex, MutexGuard, TryLockError},
    waiters::{Sleep, Ticket, Waiters, Woken},
};
use crate::error::{Error, Result};

/// Operation in errors.
const CALL: &str = "Shared::wait";

/// State with completions to handle, shared by several threads through a [`Shared`].
pub trait Source {
    /// The interest of a waiter, such as a direction or the number of a socket.
    type Interest: Copy + Ord;

    /// Error of the completion queues.
    type Error: From<Error>;

    /// The waiters, stored in the state.
    fn waiters(&mut self) -> &mut Waiters<Self::Interest>;

    /// Polls the completion queues, handles the completions, and [wakes](Waiters::wake) waiters
    /// whose interest is met. Returns whether there was a completion. A limited number of
    /// completions per call lets other threads have the lock in between.
    ///
    /// # Errors
    /// A queue is broken. The error ends the wait of the calling thread.
    fn process(&mut self) -> Result<bool, Self::Error>;

    /// Takes and discards the pending events of the channel.
    ///
    /// # Errors
    /// As for [`process`](Self::process).
    fn drain_events(&mut self) -> Result<(), Self::Error>;

    /// Requests a notification for the next completion of interest to any waiter. May leave a queue
    /// known to be armed as it is, and may handle completions, as [`process`](Self::process) does.
    ///
    /// # Errors
    /// As for [`process`](Self::process).
    fn arm(&mut self) -> Result<(), Self::Error>;
}

/// A source as the completion queue of the [notifier](notifier::ready).
struct Queues<'s, S>(&'s mut S);

impl<S: Source> NotifySource for Queues<'_, S> {
    type Error = S::Error;

    fn has_completions(&mut self) -> Result<bool, S::Error> {
        self.0.process()
    }

    fn request(&mut self) -> Result<bool, S::Error> {
        self.0.drain_events()?;
        self.0.arm()?;
        Ok(true)
    }
}

/// End of a [wait](Shared::wait).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// The interest was met. Another thread may have been faster since, so check again.
    Woken,
    /// The deadline has passed.
    TimedOut,
    /// A signal handler has run.
    Interrupted,
}

/// A [`Source`] behind a lock, with its channel: see the [module](super).
pub struct Shared<S, C> {
    state: Mutex<S>,
    channel: C,
    process: u64,
}

/// Exclusive access to the state. Waiters are notified after the lock has been released.
pub struct Guard<'s, S: Source> {
    // Dropped, and so unlocked, before `woken`.
    state: MutexGuard<'s, S>,
    woken: Notifications,
}

/// Notifies when dropped.
struct Notifications {
    woken: Woken,
    process: u64,
}

impl Drop for Notifications {
    fn drop(&mut self) {
        // The descriptors of a forked child are its parent's.
        if !self.woken.is_empty() && os::process() == self.process {
            self.woken.notify();
        }
    }
}

impl<S: Source> Drop for Guard<'_, S> {
    fn drop(&mut self) {
        self.woken.woken = self.state.waiters().take_woken();
    }
}

impl<S: Source> Guard<'_, S> {
    /// Handles completions if there are any, else requests a notification for the next one. Returns
    /// whether there was a completion. After `false`, each later completion of interest to a waiter
    /// makes the channel readable, or wakes the waiter.
    ///
    /// For a task or an event loop that watches the channel itself: add the task, then repeat the
    /// call until it returns `false`.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn poll_or_arm(&mut self) -> Result<bool, S::Error> {
        notifier::ready(&mut Queues(&mut *self.state))
    }
}

impl<S: Source> Deref for Guard<'_, S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.state
    }
}

impl<S: Source> DerefMut for Guard<'_, S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.state
    }
}

/// Polls, as the poller or for a check, and arms unless `is_busy`. Returns where to sleep; `None`:
/// nowhere, since the interest is met, or there may be more completions.
pub(super) fn step<S: Source>(
    state: &mut S,
    ticket: &mut Ticket<S::Interest>,
    is_busy: bool,
) -> Result<Option<Sleep>, S::Error> {
    let waiters = state.waiters();
    waiters.end_sleep(ticket);
    if waiters.is_notified(ticket) {
        return Ok(None);
    }
    let is_due = ticket.is_due();
    if is_busy {
        if !waiters.follows(ticket, is_due) {
            waiters.become_poller(ticket);
        }
        state.process()?;
        return Ok(None);
    }
    let found = notifier::ready(&mut Queues(state))?;
    if found && is_due {
        // The poller has left completions unhandled.
        state.waiters().become_poller(ticket);
    }
    Ok((!found).then(|| state.waiters().begin_sleep(ticket, is_due)))
}

/// As [`step`]. If the source panics, the waiter is removed, and another one becomes the poller.
fn step_or_leave<S: Source>(
    state: &mut S,
    ticket: &mut Ticket<S::Interest>,
    is_busy: bool,
) -> Result<Option<Sleep>, S::Error> {
    let stepped = catch_unwind(AssertUnwindSafe(|| step(state, ticket, is_busy)));
    stepped.unwrap_or_else(|panic| {
        state.waiters().remove(ticket);
        resume_unwind(panic)
    })
}

impl<S: Source, C: AsFd> Shared<S, C> {
    /// `channel` is readable while a notification of the state's queues is pending.
    pub fn new(state: S, channel: C) -> Self {
        Self {
            state: Mutex::new(state),
            channel,
            process: os::process(),
        }
    }

    /// Locks the state. In a child of the process that created the value, another thread may have
    /// left the state locked.
    pub fn lock(&self) -> Guard<'_, S> {
        self.guard(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks the state, unless another thread has locked it.
    pub fn try_lock(&self) -> Option<Guard<'_, S>> {
        match self.state.try_lock() {
            Ok(state) => Some(self.guard(state)),
            Err(TryLockError::Poisoned(state)) => Some(self.guard(state.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn guard<'s>(&self, state: MutexGuard<'s, S>) -> Guard<'s, S> {
        Guard {
            state,
            woken: Notifications {
                woken: Woken::default(),
                process: self.process,
            },
        }
    }

    /// The channel.
    pub fn channel(&self) -> &C {
        &self.channel
    }

    /// Blocks until the interest is met, until `deadline` (`None`: without limit), or until a signal
    /// handler has run. Releases the lock in the meantime. Handles completions for all waiters
    /// while no other call does.
    ///
    /// The first blocked call of a thread creates [its eventfd](EventFd::of_thread). While too many
    /// files are open, the call has none, and wakes up every millisecond.
    ///
    /// Polls until `busy_until` before the first sleep. A wait that ends in this time costs no
    /// notification and no wake-up, but keeps a processor busy.
    ///
    /// Call only after the state has been found not to meet the interest, with the lock held since.
    ///
    /// # Errors
    /// - `Unsupported`: in a forked child of the process that created the value.
    /// - The errors of the source, if the calling thread polls.
    ///
    /// # Panics
    /// If the source panics; another call becomes the poller.
    pub fn wait<'s>(
        &'s self,
        state: Guard<'s, S>,
        interest: S::Interest,
        deadline: Option<Instant>,
        busy_until: Option<Instant>,
    ) -> Result<(Guard<'s, S>, WaitEnd), S::Error> {
        self.check_process()?;
        let event = EventFd::of_thread().ok();
        self.wait_with(event, state, interest, deadline, busy_until)
    }

    pub(super) fn wait_with<'s>(
        &'s self,
        event: Option<Arc<EventFd>>,
        mut state: Guard<'s, S>,
        interest: S::Interest,
        deadline: Option<Instant>,
        busy_until: Option<Instant>,
    ) -> Result<(Guard<'s, S>, WaitEnd), S::Error> {
        let mut ticket = state.waiters().add(Some(interest), event);
        let end = loop {
            let is_busy = busy_until.is_some_and(|until| Instant::now() < until);
            let sleep = match step_or_leave(&mut *state, &mut ticket, is_busy) {
                Ok(sleep) => sleep,
                Err(err) => break Err(err),
            };
            if state.waiters().is_notified(&ticket) {
                break Ok(WaitEnd::Woken);
            }
            let remaining = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if remaining.is_some_and(|remaining| remaining.is_zero()) {
                break Ok(WaitEnd::TimedOut);
            }
            drop(state);
            let interrupted = self.sleep(&ticket, sleep, remaining);
            state = self.lock();
            if interrupted && !state.waiters().is_notified(&ticket) {
                break Ok(WaitEnd::Interrupted);
            }
        };
        state.waiters().remove(&ticket);
        Ok((state, end?))
    }

    /// Sleeps without the lock. Without a place, only lets other threads have the lock. Returns
    /// whether a signal handler has run.
    fn sleep(
        &self,
        ticket: &Ticket<S::Interest>,
        sleep: Option<Sleep>,
        remaining: Option<Duration>,
    ) -> bool {
        let event = ticket.event.as_deref();
        match sleep {
            None => {
                os::yield_now();
                false
            }
            Some(Sleep::Channel) => os::sleep(event, Some(&self.channel), remaining),
            Some(Sleep::Event(interval)) => {
                let time = remaining.map_or(interval, |remaining| remaining.min(interval));
                os::sleep(event, None::<&C>, Some(time))
            }
        }
    }

    /// Registers the standby thread, which polls while no call does.
    ///
    /// # Errors
    /// - `EMFILE`, `ENFILE`: too many open files.
    pub fn stand_by(&self) -> Result<Standby<S::Interest>> {
        let event = Arc::new(EventFd::new()?);
        Ok(Standby {
            ticket: self.lock().waiters().add(None, Some(Arc::clone(&event))),
            event,
        })
    }

    fn check_process(&self) -> Result<()> {
        if os::process() == self.process {
            return Ok(());
        }
        let reason = "the state belongs to the parent process: create another one after the fork";
        Err(Error::refused(CALL, io::ErrorKind::Unsupported, reason))
    }
}

/// The part of the standby thread: see [`Shared::stand_by`].
#[derive(Debug)]
pub struct Standby<I> {
    pub(super) ticket: Ticket<I>,
    event: Arc<EventFd>,
}

impl<I: Copy + Ord> Standby<I> {
    /// Polls. Returns where to sleep, until [`event`](Self::event) or one of the
    /// thread's own descriptors is readable; then the thread calls again. `None`: there were
    /// completions, so the thread unlocks the state and calls again at once.
    ///
    /// # Errors
    /// The errors of the source.
    ///
    /// # Panics
    /// If the source panics; then the thread stands by no longer.
    pub fn poll<S: Source<Interest = I>>(
        &mut self,
        state: &mut Guard<'_, S>,
    ) -> Result<Option<Sleep>, S::Error> {
        step_or_leave(&mut **state, &mut self.ticket, false)
    }

    /// Notified when the thread has to [poll](Self::poll) again. Drained by the thread.
    pub fn event(&self) -> &EventFd {
        &self.event
    }
}

impl<S, C> fmt::Debug for Shared<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl<S: Source> fmt::Debug for Guard<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").finish_non_exhaustive()
    }
}
