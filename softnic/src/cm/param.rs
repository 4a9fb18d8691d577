//! Parameters of connections.

use super::error::CmError;
use crate::engine::MAX_RD_ATOMIC;

/// Parameters of a connection, as requested by one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnParam {
    /// Number of the sender's queue pair.
    pub qp_num: u32,
    /// Maximum number of incoming reads and atomics in flight accepted by the sender of the parameters.
    pub responder_resources: u8,
    /// Maximum number of outgoing reads and atomics in flight of the sender of the parameters.
    pub initiator_depth: u8,
    /// Whether end-to-end flow control is used.
    pub flow_control: bool,
    /// Retries after a timeout, 0 to 7.
    pub retry_count: u8,
    /// Retries after an RNR NAK, 0 to 7.
    pub rnr_retry_count: u8,
    /// Whether the queue pair has a shared receive queue.
    pub srq: bool,
}

/// Maximum numbers of reads and atomics in flight of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct MaxDepths {
    /// Of peers.
    pub(super) responder: u8,
    /// Of the device itself.
    pub(super) initiator: u8,
}

impl Default for MaxDepths {
    fn default() -> Self {
        Self {
            responder: MAX_RD_ATOMIC,
            initiator: MAX_RD_ATOMIC,
        }
    }
}

impl ConnParam {
    /// Value of [`responder_resources`](Self::responder_resources) and [`initiator_depth`](Self::initiator_depth) for
    /// the maximum: the device's limit, or the peer's request if lower.
    pub const DEVICE_MAX: u8 = u8::MAX;

    /// Checks the numbers of reads and atomics.
    pub(super) fn check(self, max: MaxDepths) -> Result<(), CmError> {
        let is_valid = |count: u8, max| count <= max || count == Self::DEVICE_MAX;
        if is_valid(self.responder_resources, max.responder)
            && is_valid(self.initiator_depth, max.initiator)
        {
            Ok(())
        } else {
            Err(CmError::Invalid(
                "the device has fewer reads and atomics in flight than that",
            ))
        }
    }

    /// Replaces [`DEVICE_MAX`](Self::DEVICE_MAX) by the given limit or the device's, whichever is lower.
    pub(super) fn limited(
        self,
        (responder_resources, initiator_depth): (u8, u8),
        max: MaxDepths,
    ) -> Self {
        let limit = |wish, limit: u8, max| match wish {
            Self::DEVICE_MAX => limit.min(max),
            wish => wish,
        };
        Self {
            responder_resources: limit(
                self.responder_resources,
                responder_resources,
                max.responder,
            ),
            initiator_depth: limit(self.initiator_depth, initiator_depth, max.initiator),
            ..self
        }
    }

    /// The parameters from the receiver's point of view: outgoing and incoming depths are exchanged.
    pub(super) fn reversed(self) -> Self {
        Self {
            initiator_depth: self.responder_resources,
            responder_resources: self.initiator_depth,
            ..self
        }
    }
}

/// Vendor options of enhanced connection establishment (ECE).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// The vendor, 24 bits; 0 means no options.
    pub vendor_id: u32,
    /// Option bits.
    pub options: u32,
}
