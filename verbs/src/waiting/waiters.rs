//! Blocked calls, tasks, and the poller among the calls: every decision, without any I/O.
//!
//! The parent module provides `os`: the tests compile this file a second time, over a model.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, mem,
    sync::Arc,
    task::Waker,
    time::Duration,
};

use super::os::EventFd;

/// Interval after which a follower first checks whether completions are unhandled. Longer than a
/// wake-up, so that a poller that runs is not replaced.
const FIRST_CHECK: Duration = Duration::from_millis(1);

/// Maximum interval between two checks of a follower, per blocked call: all followers together
/// check at most ten times a second. Bounds the delay caused by a poller that does not run.
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Interval between two checks of the standby thread while calls keep coming. Bounds the time for
/// which completions stay unhandled after the last call.
const STANDBY_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum interval between two checks of the standby thread while the same call polls.
const MAX_STANDBY_INTERVAL: Duration = Duration::from_secs(1);

/// The waiters of a [`Source`](super::Source): blocked calls, and tasks.
///
/// One blocked call is the poller, and sleeps until the channel is readable. The other calls are
/// followers, and sleep until woken. `I` is the interest of a waiter, such as a direction or the
/// number of a socket.
pub struct Waiters<I> {
    calls: BTreeMap<u64, Call<I>>,
    /// The calls by interest.
    names: BTreeSet<(I, u64)>,
    next_name: u64,
    /// The call, or the standby thread, that sleeps on the channel.
    poller: Option<u64>,
    standby: Option<u64>,
    tasks: BTreeMap<I, Vec<Waker>>,
    /// The standby thread polls as for tasks.
    is_watched: bool,
    /// Notified after the lock has been released.
    woken: Woken,
}

/// A blocked call, or the standby thread.
struct Call<I> {
    /// `None` for the standby thread, which waits for nothing of its own.
    interest: Option<I>,
    /// `None` for a thread that got no descriptor: its sleeps are short.
    event: Option<Arc<EventFd>>,
    /// The thread sleeps, or is about to.
    asleep: bool,
    notified: bool,
}

impl<I> Call<I> {
    fn wake(&mut self, woken: &mut Woken) {
        // A call that is awake finds the flag.
        if !mem::replace(&mut self.notified, true) && self.asleep {
            woken.events.extend(self.event.clone());
        }
    }
}

/// The thread's part of a call.
#[derive(Debug)]
pub(super) struct Ticket {
    name: u64,
    pub(super) event: Option<Arc<EventFd>>,
    /// The call has not polled yet.
    pub(super) is_new: bool,
    check_interval: Duration,
    /// Number of calls and threads that had come when the standby thread last checked.
    calls_seen: u64,
}

/// Place and duration of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// The caller is the poller: until the channel or the caller's event is readable.
    Channel,
    /// Another call is the poller: until the caller's event is readable, at most for this time.
    Event(Duration),
}

/// Eventfds and tasks to be notified without a lock, since a woken thread takes the lock first, and
/// wakers are foreign code. Then values are dropped.
#[derive(Default)]
pub(super) struct Woken {
    events: Vec<Arc<EventFd>>,
    tasks: Vec<Waker>,
    values: Vec<Box<dyn Send + Sync>>,
}

impl Woken {
    pub(super) fn notify(&mut self) {
        for event in self.events.drain(..) {
            event.notify();
        }
        self.tasks.drain(..).for_each(Waker::wake);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.tasks.is_empty()
    }
}

impl<I: Copy + Ord> Waiters<I> {
    /// No waiters.
    pub fn new() -> Self {
        Self {
            calls: BTreeMap::new(),
            names: BTreeSet::new(),
            next_name: 0,
            poller: None,
            standby: None,
            tasks: BTreeMap::new(),
            is_watched: false,
            woken: Woken::default(),
        }
    }

    /// Wakes the calls and tasks whose interest is met, once the lock has been released. Asks for
    /// each waiter.
    pub fn wake(&mut self, mut is_met: impl FnMut(&I) -> bool) {
        for call in self.calls.values_mut() {
            if call.interest.as_ref().is_some_and(&mut is_met) {
                call.wake(&mut self.woken);
            }
        }
        self.tasks.retain(|interest, tasks| {
            let met = is_met(interest);
            if met {
                self.woken.tasks.append(tasks);
            }
            !met
        });
    }

    /// [Wakes](Self::wake) the calls and tasks with this interest. The duration does not depend on the
    /// number of other waiters.
    pub fn wake_interest(&mut self, interest: I) {
        for (_, name) in self.names.range((interest, 0)..=(interest, u64::MAX)) {
            if let Some(call) = self.calls.get_mut(name) {
                call.wake(&mut self.woken);
            }
        }
        if let Some(tasks) = self.tasks.remove(&interest) {
            self.woken.tasks.extend(tasks);
        }
    }

    /// Adds a task, which is woken once. Without a blocked call, the standby thread polls for tasks.
    pub fn add_task(&mut self, interest: I, task: &Waker) {
        let tasks = self.tasks.entry(interest).or_default();
        if !tasks.iter().any(|other| other.will_wake(task)) {
            tasks.push(task.clone());
        }
        if self.poller.is_none() {
            self.hand_over();
        }
    }

    /// Removes a task that is no longer to be woken. The task may have been woken before.
    pub fn remove_task(&mut self, task: &Waker) {
        self.tasks.retain(|_, tasks| {
            tasks.retain(|other| !other.will_wake(task));
            !tasks.is_empty()
        });
    }

    /// Sets whether the standby thread polls, while no call does, without any task: for a descriptor
    /// that the source keeps up to date for an event loop.
    pub fn set_watched(&mut self, is_watched: bool) {
        self.is_watched = is_watched;
        if is_watched && self.poller.is_none() {
            self.hand_over();
        }
    }

    /// Whether the poller sleeps. Then each unlock leaves every queue armed: a source that takes the
    /// event of a queue, or finds a queue unarmed, arms the queue.
    pub fn poller_sleeps(&self) -> bool {
        let poller = self.poller.and_then(|name| self.calls.get(&name));
        poller.is_some_and(|poller| poller.asleep)
    }

    /// Drops a value once the lock has been released, such as memory to be deregistered by a call into
    /// the kernel.
    pub fn drop_unlocked(&mut self, value: impl Send + Sync + 'static) {
        self.woken.values.push(Box::new(value));
    }

    /// Wakes the standby thread, for work of its own.
    pub fn wake_standby(&mut self) {
        if let Some(standby) = self.standby.and_then(|name| self.calls.get(&name)) {
            self.woken.events.extend(standby.event.clone());
        }
    }

    fn has_tasks(&self) -> bool {
        self.is_watched || !self.tasks.is_empty()
    }

    /// Whether there is a blocked call or a task.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.names.is_empty()
    }

    /// The interests of all waiters.
    pub fn interests(&self) -> impl Iterator<Item = &I> {
        let calls = self
            .calls
            .values()
            .filter_map(|call| call.interest.as_ref());
        calls.chain(self.tasks.keys())
    }

    /// Adds a call, or the standby thread, woken by `event`.
    pub(super) fn add(&mut self, interest: Option<I>, event: Option<Arc<EventFd>>) -> Ticket {
        let name = self.next_name;
        self.next_name += 1;
        let is_new = interest.is_some();
        match interest {
            Some(interest) => {
                self.names.insert((interest, name));
            }
            None => self.standby = Some(name),
        }
        let call = Call {
            interest,
            event: event.clone(),
            asleep: false,
            notified: false,
        };
        self.calls.insert(name, call);
        Ticket {
            name,
            event,
            is_new,
            check_interval: FIRST_CHECK,
            calls_seen: name,
        }
    }

    /// Removes a call. If no other call is the poller, wakes a follower to become the poller.
    pub(super) fn remove(&mut self, ticket: &Ticket) {
        let call = self.calls.remove(&ticket.name);
        if let Some(interest) = call.and_then(|call| call.interest) {
            self.names.remove(&(interest, ticket.name));
        }
        self.standby.take_if(|name| *name == ticket.name);
        self.poller.take_if(|name| *name == ticket.name);
        if self.poller.is_none() {
            self.hand_over();
        }
    }

    /// Wakes one waiter to become the poller: the latest call, most likely to run at once. Any other
    /// call that runs earlier takes the place.
    fn hand_over(&mut self) {
        let is_free = |call: &&Call<I>| call.interest.is_some() && !call.notified;
        let standby = self.standby.filter(|_| self.has_tasks());
        let next = self.calls.values().rev().find(is_free);
        let next = next.or_else(|| self.calls.get(&standby?));
        if let Some(call) = next {
            self.woken.events.extend(call.event.clone());
        }
    }

    pub(super) fn is_notified(&self, ticket: &Ticket) -> bool {
        let call = self.calls.get(&ticket.name);
        call.is_some_and(|call| call.notified)
    }

    /// Whether the waiter leaves the polling to others. A call replaces the standby thread. The
    /// standby thread polls for tasks, and if no call has come between two checks.
    pub(super) fn follows(&self, ticket: &Ticket, has_checked: bool) -> bool {
        let is_standby = self.standby == Some(ticket.name);
        match self.poller {
            Some(name) if name == ticket.name => false,
            Some(name) => is_standby || self.standby != Some(name),
            None if is_standby => {
                let may_poll = has_checked && ticket.calls_seen == self.next_name;
                !self.has_tasks() && !may_poll
            }
            None => false,
        }
    }

    /// Makes a follower the poller, because the poller has left completions unhandled.
    pub(super) fn replace_poller(&mut self, ticket: &Ticket) {
        if self.poller.is_some() {
            self.become_poller(ticket.name);
        }
    }

    /// Makes a call the poller while awake, unless another call is.
    pub(super) fn poll_busily(&mut self, ticket: &Ticket) {
        if !self.follows(ticket, false) {
            self.become_poller(ticket.name);
        }
    }

    fn become_poller(&mut self, name: u64) {
        let replaced = self.poller.replace(name).filter(|last| *last != name);
        if let Some(call) = replaced.and_then(|last| self.calls.get(&last)) {
            // The replaced poller becomes a follower, with checks of its own.
            self.woken.events.extend(call.event.clone());
        }
    }

    /// Begins a sleep: as the poller, unless the waiter follows. `has_checked` is set if the last
    /// sleep of a follower has lasted for its whole interval.
    pub(super) fn begin_sleep(&mut self, ticket: &mut Ticket, has_checked: bool) -> Sleep {
        let follows = self.follows(ticket, has_checked);
        if let Some(call) = self.calls.get_mut(&ticket.name) {
            call.asleep = true;
        }
        if !follows {
            self.become_poller(ticket.name);
            ticket.check_interval = FIRST_CHECK;
            return Sleep::Channel;
        }
        let is_standby = self.standby == Some(ticket.name);
        let has_new_calls = ticket.calls_seen != self.next_name;
        if has_checked {
            ticket.calls_seen = self.next_name;
            ticket.check_interval *= 2;
        }
        ticket.check_interval = if !is_standby {
            let calls = u32::try_from(self.calls.len()).unwrap_or(u32::MAX);
            ticket
                .check_interval
                .min(MAX_CHECK_INTERVAL.saturating_mul(calls))
        } else if has_checked && has_new_calls {
            STANDBY_INTERVAL
        } else {
            ticket
                .check_interval
                .clamp(STANDBY_INTERVAL, MAX_STANDBY_INTERVAL)
        };
        Sleep::Event(ticket.check_interval)
    }

    /// Ends a sleep.
    pub(super) fn end_sleep(&mut self, ticket: &Ticket) {
        if let Some(call) = self.calls.get_mut(&ticket.name) {
            call.asleep = false;
        }
    }

    pub(super) fn take_woken(&mut self) -> Woken {
        mem::take(&mut self.woken)
    }
}

impl<I: Copy + Ord> Default for Waiters<I> {
    fn default() -> Self {
        Self::new()
    }
}

impl<I> fmt::Debug for Waiters<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiters")
            .field("calls", &self.calls.len())
            .field("tasks", &self.tasks.len())
            .field("poller", &self.poller)
            .finish_non_exhaustive()
    }
}
