//! Parameters of connections.

/// Most reads and atomics in flight of a queue pair.
const MAX_RD_ATOMIC: u8 = 128;

/// Parameters of a connection: those that a side asks for, or those that the peer has asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnParam {
    /// Number of the sender's queue pair.
    pub qp_num: u32,
    /// Most reads and atomics in flight that the sender of these parameters takes.
    pub responder_resources: u8,
    /// Most reads and atomics in flight that the sender of these parameters begins.
    pub initiator_depth: u8,
    /// Whether receives are counted between the ends.
    pub flow_control: bool,
    /// Retries after a timeout, 0 to 7.
    pub retry_count: u8,
    /// Retries after the receiver was not ready, 0 to 7.
    pub rnr_retry_count: u8,
    /// Whether receives come from a shared queue.
    pub srq: bool,
}

impl ConnParam {
    /// Of [`responder_resources`](Self::responder_resources) and [`initiator_depth`](Self::initiator_depth): as many as the
    /// device takes, and of those that the peer has asked for.
    pub const DEVICE_MAX: u8 = u8::MAX;

    /// The parameters with numbers in the place of [`DEVICE_MAX`](Self::DEVICE_MAX): those that the peer has asked for, or
    /// the device's.
    pub(super) fn limited(self, responder_resources: u8, initiator_depth: u8) -> Self {
        let limit = |wish, limit: u8| match wish {
            Self::DEVICE_MAX => limit.min(MAX_RD_ATOMIC),
            wish => wish,
        };
        Self {
            responder_resources: limit(self.responder_resources, responder_resources),
            initiator_depth: limit(self.initiator_depth, initiator_depth),
            ..self
        }
    }

    /// The parameters as their receiver sees them: the reads and atomics that one side begins are those that the other
    /// takes.
    pub(super) fn reversed(self) -> Self {
        Self {
            initiator_depth: self.responder_resources,
            responder_resources: self.initiator_depth,
            ..self
        }
    }
}

/// Options of enhanced connection establishment, which vendors define.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// The vendor, 24 bits; 0 stands for no options.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}
