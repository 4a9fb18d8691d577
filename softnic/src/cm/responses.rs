//! Messages that postpone or refuse a connection: MRA and REJ.

use super::{mad::Mad, message::CommIds, private_data::PrivateData};

/// The message that another one is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// A request.
    Request,
    /// A reply.
    Reply,
    /// None.
    Other,
}

impl Rejected {
    fn code(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Reply => 1,
            Self::Other => 2,
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Request,
            1 => Self::Reply,
            _ => Self::Other,
        }
    }
}

/// Receipt of a message whose answer takes longer (MRA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mra {
    /// Numbers of the connection.
    pub ids: CommIds,
    /// The message.
    pub about: Rejected,
    /// Time that the answer may take, as 4.096 µs · 2^n.
    pub service_timeout: u8,
}

impl Mra {
    pub(super) fn decode(mad: &Mad) -> Self {
        Self {
            ids: CommIds::decode(mad),
            about: Rejected::from_code(mad.bits(8, 6, 2)),
            service_timeout: mad.bits(9, 3, 5),
        }
    }

    pub(super) fn encode(self, mad: &mut Mad) {
        self.ids.encode(mad);
        mad.put_bits(8, 6, 2, self.about.code());
        mad.put_bits(9, 3, 5, self.service_timeout);
    }
}

/// Refusal of a connection (REJ).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Numbers of the connection.
    pub ids: CommIds,
    /// The message that is refused.
    pub about: Rejected,
    /// Reason, as the specification numbers them.
    pub reason: u16,
    /// Data of the program.
    pub private_data: PrivateData,
}

/// Length of the private data field.
pub(super) const PRIVATE_LEN: usize = 148;

impl Reject {
    /// The side that asks has given up.
    pub const TIMEOUT: u16 = 4;
    /// No identifier listens to the service.
    pub const INVALID_SERVICE: u16 = 8;
    /// A connection with the same numbers exists or has just ended.
    pub const STALE: u16 = 10;
    /// The program refuses.
    pub const CONSUMER: u16 = 28;
    /// The program does not support the options of the vendor's.
    pub const VENDOR_OPTION: u16 = 35;

    pub(super) fn decode(mad: &Mad) -> Self {
        Self {
            ids: CommIds::decode(mad),
            about: Rejected::from_code(mad.bits(8, 6, 2)),
            reason: mad.u16(10),
            private_data: PrivateData::new(mad.bytes(84, PRIVATE_LEN)),
        }
    }

    pub(super) fn encode(&self, mad: &mut Mad) {
        self.ids.encode(mad);
        mad.put_bits(8, 6, 2, self.about.code());
        mad.put_u16(10, self.reason);
        mad.put(84, self.private_data.as_slice());
    }
}
