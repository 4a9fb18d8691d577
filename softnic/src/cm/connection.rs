//! One end of a connection.

use std::time::Duration;

use super::{
    message::CommIds,
    remotes::Remote,
    timers::{Pending, RetryPolicy, time},
};
use crate::engine::Path;

/// The errno of a missing answer.
pub(super) const ETIMEDOUT: i32 = 110;

/// Phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// REQ sent, no answer yet.
    RequestSent,
    /// REP received; the program has to establish the connection.
    ReplyReceived,
    /// REQ received; the program has to accept or reject.
    RequestReceived,
    /// REP sent, no RTU yet.
    ReplySent,
    Established,
    DisconnectSent,
    /// DREQ received; the program has to disconnect.
    DisconnectReceived,
    /// Disconnected; packets may still be in flight until this time.
    TimeWait(Duration),
    /// Not connected, or no longer.
    Idle,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) phase: Phase,
    pub(super) is_passive: bool,
    /// Whether the program has requested or accepted the connection; no events are raised before.
    pub(super) is_reported: bool,
    /// Whether the program has been notified of the end.
    pub(super) has_ended: bool,
    pub(super) ids: CommIds,
    /// GUID of the peer's device; 0 before the reply.
    pub(super) peer_guid: u64,
    /// Retransmission of this side's messages.
    pub(super) retry: RetryPolicy,
    /// Transaction id of the peer's message, for the answer.
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
    /// Maximum number of reads and atomics in flight from this side.
    pub(super) initiator_depth: u8,
    /// Maximum number of reads and atomics in flight from the peer.
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

    /// Enters the time-wait phase, until no packet of the connection can be in flight.
    pub(super) fn enter_time_wait(&mut self, now: Duration) {
        self.pending = None;
        self.phase = Phase::TimeWait(now + time(self.ack_timeout));
    }

    /// Whether the connection has not ended, so that the peer's numbers are taken.
    pub(super) fn is_live(&self) -> bool {
        !matches!(self.phase, Phase::TimeWait(_) | Phase::Idle)
    }

    /// The peer's communication id.
    pub(super) fn remote_id(&self) -> Remote {
        (self.peer_guid, self.ids.remote)
    }

    /// Adds the peer's delay of acknowledgements to the acknowledgement timeout, both as codes.
    pub(super) fn add_ack_delay(&mut self, delay: u8) {
        let timeout = self.ack_timeout;
        // The sum of two powers of 2, rounded up to one if the smaller one is more than a quarter of the greater.
        let sum = if timeout >= delay {
            timeout + u8::from(delay + 1 >= timeout)
        } else {
            delay + u8::from(timeout + 1 >= delay)
        };
        self.ack_timeout = sum.min(31);
    }

    /// Whether a message belongs to this connection.
    pub(super) fn is_of(&self, ids: CommIds, from: &Path) -> bool {
        self.ids.remote == ids.local && self.path.dst == from.dst
    }
}
