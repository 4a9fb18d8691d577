//! Batches of short messages, posted with one doorbell.
//!
//! Ringing a doorbell is a system call on software devices such as rxe, and a VM exit under some
//! hypervisors. Batched frames are also cheaper to process on both hosts. So a program that sends
//! faster than the device transmits has some short messages held back.
//!
//! Latency is not affected while enough requests are in flight, because the send queue is processed
//! in order. A batch is posted by the next call to send, receive or wait on any socket, or by the
//! engine thread after [`BATCH_DELAY`], 5 ms. No message is held back while the thread handles
//! completions, or while a leader is blocked.

use std::time::Duration;

use super::{Shared, State, leading::Watch};
use crate::{ib_connection::Stage, proto::node::ConnectionId};

/// Delay after which the engine thread posts a batch.
pub(super) const BATCH_DELAY: Duration = Duration::from_millis(5);

impl Shared {
    /// Holds back a message just queued on a connection, if no waiter depends on it. Returns
    /// whether it is held back.
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
    /// Whether one more message of a connection may be held back.
    fn may_delay(&self, id: ConnectionId) -> bool {
        let most = self.options.doorbell_batch;
        if self.delayed + 1 >= most || self.leader.is_some() {
            return false;
        }
        // Twice the number that can be in flight only because none is signaled.
        let settings = &self.options.node.connection;
        let enough = 2 * settings.max_unsignaled as usize;
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

    /// Whether messages are held back.
    pub(super) fn delays(&self) -> bool {
        self.delayed > 0
    }

    /// Ends the batch, before posting.
    pub(super) fn end_delay(&mut self) {
        if self.delays() {
            self.delayed = 0;
            self.schedule.posted();
        }
    }
}
