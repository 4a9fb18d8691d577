//! Blocking calls poll the completion queues themselves. One thread polls at a time (the leader of
//! a Leader/Followers scheme) and processes completions for every socket.
//!
//! Completions wake blocked calls. If the engine thread processed completions, each would cost two
//! context switches: one to the thread, one to the call. So the first blocked call waits for
//! completion events itself, and the thread does not.
//!
//! Without a timeout, the leader blocks in a read of the completion channel, which is one system
//! call and consumes the event; other threads wake the leader by an event generated on the device.
//! With a timeout, the leader polls the channels together with an eventfd.
//!
//! After the leader returns, the next call usually follows soon. So notifications stay unarmed, and
//! the thread unsubscribed: the next blocked call polls first, and arms only before sleeping.
//! Sending calls poll, too. While calls keep coming, the thread leaves completions to them, and
//! checks after [`TAKEOVER_DELAY`]. If no call has come, or if a socket is awaited by descriptor or
//! in a task, the thread takes over.
//!
//! No wake-up is lost: a call that consumes an event rearms its queue before sleeping, or marks the
//! connection as pending; an unread event keeps the channel readable; and a call that processes
//! completions wakes the waiters of every socket concerned.

use std::{
    io, mem,
    ops::Bound,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, MutexGuard},
    thread,
    time::{Duration, Instant},
};

use rustix::{event::epoll, io::Errno};
use smallvec::SmallVec;

use super::{INLINE_DEVICES, Shared, State, sleep};
use crate::{
    device::Device,
    errno::timeout_elapsed,
    event_fd::EventFd,
    proto::{SocketId, node::ConnectionId},
    socket::Waiters,
};

/// Time without a call after which the engine thread takes over completions, and upper bound of the
/// added latency.
pub(super) const TAKEOVER_DELAY: Duration = Duration::from_millis(10);

/// Maximum takeover delay while calls have kept coming. Below the delay of acknowledgements (50
/// ms), so that peers do not notice.
pub(super) const MAX_TAKEOVER_DELAY: Duration = Duration::from_millis(40);

/// Time as leader after which the thread stops checking for calls. Until then, the checks are
/// cheaper than requesting one by a system call.
const MAX_LEADER_TIME: Duration = Duration::from_secs(1);

/// Consecutive waits satisfied without sleeping before the caller drops the lock and yields, so
/// that a busy caller cannot starve other threads.
const YIELD_INTERVAL: u32 = 16;

/// Grace period past the caller's deadline. A blocked call that finds only completions of other
/// sockets times out once it has elapsed.
const DEADLINE_GRACE: Duration = Duration::from_millis(10);

/// Polls per clock read while busy-polling, since reading the clock may cost more than a poll.
const POLLS_PER_CLOCK_READ: u32 = 16;

/// Interval between polls while the device is removed.
const REMOVED_DEVICE_INTERVAL: Duration = Duration::from_millis(1);

/// Number of connections up to which polling all is cheaper than reading events.
const MAX_POLLED_CONNECTIONS: usize = 4;

/// Whether the caller may defer its work to the next call: only if no other call is blocked
/// (`alone`), no waiter or peer depends on the work (`can_wait`), and no other thread has
/// `notified` the caller, since the next call may then depend on the work.
const fn may_leave(notified: bool, alone: bool, can_wait: bool) -> bool {
    !notified && alone && can_wait
}

/// The blocked call that polls for all sockets.
#[derive(Debug)]
pub(super) struct Leader {
    socket: SocketId,
    since: Duration,
    /// Where the leader blocks.
    block_on: BlockOn,
    /// Another thread has woken the leader.
    notified: bool,
    /// The leader busy-polls, with notifications unarmed.
    looks: bool,
}

/// Where the leader blocks.
#[derive(Debug)]
enum BlockOn {
    /// In `poll` on the channels of all devices and this eventfd.
    EventFd(Arc<EventFd>),
    /// In a read of the only device's channel: one system call instead of three. A wake-up is more
    /// expensive.
    Channel(Arc<Device>),
}

/// Responsibility for completions while no call is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    /// The engine thread, through `poller`.
    Thread,
    /// Calls, with the time of the thread's next check. `None` while a leader is blocked.
    Calls(Option<Duration>),
}

impl Shared {
    /// Blocks until the socket changes. With `receiving`, the caller receives next under the same
    /// lock, and updates the descriptor.
    ///
    /// # Errors
    /// - `WouldBlock`: no change by `deadline`.
    /// - `Interrupted`: a signal handler without `SA_RESTART`, or with a timeout set. Affects the
    ///   leader only: followers block on a condition variable, without a system call that returns
    ///   `EINTR`.
    pub(crate) fn wait<'s>(
        &'s self,
        waiters: &Waiters,
        receiving: bool,
        mut state: MutexGuard<'s, State>,
        deadline: Option<Instant>,
    ) -> io::Result<MutexGuard<'s, State>> {
        if state.leader.is_some() {
            return self.follow(waiters, state, deadline);
        }
        state.observed.remove(&waiters.id());
        state.has_looked = false;
        let now = self.now();
        state.looked_at = now;
        if state.delays() || !state.node.is_quiet() {
            // Work deferred by earlier calls.
            self.drive_at(&mut state, now);
            // The work may concern this socket.
            return Ok(state);
        }
        let late = |at| self.clock.instant(now).saturating_duration_since(at);
        if deadline.is_some_and(|at| late(at) >= DEADLINE_GRACE) {
            return Err(timeout_elapsed());
        }
        let receiving = receiving.then(|| waiters.id());
        state.receiving = receiving;
        let busy_poll = waiters.busy_poll();
        let looks = !busy_poll.is_zero();
        let everywhere = state.has_events;
        // Completions already present need no notification.
        let came = state.catch_up(now) || !looks && state.arm(now);
        if came {
            self.leave(&mut state, now, false);
        }
        state.receiving = None;
        if came {
            return Ok(self.found_at_once(waiters, state, now, everywhere));
        }
        let left = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let mut sleeps_for = left();
        if sleeps_for.is_some_and(|left| left.is_zero()) {
            return Err(timeout_elapsed());
        }
        let reads = state.place_to_read(deadline.is_some());
        let block_on = match &reads {
            Some(device) => BlockOn::Channel(Arc::clone(device)),
            None => BlockOn::EventFd(Arc::clone(&self.leader_event)),
        };
        state.start_leading(waiters.id(), now, block_on, looks);
        if looks {
            let came;
            (state, came) = self.look_for(busy_poll, deadline, receiving, state);
            if came {
                self.resign(&mut state, self.now());
                return Ok(state);
            }
            sleeps_for = left();
        }
        let interrupted;
        (state, interrupted) = match reads {
            Some(device) => self.sleep_in_read(state, device),
            None => self.sleep_in_poll(state, sleeps_for),
        };
        // An interrupted call does not receive.
        state.receiving = receiving.filter(|_| !interrupted);
        self.complete_after_sleep(&mut state);
        if interrupted {
            return Err(io::ErrorKind::Interrupted.into());
        }
        Ok(state)
    }

    /// Blocks on the socket's condition variable, while another call is the leader.
    fn follow<'s>(
        &self,
        waiters: &Waiters,
        state: MutexGuard<'s, State>,
        deadline: Option<Instant>,
    ) -> io::Result<MutexGuard<'s, State>> {
        let waited = self.followers.wait(|| waiters.wait(state, deadline));
        let mut state = waited.ok_or_else(timeout_elapsed)?;
        state.looked_at = self.now();
        Ok(state)
    }

    /// Ends a wait that has found completions without sleeping. Every [`YIELD_INTERVAL`] of these
    /// waits, other threads get the lock.
    fn found_at_once<'s>(
        &'s self,
        waiters: &Waiters,
        mut state: MutexGuard<'s, State>,
        now: Duration,
        everywhere: bool,
    ) -> MutexGuard<'s, State> {
        state.found = state.found.wrapping_add(1);
        let turn = state.found.is_multiple_of(YIELD_INTERVAL);
        if turn && !everywhere && state.watch != Watch::Thread {
            // Other connections may have events, unseen by the thread.
            state.take_all_events();
        }
        if turn || everywhere {
            state.schedule.call(now);
        }
        if turn {
            waiters.show_if_watched(&mut state.node);
            drop(state);
            thread::yield_now();
            state = self.lock_here();
        }
        state
    }

    /// Handles the completions after a leader's sleep, and ends its leadership.
    fn complete_after_sleep(&self, state: &mut State) {
        let now = self.now();
        state.looked_at = now;
        if state.has_events {
            state.look_everywhere(now);
        } else {
            state.complete(now);
        }
        self.resign(state, now);
    }

    /// Blocks in a read of the completion channel. Returns whether a signal has arrived.
    fn sleep_in_read<'s>(
        &'s self,
        state: MutexGuard<'s, State>,
        device: Arc<Device>,
    ) -> (MutexGuard<'s, State>, bool) {
        drop(state);
        let event = device.channel.wait_interruptible();
        if event.is_err() {
            // The device is removed. The error repeats until the thread has handled the removal.
            thread::sleep(REMOVED_DEVICE_INTERVAL);
        }
        // A removed device is closed when the last owner drops it.
        drop(device);
        let mut state = self.lock_here();
        let interrupted = match event {
            Ok(Some(key)) => {
                state.on_cq_event(key);
                state.has_looked = state.ib_connections.len() == 1;
                false
            }
            Ok(None) => true,
            Err(_) => false,
        };
        (state, interrupted)
    }

    /// Blocks in `poll` on the eventfd and all channels. Returns whether a signal has arrived.
    fn sleep_in_poll<'s>(
        &'s self,
        state: MutexGuard<'s, State>,
        time: Option<Duration>,
    ) -> (MutexGuard<'s, State>, bool) {
        let devices = state.devices();
        drop(state);
        let (ready, interrupted) = {
            let mut fds = SmallVec::<[BorrowedFd<'_>; INLINE_DEVICES]>::new();
            fds.push(self.leader_event.as_fd());
            for device in &devices {
                fds.push(device.channel.as_fd());
            }
            sleep(&fds, time)
        };
        let mut state = self.lock_here();
        let has_event = ready[1..].contains(&true);
        if has_event && state.ib_connections.len() <= MAX_POLLED_CONNECTIONS {
            // Leave the event unread, so that the caller gets its message earlier.
            state.has_events = true;
            state.has_looked = true;
        } else {
            for (device, ready) in devices.iter().zip(&ready[1..]) {
                if *ready {
                    state.take_events(device);
                }
            }
        }
        // Removed devices are closed when the last owner drops them.
        drop(devices);
        (state, interrupted)
    }

    /// Polls for `time`, but not past `deadline`. Returns whether there were completions; if so,
    /// the socket is still `receiving`. If not, notifications are armed.
    fn look_for<'s>(
        &'s self,
        time: Duration,
        deadline: Option<Instant>,
        receiving: Option<SocketId>,
        mut state: MutexGuard<'s, State>,
    ) -> (MutexGuard<'s, State>, bool) {
        let end = Instant::now().checked_add(time);
        let end = end.into_iter().chain(deadline).min();
        let mut looks = 0_u32;
        loop {
            state.receiving = receiving;
            let now = self.now();
            state.looked_at = now;
            let notified = state.leader.as_ref().is_some_and(|leader| leader.notified);
            if state.look_everywhere(now) || notified {
                return (state, true);
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(POLLS_PER_CLOCK_READ)
                && end.is_some_and(|end| end <= Instant::now())
            {
                if let Some(leader) = &mut state.leader {
                    leader.looks = false;
                }
                let came = state.arm(now);
                if !came {
                    state.receiving = None;
                }
                return (state, came);
            }
            state.receiving = None;
            drop(state);
            // The kernel may have to process packets first, on software devices.
            thread::yield_now();
            state = self.lock_here();
        }
    }

    /// Ends the leadership of a call.
    fn resign(&self, state: &mut State, now: Duration) {
        let leader = state.leader.take();
        let notified = leader.as_ref().is_some_and(|leader| leader.notified);
        if notified
            && let Some(BlockOn::EventFd(event)) = leader.as_ref().map(|leader| &leader.block_on)
        {
            // An event on the channel is consumed by its next reader.
            event.drain();
        }
        state.was_notified = notified;
        let since = leader.map_or(now, |leader| leader.since);
        let alone = self.is_alone(state);
        let must_notify = state.pass_on(now, since, alone);
        self.leave(state, now, notified);
        state.receiving = None;
        if must_notify {
            self.thread_event.notify();
        }
    }

    /// Whether no other call, descriptor or task waits.
    fn is_alone(&self, state: &State) -> bool {
        self.followers.is_empty() && state.observed.is_empty()
    }

    /// Completes a receive. Work that can wait is deferred to the next call, usually the send of
    /// the reply. Without a next call, the engine thread does the work after [`TAKEOVER_DELAY`].
    pub(crate) fn received(&self, state: &mut State, id: SocketId) {
        state.answers = state.has_looked;
        if !may_leave(false, self.is_alone(state), state.can_wait(id)) {
            self.drive(state);
        }
    }

    /// Does the work of handled completions before the caller receives, unless it [may be
    /// deferred](may_leave). The call was `notified` if another thread has woken it.
    fn leave(&self, state: &mut State, now: Duration, notified: bool) {
        let can_wait = state.receiving.is_some_and(|id| state.can_wait(id));
        if !may_leave(notified, self.is_alone(state), can_wait) {
            self.drive_at(state, now);
        }
    }

    /// Unsubscribes the thread from completions if calls handle them and no socket is awaited
    /// otherwise.
    pub(super) fn leave_to_calls(&self, state: &mut State, now: Duration) {
        if self.is_alone(state) && state.watch == Watch::Thread && state.schedule.calls_come(now) {
            state.leave_out_thread();
            state.watch = Watch::Calls(Some(state.schedule.called_at() + TAKEOVER_DELAY));
        }
    }

    /// Polls all connections, unless the thread or a leader does. Returns whether there were
    /// completions.
    pub(crate) fn look(&self, state: &mut State) -> bool {
        if state.is_watched() {
            return false;
        }
        let now = self.now();
        state.looked_at = now;
        let any = state.look_everywhere(now);
        state.schedule.call(now);
        self.drive_at(state, now);
        any
    }

    /// Subscribes the thread to completions, because a socket is awaited by descriptor or in a
    /// task.
    pub(crate) fn observe(&self, state: &mut State, id: SocketId) {
        state.observed.insert(id);
        if !state.is_watched() {
            let now = self.now();
            if state.subscribe_thread(now) {
                self.thread_event.notify();
            }
            self.drive_at(state, now);
        }
    }
}

impl State {
    /// Reads the completion events of a device.
    pub(super) fn take_events(&mut self, device: &Device) {
        while let Ok(Some(key)) = device.channel.try_next() {
            self.on_cq_event(key);
            if self.ib_connections.len() == 1 {
                // The only queue is unarmed now, so there are no further events.
                break;
            }
        }
    }

    /// The device for blocking in a channel read: the only one, without a deadline, and if the last
    /// leader was not woken by another thread.
    fn place_to_read(&self, has_deadline: bool) -> Option<Arc<Device>> {
        let [device] = self.devices_here() else {
            return None;
        };
        let reads = !has_deadline && !self.was_notified && device.waker().is_some();
        reads.then(|| Arc::clone(device))
    }

    /// Reads the completion events of all devices.
    pub(super) fn take_all_events(&mut self) {
        self.has_events = false;
        let mut next = 0;
        while let Some(device) = self.devices_here().get(next).cloned() {
            self.take_events(&device);
            next += 1;
        }
    }

    /// Handles completions since the last event. Returns whether there were any; if not, all events
    /// are read and their connections pending.
    fn catch_up(&mut self, now: Duration) -> bool {
        // A send has just polled.
        let looked = mem::take(&mut self.looked_in_vain);
        if !self.has_events {
            return !looked && self.complete(now);
        }
        if !looked && self.look_everywhere(now) {
            return true;
        }
        self.take_all_events();
        false
    }

    /// Polls every connection, armed or not. Returns whether there were completions.
    fn look_everywhere(&mut self, now: Duration) -> bool {
        let mut any = false;
        let mut next = self.ib_connections.first_key_value();
        while let Some((&id, _)) = next {
            any |= self.look(now, id);
            if self.ib_connections.len() == 1 {
                break;
            }
            let others = (Bound::Excluded(id), Bound::Unbounded);
            next = self.ib_connections.range(others).next();
        }
        any
    }

    /// Polls as part of a send. Returns whether there were completions.
    pub(crate) fn look_to_send(&mut self, now: Duration, id: ConnectionId) -> bool {
        if self.ib_connections.len() > MAX_POLLED_CONNECTIONS {
            return self.look(now, id);
        }
        self.schedule.call(now);
        // A reply cannot have arrived yet; the caller's receive will poll.
        let any = !mem::take(&mut self.answers) && self.look_everywhere(now);
        self.looked_in_vain = !any;
        any
    }

    /// Whether the thread or a sleeping leader depends on notifications, so that all queues must be
    /// armed.
    pub(super) fn is_watched(&self) -> bool {
        self.watch == Watch::Thread || self.leader.as_ref().is_some_and(|leader| !leader.looks)
    }

    /// Whether work can be deferred to the next call, given that only the caller has received from
    /// `receiver`.
    fn can_wait(&self, receiver: SocketId) -> bool {
        let calls = matches!(self.watch, Watch::Calls(Some(_))) && self.leader.is_none();
        calls && !self.delays() && self.tasks.is_empty() && self.node.can_wait(receiver)
    }

    /// Time of the thread's next check for calls.
    pub(super) fn relief(&self) -> Option<Duration> {
        match self.watch {
            Watch::Calls(at) => at,
            Watch::Thread => None,
        }
    }

    /// Ends a leadership that began at `since`; `alone` if no other waiter exists. Returns whether
    /// the thread must be notified.
    fn pass_on(&mut self, now: Duration, since: Duration, alone: bool) -> bool {
        self.schedule.call(now);
        if !alone {
            return self.subscribe_thread(now);
        }
        match self.watch {
            Watch::Calls(None) if now < since + MAX_LEADER_TIME => {
                self.relieve_at(now + TAKEOVER_DELAY)
            }
            Watch::Calls(None) => self.subscribe_thread(now),
            Watch::Calls(Some(_)) | Watch::Thread => false,
        }
    }

    /// Schedules the thread's next check for calls. Returns whether the thread must be notified.
    fn relieve_at(&mut self, at: Duration) -> bool {
        self.watch = Watch::Calls(Some(at));
        self.wake_at(at)
    }

    /// Performs the check for calls, if due. Without calls, the thread takes over completions.
    pub(super) fn relieve(&mut self, now: Duration) {
        if self.relief().is_none_or(|at| at > now) {
            return;
        }
        // Called by the thread itself.
        match &self.leader {
            Some(leader) if now < leader.since + MAX_LEADER_TIME => {
                self.watch = Watch::Calls(Some(now + TAKEOVER_DELAY));
            }
            Some(_) => self.watch = Watch::Calls(None),
            None if self.schedule.calls_come(now) => {
                self.watch = Watch::Calls(Some(self.schedule.called_at() + TAKEOVER_DELAY));
            }
            None => {
                self.subscribe_thread(now);
            }
        }
    }

    /// Makes a blocking call the leader.
    fn start_leading(&mut self, socket: SocketId, since: Duration, block_on: BlockOn, looks: bool) {
        self.leader = Some(Leader {
            socket,
            since,
            block_on,
            notified: false,
            looks,
        });
        self.leave_out_thread();
    }

    /// Unsubscribes the thread from completion events.
    fn leave_out_thread(&mut self) {
        if self.watch != Watch::Thread {
            return;
        }
        for device in self.devices_here() {
            // The channel is present. Masking instead would still wake the thread for each event.
            let _: Result<(), _> = epoll::delete(&self.poller, &device.channel);
        }
        self.watch = Watch::Calls(None);
    }

    /// Subscribes the thread to completion events. Returns whether the thread must be notified.
    fn subscribe_thread(&mut self, now: Duration) -> bool {
        if self.watch == Watch::Thread {
            return false;
        }
        if self.has_events {
            // Unread events would wake the thread at once.
            self.take_all_events();
        }
        let subscribed = self.devices_here().iter().all(|device| {
            let data = epoll::EventData::new_u64(0);
            let added = epoll::add(&self.poller, &device.channel, data, epoll::EventFlags::IN);
            matches!(added, Ok(()) | Err(Errno::EXIST))
        });
        if subscribed {
            self.watch = Watch::Thread;
            return false;
        }
        // Out of memory: the thread polls at intervals instead.
        self.take_all_events();
        self.complete(now);
        self.relieve_at(now + TAKEOVER_DELAY)
    }

    /// Wakes the leader, if blocked on this socket.
    pub(super) fn call_leader(&mut self, id: SocketId) {
        if let Some(leader) = &mut self.leader
            && leader.socket == id
        {
            leader.notify();
        }
    }

    /// Wakes the leader.
    pub(super) fn stop_leader(&mut self) {
        if let Some(leader) = &mut self.leader {
            leader.notify();
        }
    }
}

impl Leader {
    fn notify(&mut self) {
        if !self.notified {
            self.notified = self.block_on.notify();
        }
    }
}

impl BlockOn {
    /// Wakes the thread blocked here. Returns whether the wake-up succeeded; it fails for a removed
    /// device, where the read fails by itself.
    fn notify(&self) -> bool {
        match self {
            Self::EventFd(event) => {
                event.notify();
                true
            }
            Self::Channel(device) => device.waker().is_some_and(|waker| waker.wake().is_ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leader_defers_work_only_if_alone_and_not_notified() {
        for notified in [false, true] {
            for alone in [false, true] {
                for can_wait in [false, true] {
                    let may = may_leave(notified, alone, can_wait);
                    assert_eq!(may, (notified, alone, can_wait) == (false, true, true));
                }
            }
        }
    }
}
