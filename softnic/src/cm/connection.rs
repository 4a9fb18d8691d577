//! One end of a connection.

use std::time::Duration;

use super::{
    message::CommIds,
    timers::{Pending, time},
};
use crate::engine::Path;

/// The errno of an answer that has not come.
pub(super) const ETIMEDOUT: i32 = 110;

/// Code of the time to wait for an acknowledgement, unless the program has chosen one: 268 ms. `cm` gives a peer that has
/// disconnected one second to acknowledge, so eight of these times exceed that.
pub(super) const ACK_TIMEOUT: u8 = 16;

/// Code of the MTU: 4096 bytes.
pub(super) const MTU: u8 = 5;

/// Progress of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Asked, and not answered.
    RequestSent,
    /// Answered; the program is to establish the connection.
    ReplyReceived,
    /// Asked; the program is to answer.
    RequestReceived,
    /// Answered; the peer is to establish the connection.
    ReplySent,
    Established,
    DisconnectSent,
    /// The program is to agree.
    DisconnectReceived,
    /// Over; packets may still be on their way until then.
    TimeWait(Duration),
    /// Over, or never begun.
    Idle,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) phase: Phase,
    pub(super) is_passive: bool,
    /// Whether the program has accepted the connection, or has asked for it; before that it is told nothing.
    pub(super) is_reported: bool,
    /// Whether the program knows that the connection has ended.
    pub(super) has_ended: bool,
    pub(super) ids: CommIds,
    /// Number of the exchange that the program's answer belongs to.
    pub(super) tid: u64,
    pub(super) path: Path,
    pub(super) local_qp: u32,
    pub(super) dest_qp: u32,
    pub(super) sq_psn: u32,
    pub(super) rq_psn: u32,
    pub(super) mtu: u8,
    pub(super) ack_timeout: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    /// Most reads and atomics in flight from this side.
    pub(super) initiator_depth: u8,
    /// Most reads and atomics in flight from the peer.
    pub(super) responder_resources: u8,
    pub(super) pending: Option<Box<Pending>>,
}

impl Connection {
    pub(super) fn deadline(&self) -> Option<Duration> {
        match self.phase {
            Phase::TimeWait(until) => Some(until),
            _ => self.pending.as_ref().map(|pending| pending.at),
        }
    }

    /// Waits until no packet of the connection can be on its way.
    pub(super) fn enter_time_wait(&mut self, now: Duration) {
        self.pending = None;
        self.phase = Phase::TimeWait(now + 2 * time(self.ack_timeout));
    }

    /// Whether a message is of this connection.
    pub(super) fn is_of(&self, ids: CommIds, from: &Path) -> bool {
        self.ids.remote == ids.local && self.path.dst == from.dst
    }
}
