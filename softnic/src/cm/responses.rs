//! Messages in place of a reply: MRA and REJ.

use super::{mad::Mad, message::CommIds, private_data::PrivateData};

/// The message answered by an MRA or REJ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// A request (REQ).
    Request,
    /// A reply (REP).
    Reply,
    /// Another message, or none.
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

/// Message receipt acknowledgement (MRA): the answer takes longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mra {
    /// Communication ids.
    pub ids: CommIds,
    /// The acknowledged message.
    pub about: Rejected,
    /// Time until the answer, as 4.096 µs · 2^n.
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

/// Rejection of a connection (REJ).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Communication ids.
    pub ids: CommIds,
    /// The rejected message.
    pub about: Rejected,
    /// Reason, as numbered by the specification.
    pub reason: u16,
    /// Additional rejection information.
    pub info: RejectInfo,
    /// Private data of the program.
    pub private_data: PrivateData,
}

/// Additional rejection information (ARI), by the reason of a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectInfo {
    /// No information, or information of an unknown length.
    None,
    /// GUID of the sender's device, for [`Reject::TIMEOUT`]: the receiver may be without the sender's answer.
    Guid(u64),
    /// GID that the sender would accept, for [`Reject::INVALID_GID`].
    Gid([u8; 16]),
}

impl RejectInfo {
    fn decode(mad: &Mad) -> Self {
        match mad.bits(9, 1, 7) {
            8 => Self::Guid(mad.u64(12)),
            16 => Self::Gid(mad.array(12)),
            _ => Self::None,
        }
    }

    fn encode(self, mad: &mut Mad) {
        let (len, bytes): (u8, &[u8]) = match &self {
            Self::None => (0, &[]),
            Self::Guid(guid) => (8, &guid.to_be_bytes()),
            Self::Gid(gid) => (16, gid),
        };
        mad.put_bits(9, 1, 7, len);
        mad.put(12, bytes);
    }
}

/// Length of the private data field.
pub(super) const PRIVATE_LEN: usize = 148;

impl Reject {
    /// The sender of the rejection got no answer in time.
    pub const TIMEOUT: u16 = 4;
    /// No listener for the service id.
    pub const INVALID_SERVICE: u16 = 8;
    /// A connection with the same ids or queue pair exists or has recently ended.
    pub const STALE: u16 = 10;
    /// The primary path is unusable: its GIDs or its partition key are not those of the receiver.
    pub const INVALID_GID: u16 = 12;
    /// The program rejects the connection.
    pub const CONSUMER: u16 = 28;
    /// The program does not support the vendor options.
    pub const VENDOR_OPTION: u16 = 35;

    pub(super) fn decode(mad: &Mad) -> Self {
        Self {
            ids: CommIds::decode(mad),
            about: Rejected::from_code(mad.bits(8, 6, 2)),
            reason: mad.u16(10),
            info: RejectInfo::decode(mad),
            private_data: PrivateData::new(mad.bytes(84, PRIVATE_LEN)),
        }
    }

    pub(super) fn encode(&self, mad: &mut Mad) {
        self.ids.encode(mad);
        mad.put_bits(8, 6, 2, self.about.code());
        mad.put_u16(10, self.reason);
        self.info.encode(mad);
        mad.put(84, self.private_data.as_slice());
    }
}
