//! Continuation after a panic, of this crate or of a subscriber of `tracing`.
//!
//! The engine thread and the poller among the calls serve all sockets. A panic resets the connection in work, and ends no thread.

use std::time::Duration;

use verbs::panics::survive;

use super::EngineState;
use crate::{
    ib_connection::{ConnectStage, IbConnection},
    proto::{link::Failure, node::ConnectionId},
};

/// Time until the connection in work at a panic is served again, so that repeated panics delay no other connection.
const PANIC_INTERVAL: Duration = Duration::from_secs(1);

/// Work of a connection ended by a panic.
enum Interrupted {
    /// The calls into the kernel, with the resources.
    Resources,
    /// A step of a connection with resources.
    Step,
    /// A step before there were any.
    Start,
}

impl EngineState {
    /// Makes a call that changes the state. Returns `None` after a panic, from which the state has recovered.
    pub(super) fn survive<T>(&mut self, call: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let result = survive(|| call(self));
        match result {
            Some(_) => self.transport.in_work = None,
            None => self.recover(),
        }
        result
    }

    /// Resets the connection in work at a panic, and those without the rest of their calls into the kernel. All others are served
    /// at once: the panic may have ended their turn.
    pub(super) fn recover(&mut self) {
        let now = self.epoch.elapsed();
        let in_work = self.transport.in_work.take();
        let connections: Vec<ConnectionId> = self.node.connections().collect();
        for id in connections {
            if let Some(interrupted) = self.interrupted(id, in_work) {
                self.reset(now, id, &interrupted);
            }
            let pause = match Some(id) == in_work {
                true => PANIC_INTERVAL,
                false => Duration::ZERO,
            };
            self.schedule.set_timer(id, now + pause);
        }
        self.schedule.wake_for_timers();
    }

    fn interrupted(&self, id: ConnectionId, in_work: Option<ConnectionId>) -> Option<Interrupted> {
        self.node.attempt(id)?;
        if self.schedule.jobs.has(id) {
            return None;
        }
        let conn = self.transport.ib_connections.get(&id);
        match conn.map(IbConnection::is_busy) {
            Some(true) => Some(Interrupted::Resources),
            Some(false) if Some(id) == in_work => Some(Interrupted::Step),
            Some(false) => None,
            None => Some(Interrupted::Start),
        }
    }

    fn reset(&mut self, now: Duration, id: ConnectionId, interrupted: &Interrupted) {
        let Some(attempt) = self.node.attempt(id) else {
            return;
        };
        match interrupted {
            Interrupted::Resources => {
                if let Some(conn) = self.transport.ib_connections.get_mut(&id) {
                    conn.stage = ConnectStage::Gone;
                }
                self.transport.queue_pairs.retain(|_, of| *of != id);
                // Slots in the queue pair do not return.
                self.node.give_up(id, |payload| payload.is_posted());
                self.disconnect_closing(id);
            }
            Interrupted::Step => self.disconnect_closing(id),
            Interrupted::Start => self.node.closed(now, id, attempt),
        }
        self.node.failed(id, attempt, Failure::Lost);
    }
}
