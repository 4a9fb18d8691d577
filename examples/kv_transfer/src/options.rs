//! The bounds of an engine.

use std::time::Duration;

use cm::{ConnParam, EndpointBuilder, SharedQueues};
use verbs::cq::CqHandle;

use super::lane::{RECEIVES, SENDS};

/// Bounds of an engine, for each peer except [`peers`](Self::peers).
#[derive(Clone, Debug)]
pub struct Options {
    /// Queue pairs to each reader, at most [`MAX_LANES`](Self::MAX_LANES).
    pub lanes: usize,
    /// Maximum number of peers.
    pub peers: usize,
    /// Maximum number of leases of a peer.
    pub leases: usize,
    /// Maximum number of leased pages of a peer.
    pub pages: usize,
    /// Maximum time for the acknowledgement of a cancellation, and for connecting all queue pairs; a peer is ended then.
    pub ack_timeout: Duration,
    /// Retransmissions of a request before its queue pair fails, at most 7.
    pub retries: u8,
}

impl Options {
    /// Maximum number of queue pairs to a peer.
    pub const MAX_LANES: usize = 4;

    /// A completion queue with this number of entries suffices for all peers.
    pub(crate) fn entries(&self) -> u32 {
        let lanes = u32::try_from(self.peers * Self::MAX_LANES).unwrap_or(u32::MAX);
        lanes.saturating_mul(SENDS + RECEIVES)
    }

    pub(crate) fn builder(&self, cq: &CqHandle) -> EndpointBuilder<SharedQueues> {
        EndpointBuilder::new()
            .cqs(cq, cq)
            .max_send_wr(SENDS)
            .max_recv_wr(RECEIVES)
            .param(self.param())
            .timeout(self.ack_timeout)
    }

    pub(crate) fn param(&self) -> ConnParam {
        ConnParam::new().retry_count(self.retries)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lanes: 2,
            peers: 8,
            leases: 8,
            pages: 128,
            ack_timeout: Duration::from_secs(10),
            retries: 7,
        }
    }
}
