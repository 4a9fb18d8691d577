//! Messages that wait for others, to be posted with one doorbell.
//!
//! To ring the doorbell of a device that the kernel is, or a hypervisor, takes a call of it; and frames that are
//! posted together go through both hosts together, which takes less than one after the other. So a program that
//! sends faster than the device does has a few short messages wait for the next ones.
//!
//! Nobody notices: as long as enough requests are in flight, a message that is posted later leaves no later. It
//! waits for the next call that sends or receives, whatever that is about, or for the thread, which looks soon.
//! Where the thread is told of completions, or a call sleeps, nothing waits.

use std::time::Duration;

use super::{Shared, State, leading::Watch};
use crate::{ib_connection::Stage, proto::node::ConnectionId};

/// If nothing has been posted for so long, the thread posts what waits.
pub(super) const BATCH_DELAY: Duration = Duration::from_millis(5);

impl Shared {
    /// Has a short message of a connection, which has just been queued and nobody waits for, wait for the next
    /// ones. Returns whether it does.
    pub(crate) fn delay(&self, state: &mut State, now: Duration, id: ConnectionId) -> bool {
        if !state.may_delay(id) {
            return false;
        }
        state.delayed += 1;
        if state.delayed == 1 && self.schedule.delay(now + BATCH_DELAY) {
            self.thread_event.notify();
        }
        true
    }
}

impl State {
    /// Whether one more message of a connection may wait.
    fn may_delay(&self, id: ConnectionId) -> bool {
        let most = self.options.doorbell_batch;
        if self.delayed + 1 >= most || self.leader.is_some() {
            return false;
        }
        // As many again as may be in flight for no other reason than that none of them is signalled.
        let settings = &self.options.node.connection;
        let enough = 2 * settings.max_unsignalled as usize;
        let (Watch::Calls(Some(_)), Some(conn)) = (self.watch, self.ib_connections.get(&id)) else {
            return false;
        };
        match &conn.stage {
            Stage::Up(resources) if conn.closing.is_none() => {
                resources.qp.qp().send_queue().in_flight() >= enough
            }
            _ => false,
        }
    }

    /// Whether any wait.
    pub(super) fn delays(&self) -> bool {
        self.delayed > 0
    }

    /// All that wait are being posted.
    pub(super) fn end_delay(&mut self) {
        if self.delays() {
            self.delayed = 0;
            self.schedule.posted();
        }
    }
}
