//! Waiting of calls and of the engine thread: the engine as a source of the waiting core.
//!
//! Each call polls the completion queues of all devices. The poller arms them before a sleep.

use std::{
    io, mem,
    time::{Duration, Instant},
};

use verbs::waiting::{self, Source, WaitEnd, Waiters};

use super::{EngineState, Shared};
use crate::{errno::timeout_elapsed, proto::SocketId};

/// Rounds of arming and polling in one call, before the engine thread continues.
const MAX_ROUNDS: u32 = 4;

/// Exclusive access to the engine's state.
pub(crate) type Guard<'s> = waiting::Guard<'s, EngineState>;

/// How long a call waits.
#[derive(Debug)]
pub(crate) struct WaitMode {
    pub(crate) dont_wait: bool,
    /// A call that does not wait has polled.
    has_polled: bool,
    deadline: Option<Instant>,
    /// End of busy polling, before the first sleep.
    busy_until: Option<Instant>,
}

impl WaitMode {
    /// With `dont_wait`, the call does not wait. Otherwise it polls for `busy_poll` before it
    /// sleeps, and ends after `timeout`.
    pub(crate) fn new(dont_wait: bool, timeout: Option<Duration>, busy_poll: Duration) -> Self {
        let after = |time| Instant::now().checked_add(time);
        let busy_poll = Some(busy_poll).filter(|time| !time.is_zero());
        Self {
            dont_wait,
            has_polled: false,
            deadline: timeout.and_then(after),
            busy_until: busy_poll.and_then(after),
        }
    }

    /// Polls for a call that does not wait, the first time. Returns whether to check again.
    pub(crate) fn poll_once(&mut self, state: &mut EngineState) -> io::Result<bool> {
        Ok(!mem::replace(&mut self.has_polled, true) && state.process()?)
    }
}

impl Shared {
    /// Waits for a change of a socket; the caller checks for its condition again. A call that does
    /// not wait polls once.
    ///
    /// # Errors
    /// - `WouldBlock`: the call does not wait, or the timeout has elapsed.
    /// - `Interrupted`: a signal handler has run.
    /// - `EACCES`: the kernel refuses the calls of this process, because its credentials have changed.
    pub(crate) fn wait<'s>(
        &'s self,
        mut state: Guard<'s>,
        id: SocketId,
        mode: &mut WaitMode,
    ) -> io::Result<Guard<'s>> {
        state.check_refusal()?;
        if mode.dont_wait {
            let polled = mode.poll_once(&mut state)?;
            return if polled {
                Ok(state)
            } else {
                Err(io::ErrorKind::WouldBlock.into())
            };
        }
        state.schedule.unwatch(id);
        if !state.node.is_quiet() {
            // The work may concern this socket.
            state.drive(self.now());
            return Ok(state);
        }
        let (deadline, busy_until) = (mode.deadline, mode.busy_until);
        let (state, end) = self.state.wait(state, id, deadline, busy_until)?;
        match end {
            WaitEnd::Woken => Ok(state),
            WaitEnd::TimedOut => Err(timeout_elapsed()),
            WaitEnd::Interrupted => Err(io::ErrorKind::Interrupted.into()),
        }
    }
}

impl Source for EngineState {
    type Interest = SocketId;
    type Error = verbs::Error;

    fn waiters(&mut self) -> &mut Waiters<SocketId> {
        &mut self.schedule.waiters
    }

    fn process(&mut self) -> verbs::Result<bool> {
        let any = self.complete();
        let now = self.epoch.elapsed();
        if any || !self.node.is_quiet() {
            self.work(now);
        }
        self.rearm(now);
        Ok(any)
    }

    fn drain_events(&mut self) -> verbs::Result<()> {
        self.transport.drain_events();
        Ok(())
    }

    fn arm(&mut self) -> verbs::Result<()> {
        self.transport.arm(&mut self.node);
        Ok(())
    }
}

impl EngineState {
    /// Performs the work caused by a call, with all queues armed if the poller sleeps.
    pub(crate) fn drive(&mut self, now: Duration) {
        self.work(now);
        self.rearm(now);
    }

    /// Arms the queues if the poller sleeps, and handles completions that arrived before arming.
    fn rearm(&mut self, now: Duration) {
        for _ in 0..MAX_ROUNDS {
            if !self.schedule.waiters.poller_sleeps() || !self.transport.arm(&mut self.node) {
                return;
            }
            if self.complete() {
                self.work(now);
            }
        }
        self.schedule.waiters.wake_standby();
    }

    /// Performs the work of expired timers.
    pub(super) fn expire(&mut self, now: Duration) {
        for id in self.schedule.expire(now) {
            self.advance(now, id);
        }
        self.node.retire_acked();
        self.drive(now);
    }
}
