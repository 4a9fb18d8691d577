//! Messages of the communication manager.

use super::{
    mad::{MAD_LEN, Mad},
    reply::Reply,
    request::Request,
    responses::{Mra, Reject},
    service::{ServiceReply, ServiceRequest},
};

/// Communication ids of a connection, of the sender and of the receiver of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommIds {
    /// Id of the sender.
    pub local: u32,
    /// Id of the receiver; 0 if unknown to the sender.
    pub remote: u32,
}

impl CommIds {
    pub(super) fn decode(mad: &Mad) -> Self {
        Self {
            local: mad.u32(0),
            remote: mad.u32(4),
        }
    }

    pub(super) fn encode(self, mad: &mut Mad) {
        mad.put_u32(0, self.local);
        mad.put_u32(4, self.remote);
    }

    /// The ids from the receiver's point of view.
    pub(super) fn reversed(self) -> Self {
        Self {
            local: self.remote,
            remote: self.local,
        }
    }
}

/// The ids of no connection.
const NO_IDS: CommIds = CommIds {
    local: 0,
    remote: 0,
};

/// A message of the communication manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Connection request (REQ).
    Request(Box<Request>),
    /// Message receipt acknowledgement (MRA): the answer takes longer.
    Mra(Mra),
    /// Rejection (REJ).
    Reject(Box<Reject>),
    /// Reply to a request (REP): the passive side accepts.
    Reply(Box<Reply>),
    /// Ready to use (RTU), from the active side.
    Ready(CommIds),
    /// Disconnect request (DREQ), with the number of the receiver's queue pair.
    Disconnect(CommIds, u32),
    /// Reply to a disconnect request (DREP).
    Disconnected(CommIds),
    /// Request for the queue pair of a service of datagrams (SIDR REQ).
    ServiceRequest(Box<ServiceRequest>),
    /// Answer to a service request (SIDR REP).
    ServiceReply(Box<ServiceReply>),
}

const REQ: u16 = 0x10;
const MRA: u16 = 0x11;
const REJ: u16 = 0x12;
const REP: u16 = 0x13;
const RTU: u16 = 0x14;
const DREQ: u16 = 0x15;
const DREP: u16 = 0x16;
const SIDR_REQ: u16 = 0x17;
const SIDR_REP: u16 = 0x18;

impl Message {
    /// The communication ids of an encoded message; of a message about a service of datagrams, other fields.
    pub fn ids(bytes: &[u8; MAD_LEN]) -> CommIds {
        Mad::decode(bytes).map_or(NO_IDS, |mad| CommIds::decode(&mad))
    }

    /// Decodes a message and the transaction id; `None` for malformed and unknown messages, such as LAP and APR.
    pub fn decode(bytes: &[u8]) -> Option<(u64, Self)> {
        let mad = Mad::decode(bytes)?;
        let message = match mad.attribute {
            REQ => Self::Request(Box::new(Request::decode(&mad))),
            MRA => Self::Mra(Mra::decode(&mad)),
            REJ => Self::Reject(Box::new(Reject::decode(&mad))),
            REP => Self::Reply(Box::new(Reply::decode(&mad))),
            RTU => Self::Ready(CommIds::decode(&mad)),
            DREQ => Self::Disconnect(CommIds::decode(&mad), mad.u24(8)),
            DREP => Self::Disconnected(CommIds::decode(&mad)),
            SIDR_REQ => Self::ServiceRequest(Box::new(ServiceRequest::decode(&mad))),
            SIDR_REP => Self::ServiceReply(Box::new(ServiceReply::decode(&mad))),
            _ => return None,
        };
        Some((mad.tid, message))
    }

    /// Encodes the message with transaction id `tid`.
    pub fn encode(&self, tid: u64) -> [u8; MAD_LEN] {
        let attribute = match self {
            Self::Request(_) => REQ,
            Self::Mra(_) => MRA,
            Self::Reject(_) => REJ,
            Self::Reply(_) => REP,
            Self::Ready(_) => RTU,
            Self::Disconnect(..) => DREQ,
            Self::Disconnected(_) => DREP,
            Self::ServiceRequest(_) => SIDR_REQ,
            Self::ServiceReply(_) => SIDR_REP,
        };
        let mut mad = Mad::new(tid, attribute);
        match self {
            Self::Request(request) => request.encode(&mut mad),
            Self::Mra(mra) => mra.encode(&mut mad),
            Self::Reject(reject) => reject.encode(&mut mad),
            Self::Reply(reply) => reply.encode(&mut mad),
            Self::Ready(ids) | Self::Disconnected(ids) => ids.encode(&mut mad),
            Self::Disconnect(ids, qp_num) => {
                ids.encode(&mut mad);
                mad.put_u24(8, *qp_num);
            }
            Self::ServiceRequest(request) => request.encode(&mut mad),
            Self::ServiceReply(reply) => reply.encode(&mut mad),
        }
        mad.encode()
    }
}
