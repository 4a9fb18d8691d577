//! Messages of services of datagrams: `SIDR_REQ` and `SIDR_REP`.

use super::{mad::Mad, private_data::PrivateData};

/// Request for the queue pair of a service (`SIDR_REQ`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRequest {
    /// Id of the request.
    pub request_id: u32,
    /// Partition key.
    pub pkey: u16,
    /// Service id.
    pub service_id: u64,
    /// Private data of the program, after the IP header.
    pub private_data: PrivateData,
}

/// Length of the private data field of a request, including the IP header.
pub(super) const REQUEST_LEN: usize = 216;

/// Length of the private data field of an answer.
pub(super) const REPLY_LEN: usize = 136;

impl ServiceRequest {
    pub(super) fn decode(mad: &Mad) -> Self {
        Self {
            request_id: mad.u32(0),
            pkey: mad.u16(4),
            service_id: mad.u64(8),
            private_data: PrivateData::new(mad.bytes(16, REQUEST_LEN)),
        }
    }

    pub(super) fn encode(&self, mad: &mut Mad) {
        mad.put_u32(0, self.request_id);
        mad.put_u16(4, self.pkey);
        mad.put_u64(8, self.service_id);
        mad.put(16, self.private_data.as_slice());
    }
}

/// Answer to a service request (`SIDR_REP`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceReply {
    /// Id of the request.
    pub request_id: u32,
    /// Status.
    pub status: u8,
    /// Number of the queue pair.
    pub qp_num: u32,
    /// Service id.
    pub service_id: u64,
    /// Q_Key of the queue pair.
    pub qkey: u32,
    /// Private data of the program.
    pub private_data: PrivateData,
}

impl ServiceReply {
    /// The queue pair is valid.
    pub const SUCCESS: u8 = 0;
    /// No listener for the service id.
    pub const UNSUPPORTED: u8 = 1;
    /// The program rejects the request.
    pub const REJECTED: u8 = 2;

    pub(super) fn decode(mad: &Mad) -> Self {
        Self {
            request_id: mad.u32(0),
            status: mad.bits(4, 0, 8),
            qp_num: mad.u24(8),
            service_id: mad.u64(12),
            qkey: mad.u32(20),
            private_data: PrivateData::new(mad.bytes(96, REPLY_LEN)),
        }
    }

    pub(super) fn encode(&self, mad: &mut Mad) {
        mad.put_u32(0, self.request_id);
        mad.put(4, &[self.status]);
        mad.put_u24(8, self.qp_num);
        mad.put_u64(12, self.service_id);
        mad.put_u32(20, self.qkey);
        mad.put(96, self.private_data.as_slice());
    }
}
