//! How calls wait: one of those that do works for all sockets, instead of the thread.
//!
//! What a call waits for comes by a completion. If the thread handled it, it would have to be woken
//! first, only to wake the call. So the first call that waits is told of completions itself, and the
//! thread is not.
//!
//! If it has time for ever, it sleeps in a read of the channel, which is one call of the kernel, and takes the
//! event: whoever has something else for it has the device make one. Otherwise it sleeps beside a bell.
//!
//! When it returns, the next one comes soon, as a rule. So it does not ask for completions to be
//! announced, nor has the thread told of them: who waits next looks first, and asks only before it
//! sleeps. Calls that send look as well: while they come, the thread leaves completions to them. But it
//! sees once in a while whether calls still come. If none does, it takes over, and so it does at once if
//! somebody else waits, in whatever way.
//!
//! Whoever takes an event off a channel has its queue armed again before it sleeps, or leaves that to
//! who comes next; so does who leaves the event where it is, which wakes everybody who sleeps on the
//! channel. And whoever handles completions wakes everybody they concern. So nothing is lost, whoever
//! comes first.

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
    event_fd::EventFd,
    proto::{SocketId, node::ConnectionId},
    socket::Waiters,
};

/// If no call has come for so long, the thread handles completions.
pub(super) const TAKEOVER_DELAY: Duration = Duration::from_millis(10);

/// The same where calls have kept coming. Peers of our own kind wait longer for an acknowledgement.
pub(super) const MAX_TAKEOVER_DELAY: Duration = Duration::from_millis(40);

/// While a call has led for less, the thread keeps seeing to that: to be asked to is dearer.
const MAX_LEADER_TIME: Duration = Duration::from_secs(1);

/// So often a call that waits finds something at once before it lets others in: it might do so for ever.
const YIELD_INTERVAL: u32 = 16;

/// A call that keeps finding something, none of which is its own, ends so long after its time. Before, what
/// it finds may be its own.
const DEADLINE_GRACE: Duration = Duration::from_millis(10);

/// So often a call looks before it asks for the time again, which may be dearer than a look.
const POLLS_PER_CLOCK_READ: u32 = 16;

/// So long a call waits between two looks at a device that is gone.
const REMOVED_DEVICE_INTERVAL: Duration = Duration::from_millis(1);

/// So few connections are all looked at sooner than one is told which of them has something.
const MAX_POLLED_CONNECTIONS: usize = 4;

/// Whether a call may leave what is to be done to the next one: if it is `alone`, since a call that sleeps does
/// nothing; if all of it `can_wait`; and if it was not `rung` for, since then other threads are at work, and the next
/// call may be theirs, which waits for that.
const fn may_leave(notified: bool, alone: bool, can_wait: bool) -> bool {
    !notified && alone && can_wait
}

/// The call that works for all sockets while it waits.
#[derive(Debug)]
pub(super) struct Leader {
    socket: SocketId,
    since: Duration,
    /// Where it waits.
    block_on: BlockOn,
    /// Something has changed that it did not do itself, and it has been woken.
    notified: bool,
    /// It looks for completions, and is not told of them.
    looks: bool,
}

/// Where the call that leads waits.
#[derive(Debug)]
enum BlockOn {
    /// At the channels of all devices, and at this bell.
    EventFd(Arc<EventFd>),
    /// In a read of the channel of the only device: so there is one call of the kernel, not three. But to wake
    /// it takes more.
    Channel(Arc<Device>),
}

/// Who handles completions when no call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    /// The thread is told of them.
    Thread,
    /// The call that leads, and when it has left, whoever comes. At this time, if it is known, the
    /// thread sees whether anybody does. While there is none, a call leads.
    Calls(Option<Duration>),
}

impl Shared {
    /// Waits until something changes for a socket. Who is `receiving` makes its descriptor right after
    /// that, before it unlocks anything.
    ///
    /// # Errors
    /// - `TimedOut`: nothing has by `deadline`.
    /// - `Interrupted`: a signal came, and the kernel does not go on with its call. Only the call that leads
    ///   notices: who waits beside it does not sleep in a call of the kernel's that says so.
    pub(crate) fn wait<'s>(
        &'s self,
        waiters: &Waiters,
        receiving: bool,
        mut state: MutexGuard<'s, State>,
        deadline: Option<Instant>,
    ) -> io::Result<MutexGuard<'s, State>> {
        if state.leader.is_some() {
            let waited = self.followers.wait(|| waiters.wait(state, deadline));
            let mut state = waited.ok_or(io::ErrorKind::TimedOut)?;
            state.looked_at = self.now();
            return Ok(state);
        }
        state.observed.remove(&waiters.id());
        state.has_looked = false;
        let now = self.now();
        state.looked_at = now;
        if state.delays() || !state.node.is_quiet() {
            // What calls before this one have left.
            self.drive_at(&mut state, now);
            // That may have been for this socket.
            return Ok(state);
        }
        let late = |at| self.clock.instant(now).saturating_duration_since(at);
        if deadline.is_some_and(|at| late(at) >= DEADLINE_GRACE) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let receiving = receiving.then(|| waiters.id());
        state.receiving = receiving;
        let busy_poll = waiters.busy_poll();
        let looks = !busy_poll.is_zero();
        let everywhere = state.has_events;
        // What is there already needs no announcement.
        let came = state.catch_up(now) || !looks && state.arm(now);
        if came {
            self.leave(&mut state, now, false);
        }
        state.receiving = None;
        if came {
            state.found = state.found.wrapping_add(1);
            let turn = state.found.is_multiple_of(YIELD_INTERVAL);
            if turn && !everywhere && state.watch != Watch::Thread {
                // Others may have something, too, of which the thread is not told.
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
            return Ok(state);
        }
        let left = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let mut sleeps_for = left();
        if sleeps_for.is_some_and(|left| left.is_zero()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let reads = state.place_to_read(deadline.is_some());
        let block_on = match &reads {
            Some(device) => BlockOn::Channel(Arc::clone(device)),
            None => BlockOn::EventFd(Arc::clone(&self.leader_event)),
        };
        state.leader = Some(Leader {
            socket: waiters.id(),
            since: now,
            block_on,
            notified: false,
            looks,
        });
        state.leave_out_thread();
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
            None => self.sleep_at_bell(state, sleeps_for),
        };
        // Who is interrupted receives nothing after that.
        state.receiving = receiving.filter(|_| !interrupted);
        let now = self.now();
        state.looked_at = now;
        if state.has_events {
            state.look_everywhere(now);
        } else {
            state.complete(now);
        }
        self.resign(&mut state, now);
        if interrupted {
            return Err(io::ErrorKind::Interrupted.into());
        }
        Ok(state)
    }

    /// The call that leads sleeps in a read of the channel of a device. Returns whether a signal has come.
    fn sleep_in_read<'s>(
        &'s self,
        state: MutexGuard<'s, State>,
        device: Arc<Device>,
    ) -> (MutexGuard<'s, State>, bool) {
        drop(state);
        let event = device.channel.wait_interruptible();
        if event.is_err() {
            // It is gone, which is said again until the thread has seen to that.
            thread::sleep(REMOVED_DEVICE_INTERVAL);
        }
        // A gone device is closed when nobody has it.
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

    /// The call that leads sleeps at the bell, and the channels of all devices. Returns whether a signal has come.
    fn sleep_at_bell<'s>(
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
        let is_told = ready[1..].contains(&true);
        if is_told && state.ib_connections.len() <= MAX_POLLED_CONNECTIONS {
            // The caller has its message, and perhaps the peer its answer, before the event is taken.
            state.has_events = true;
            state.has_looked = true;
        } else {
            for (device, ready) in devices.iter().zip(&ready[1..]) {
                if *ready {
                    state.take_events(device);
                }
            }
        }
        // Gone devices are closed when nobody has them.
        drop(devices);
        (state, interrupted)
    }

    /// The call that leads looks for completions for some time, but not beyond `deadline`. Returns whether
    /// there is anything, and if so, with its socket still `receiving`. If not, it is told of what comes.
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
            // The kernel may have to do something, too, before anything comes.
            thread::yield_now();
            state = self.lock_here();
        }
    }

    /// The call that leads has done what it could, and leaves.
    fn resign(&self, state: &mut State, now: Duration) {
        let leader = state.leader.take();
        let notified = leader.as_ref().is_some_and(|leader| leader.notified);
        if notified
            && let Some(BlockOn::EventFd(event)) = leader.as_ref().map(|leader| &leader.block_on)
        {
            // An event of a channel's is taken by who reads it next.
            event.drain();
        }
        state.was_notified = notified;
        let since = leader.map_or(now, |leader| leader.since);
        let alone = self.is_alone(state);
        let asked = state.pass_on(now, since, alone);
        self.leave(state, now, notified);
        state.receiving = None;
        if asked {
            self.thread_event.notify();
        }
    }

    /// Whether nobody waits but the call that asks.
    fn is_alone(&self, state: &State) -> bool {
        self.followers.is_empty() && state.observed.is_empty()
    }

    /// A call has received something from a socket. What is to be done because of that, and of what has come with it,
    /// is left to the next call if it can wait: most often that sends the answer, which the peer waits for. If no
    /// call comes, the thread does it when it sees that.
    pub(crate) fn received(&self, state: &mut State, id: SocketId) {
        state.answers = state.has_looked;
        if !may_leave(false, self.is_alone(state), state.can_wait(id)) {
            self.drive(state);
        }
    }

    /// Does what is to be done after a call has handled completions, and is about to receive from its socket, unless
    /// that [may be left](may_leave) to the next call. The call was `rung` for if another has woken it.
    fn leave(&self, state: &mut State, now: Duration, notified: bool) {
        let can_wait = state.receiving.is_some_and(|id| state.can_wait(id));
        if !may_leave(notified, self.is_alone(state), can_wait) {
            self.drive_at(state, now);
        }
    }

    /// The thread has handled what it was told of. While calls come that do so themselves, it leaves that
    /// to them, unless somebody waits for it.
    pub(super) fn leave_to_calls(&self, state: &mut State, now: Duration) {
        if self.is_alone(state) && state.watch == Watch::Thread && state.schedule.calls_come(now) {
            state.leave_out_thread();
            state.watch = Watch::Calls(Some(state.schedule.called_at() + TAKEOVER_DELAY));
        }
    }

    /// Handles what has completed, if nobody else is about to. Returns whether there was anything.
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

    /// Somebody is about to wait for a socket without a call of its: the thread wakes it.
    pub(crate) fn observe(&self, state: &mut State, id: SocketId) {
        state.observed.insert(id);
        if !state.is_watched() {
            let now = self.now();
            if state.tell_thread(now) {
                self.thread_event.notify();
            }
            self.drive_at(state, now);
        }
    }
}

impl State {
    /// Takes the events of a device.
    pub(super) fn take_events(&mut self, device: &Device) {
        while let Ok(Some(key)) = device.channel.try_next() {
            self.on_cq_event(key);
            if self.ib_connections.len() == 1 {
                // Its queue announces nothing more before it is armed.
                break;
            }
        }
    }

    /// The device in a read of whose channel the call that leads can wait, if it has time for ever: there is no
    /// other, and the last that has waited was not woken for something else.
    fn place_to_read(&self, has_deadline: bool) -> Option<Arc<Device>> {
        let [device] = self.devices_here() else {
            return None;
        };
        let reads = !has_deadline && !self.was_notified && device.waker().is_some();
        reads.then(|| Arc::clone(device))
    }

    /// Takes all events that there are, of all devices.
    pub(super) fn take_all_events(&mut self) {
        self.has_events = false;
        let mut next = 0;
        while let Some(device) = self.devices_here().get(next).cloned() {
            self.take_events(&device);
            next += 1;
        }
    }

    /// Handles what has completed since a call was told of completions. Returns whether there was anything;
    /// if not, no event is left, and who has announced one is due.
    fn catch_up(&mut self, now: Duration) -> bool {
        // Who has just sent something has looked since.
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

    /// Handles what has completed of any connection, whether or not it is announced. Returns whether there
    /// was anything.
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

    /// Handles what has completed by the time that a call sends to a connection. Returns whether there was
    /// anything.
    pub(crate) fn look_to_send(&mut self, now: Duration, id: ConnectionId) -> bool {
        if self.ib_connections.len() > MAX_POLLED_CONNECTIONS {
            return self.look(now, id);
        }
        self.schedule.call(now);
        // The peer has not answered yet what answers it; who waits for that looks.
        let any = !mem::take(&mut self.answers) && self.look_everywhere(now);
        self.looked_in_vain = !any;
        any
    }

    /// Whether somebody is told of completions now, so that all queues have to announce them.
    pub(super) fn is_watched(&self) -> bool {
        self.watch == Watch::Thread || self.leader.as_ref().is_some_and(|leader| !leader.looks)
    }

    /// Whether what is to be done can be left to whoever comes next, if nobody waits but who has just received from
    /// this socket.
    fn can_wait(&self, receiver: SocketId) -> bool {
        let calls = matches!(self.watch, Watch::Calls(Some(_))) && self.leader.is_none();
        calls && !self.delays() && self.tasks.is_empty() && self.node.can_wait(receiver)
    }

    /// When the thread sees whether calls still come.
    pub(super) fn relief(&self) -> Option<Duration> {
        match self.watch {
            Watch::Calls(at) => at,
            Watch::Thread => None,
        }
    }

    /// The call that has led `since` then leaves, and is `alone` if nobody else waits. Returns whether
    /// the thread has to be rung for.
    fn pass_on(&mut self, now: Duration, since: Duration, alone: bool) -> bool {
        self.schedule.call(now);
        if !alone {
            return self.tell_thread(now);
        }
        match self.watch {
            Watch::Calls(None) if now < since + MAX_LEADER_TIME => {
                self.relieve_at(now + TAKEOVER_DELAY)
            }
            Watch::Calls(None) => self.tell_thread(now),
            Watch::Calls(Some(_)) | Watch::Thread => false,
        }
    }

    /// Has the thread see at that time whether calls still come. Returns whether it has to be rung for.
    fn relieve_at(&mut self, at: Duration) -> bool {
        self.watch = Watch::Calls(Some(at));
        self.wake_at(at)
    }

    /// If it is time, sees whether calls still come; without, the thread handles completions.
    pub(super) fn relieve(&mut self, now: Duration) {
        if self.relief().is_none_or(|at| at > now) {
            return;
        }
        // It is the thread that asks.
        match &self.leader {
            Some(leader) if now < leader.since + MAX_LEADER_TIME => {
                self.watch = Watch::Calls(Some(now + TAKEOVER_DELAY));
            }
            Some(_) => self.watch = Watch::Calls(None),
            None if self.schedule.calls_come(now) => {
                self.watch = Watch::Calls(Some(self.schedule.called_at() + TAKEOVER_DELAY));
            }
            None => {
                self.tell_thread(now);
            }
        }
    }

    /// The thread is not told of completions any more, as a call is.
    fn leave_out_thread(&mut self) {
        if self.watch != Watch::Thread {
            return;
        }
        for device in self.devices_here() {
            // It is there. Of what is only masked the thread would be woken by every event.
            let _: Result<(), _> = epoll::delete(&self.poller, &device.channel);
        }
        self.watch = Watch::Calls(None);
    }

    /// The thread is told of completions. Returns whether it has to be rung for.
    fn tell_thread(&mut self, now: Duration) -> bool {
        if self.watch == Watch::Thread {
            return false;
        }
        if self.has_events {
            // Or the thread would be woken by them.
            self.take_all_events();
        }
        let told = self.devices_here().iter().all(|device| {
            let data = epoll::EventData::new_u64(0);
            let added = epoll::add(&self.poller, &device.channel, data, epoll::EventFlags::IN);
            matches!(added, Ok(()) | Err(Errno::EXIST))
        });
        if told {
            self.watch = Watch::Thread;
            return false;
        }
        // There is no memory for it: so the thread looks now and then.
        self.take_all_events();
        self.complete(now);
        self.relieve_at(now + TAKEOVER_DELAY)
    }

    /// Wakes the call that leads, if it waits for this socket.
    pub(super) fn call_leader(&mut self, id: SocketId) {
        if let Some(leader) = &mut self.leader
            && leader.socket == id
        {
            leader.notify();
        }
    }

    /// Wakes the call that leads, whatever it waits for.
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
    /// Wakes who waits there. Returns whether that has been done: it cannot be where a device is gone, which
    /// wakes those who wait for it.
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
    fn work_is_left_only_by_a_call_that_is_alone_and_was_not_rung_for() {
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
