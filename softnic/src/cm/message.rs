//! Messages of the communication manager.

use super::{
    mad::{MAD_LEN, Mad},
    reply::Reply,
    request::Request,
    responses::{Mra, Reject},
    service::{ServiceReply, ServiceRequest},
};

/// Numbers of a connection: at the sender of a message, and at its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommIds {
    /// Number at the sender.
    pub local: u32,
    /// Number at the receiver; 0 if the sender does not know it.
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

    /// The same connection, in messages of the receiver's.
    pub(super) fn reversed(self) -> Self {
        Self {
            local: self.remote,
            remote: self.local,
        }
    }
}

/// A message of the communication manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Request for a connection.
    Request(Box<Request>),
    /// Receipt: the answer takes longer.
    Mra(Mra),
    /// Refusal.
    Reject(Box<Reject>),
    /// Reply: the receiver accepts.
    Reply(Box<Reply>),
    /// The side that asked is ready to use the connection (RTU).
    Ready(CommIds),
    /// Request to disconnect (DREQ), and the number of the receiver's queue pair.
    Disconnect(CommIds, u32),
    /// Reply to that (DREP).
    Disconnected(CommIds),
    /// Question for a service of datagrams.
    ServiceRequest(Box<ServiceRequest>),
    /// Answer to that.
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
    /// Reads a message and the number of its exchange; `None` if it is malformed, or of a kind that this manager does not
    /// know, such as those for alternate paths.
    pub fn decode(bytes: &[u8]) -> Option<(u64, Self)> {
        let mad = Mad::decode(bytes)?;
        let message = match mad.attribute {
            REQ => Self::Request(Box::new(Request::decode(&mad)?)),
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

    /// The bytes of the message, as one of the exchange `tid`.
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
