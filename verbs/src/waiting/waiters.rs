//! Blocked calls, tasks, and the poller among the calls: every decision, without any I/O.
//!
//! The parent module provides `os`: the tests compile this file a second time, over a model.

use std::{
    any::Any,
    collections::BTreeMap,
    fmt, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::Waker,
    time::Duration,
};

use super::os::{EventFd, Instant};

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

/// Interest and number of a call. The standby thread waits for nothing of its own, so is the first.
type Key<I> = (Option<I>, u64);

/// Interval before the first check.
fn first_interval(is_standby: bool) -> Duration {
    if is_standby {
        STANDBY_INTERVAL
    } else {
        FIRST_CHECK
    }
}

/// The waiters of a [`Source`](super::Source): blocked calls, and tasks.
///
/// One blocked call is the poller, and sleeps until the channel is readable. The other calls are
/// followers, and sleep until woken. `I` is the interest of a waiter, such as a direction or the
/// number of a socket.
pub struct Waiters<I> {
    calls: BTreeMap<Key<I>, Call>,
    next_number: u64,
    /// The call, or the standby thread, that polls, or sleeps on the channel.
    poller: Option<Key<I>>,
    tasks: BTreeMap<I, Vec<Waker>>,
    /// The standby thread polls as for tasks.
    is_watched: bool,
    /// Notified after the lock has been released.
    woken: Woken,
}

/// A blocked call, or the standby thread.
struct Call {
    /// `None` for a thread that got no descriptor: its sleeps are short.
    event: Option<Arc<EventFd>>,
    /// The thread sleeps, or is about to.
    asleep: bool,
    notified: bool,
}

impl Call {
    fn wake(&mut self, woken: &mut Woken) {
        // A call that is awake finds the flag.
        if !mem::replace(&mut self.notified, true) && self.asleep {
            woken.events.extend(self.event.clone());
        }
    }
}

/// The thread's part of a call.
#[derive(Debug)]
pub(super) struct Ticket<I> {
    key: Key<I>,
    pub(super) event: Option<Arc<EventFd>>,
    /// Time of the next check of a follower.
    pub(super) check_at: Option<Instant>,
    check_interval: Duration,
    /// Number of calls that had come at the last check.
    calls_seen: u64,
}

impl<I> Ticket<I> {
    fn is_standby(&self) -> bool {
        self.key.0.is_none()
    }

    /// Whether the time of a follower's check has come.
    pub(super) fn is_due(&self) -> bool {
        self.check_at.is_some_and(|at| at <= Instant::now())
    }
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
        self.tasks.drain(..).for_each(wake_task);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.tasks.is_empty()
    }
}

/// Wakes a task. A panic of the waker, which the panic hook has reported, ends here: the calling
/// thread, such as an engine thread, has no part in the task, and has other tasks to wake.
fn wake_task(task: Waker) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| task.wake())) {
        // Leaked, since its destructor may panic too.
        let _: &mut dyn Any = Box::leak(panic);
    }
}

impl<I: Copy + Ord> Waiters<I> {
    /// No waiters.
    pub fn new() -> Self {
        Self {
            calls: BTreeMap::new(),
            next_number: 0,
            poller: None,
            tasks: BTreeMap::new(),
            is_watched: false,
            woken: Woken::default(),
        }
    }

    /// Wakes the calls and tasks whose interest is met, once the lock has been released. Asks for
    /// each waiter.
    pub fn wake(&mut self, mut is_met: impl FnMut(&I) -> bool) {
        for ((interest, _), call) in &mut self.calls {
            if interest.as_ref().is_some_and(&mut is_met) {
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
        let keys = (Some(interest), 0)..=(Some(interest), u64::MAX);
        for (_, call) in self.calls.range_mut(keys) {
            call.wake(&mut self.woken);
        }
        if let Some(tasks) = self.tasks.remove(&interest) {
            self.woken.tasks.extend(tasks);
        }
    }

    /// Adds a task, which is woken once. Without a blocked call, the standby thread polls for tasks.
    ///
    /// If the waker panics when woken, the panic ends there, once reported by the panic hook.
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
        let poller = self.poller.and_then(|key| self.calls.get(&key));
        poller.is_some_and(|poller| poller.asleep)
    }

    /// Drops a value once the lock has been released, such as memory to be deregistered by a call into
    /// the kernel.
    pub fn drop_unlocked(&mut self, value: impl Send + Sync + 'static) {
        self.woken.values.push(Box::new(value));
    }

    /// Wakes the standby thread, for work of its own.
    pub fn wake_standby(&mut self) {
        if let Some(standby) = self.standby() {
            self.woken.events.extend(standby.event.clone());
        }
    }

    fn standby(&self) -> Option<&Call> {
        let ((interest, _), first) = self.calls.first_key_value()?;
        interest.is_none().then_some(first)
    }

    fn has_tasks(&self) -> bool {
        self.is_watched || !self.tasks.is_empty()
    }

    /// Whether there is a blocked call or a task.
    pub fn is_empty(&self) -> bool {
        self.interests().next().is_none()
    }

    /// The interests of all waiters.
    pub fn interests(&self) -> impl Iterator<Item = &I> {
        let calls = self
            .calls
            .keys()
            .filter_map(|(interest, _)| interest.as_ref());
        calls.chain(self.tasks.keys())
    }

    /// Adds a call, or the standby thread, woken by `event`.
    pub(super) fn add(&mut self, interest: Option<I>, event: Option<Arc<EventFd>>) -> Ticket<I> {
        let key = (interest, self.next_number);
        self.next_number += 1;
        let call = Call {
            event: event.clone(),
            asleep: false,
            notified: false,
        };
        self.calls.insert(key, call);
        Ticket {
            key,
            event,
            check_at: None,
            check_interval: first_interval(interest.is_none()),
            calls_seen: key.1,
        }
    }

    /// Removes a call. If no other call is the poller, wakes a follower to become the poller.
    pub(super) fn remove(&mut self, ticket: &Ticket<I>) {
        self.calls.remove(&ticket.key);
        self.poller.take_if(|key| *key == ticket.key);
        if self.poller.is_none() {
            self.hand_over();
        }
    }

    /// Wakes one waiter to become the poller: the latest call, most likely to run at once. Any other
    /// call that runs earlier takes the place.
    fn hand_over(&mut self) {
        let calls = self.calls.iter();
        let free = calls.filter(|((interest, _), call)| interest.is_some() && !call.notified);
        let latest = free.max_by_key(|((_, number), _)| number);
        let next = latest.map(|(_, call)| call);
        let next = next.or_else(|| self.standby().filter(|_| self.has_tasks()));
        if let Some(call) = next {
            self.woken.events.extend(call.event.clone());
        }
    }

    pub(super) fn is_notified(&self, ticket: &Ticket<I>) -> bool {
        let call = self.calls.get(&ticket.key);
        call.is_some_and(|call| call.notified)
    }

    /// Whether the waiter leaves the polling to others. A call replaces the standby thread. The
    /// standby thread polls for tasks, and if no call has come between two checks.
    pub(super) fn follows(&self, ticket: &Ticket<I>, is_due: bool) -> bool {
        match self.poller {
            Some(key) if key == ticket.key => false,
            Some((interest, _)) => ticket.is_standby() || interest.is_some(),
            None => {
                let is_idle = is_due && ticket.calls_seen == self.next_number;
                ticket.is_standby() && !self.has_tasks() && !is_idle
            }
        }
    }

    /// Makes a waiter the poller. The replaced one becomes a follower when it wakes up, at the next
    /// event of the channel at the latest.
    pub(super) fn become_poller(&mut self, ticket: &mut Ticket<I>) {
        self.poller = Some(ticket.key);
        ticket.check_at = None;
        ticket.check_interval = first_interval(ticket.is_standby());
    }

    /// Begins a sleep: as the poller, or as a follower until its check.
    pub(super) fn begin_sleep(&mut self, ticket: &mut Ticket<I>, is_due: bool) -> Sleep {
        if let Some(call) = self.calls.get_mut(&ticket.key) {
            call.asleep = true;
        }
        if !self.follows(ticket, is_due) {
            self.become_poller(ticket);
            return Sleep::Channel;
        }
        if is_due {
            self.lengthen_interval(ticket);
        }
        let now = Instant::now();
        let at = ticket.check_at.filter(|_| !is_due);
        let at = at.or_else(|| now.checked_add(ticket.check_interval));
        ticket.check_at = at;
        Sleep::Event(at.map_or(ticket.check_interval, |at| {
            at.saturating_duration_since(now)
        }))
    }

    fn lengthen_interval(&self, ticket: &mut Ticket<I>) {
        let calls = u32::try_from(self.calls.len()).unwrap_or(u32::MAX);
        let has_new_calls =
            mem::replace(&mut ticket.calls_seen, self.next_number) != self.next_number;
        let longest = match ticket.is_standby() {
            true if has_new_calls => STANDBY_INTERVAL,
            true => MAX_STANDBY_INTERVAL,
            false => MAX_CHECK_INTERVAL.saturating_mul(calls),
        };
        ticket.check_interval = longest.min(ticket.check_interval * 2);
    }

    /// Ends a sleep.
    pub(super) fn end_sleep(&mut self, ticket: &Ticket<I>) {
        if let Some(call) = self.calls.get_mut(&ticket.key) {
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
            .field("poller", &self.poller.is_some())
            .finish_non_exhaustive()
    }
}
