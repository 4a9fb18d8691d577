//! Connection request (REQ).

use std::net::IpAddr;

use super::{
    mad::Mad,
    param::{ConnParam, Ece},
    private_data::PrivateData,
};
use crate::engine::QpKind;

/// Length of the private data field, including the IP header.
pub(super) const PRIVATE_LEN: usize = 92;

/// Connection request (REQ).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Communication id of the active side.
    pub local_comm_id: u32,
    /// Requested service id.
    pub service_id: u64,
    /// GUID of the active side's device.
    pub ca_guid: u64,
    /// Transport service of the active side's queue pair; `None` for unknown services.
    pub kind: Option<QpKind>,
    /// Queue pair and limits of the active side.
    pub param: ConnParam,
    /// Sequence number of the first packet to the active side.
    pub starting_psn: u32,
    /// Time within which the passive side is expected to answer, as 4.096 µs · 2^n.
    pub remote_response_timeout: u8,
    /// Time within which the active side answers, as 4.096 µs · 2^n: the passive side's retransmission interval.
    pub local_response_timeout: u8,
    /// Maximum number of retries of the passive side's messages.
    pub max_cm_retries: u8,
    /// Partition key.
    pub pkey: u16,
    /// Code of the path MTU: 1 for 256 bytes to 5 for 4096.
    pub mtu: u8,
    /// Address of the active side.
    pub local_addr: IpAddr,
    /// Address of the passive side.
    pub remote_addr: IpAddr,
    /// Flow label of the path.
    pub flow_label: u32,
    /// Traffic class of the path.
    pub traffic_class: u8,
    /// Hop limit of the path.
    pub hop_limit: u8,
    /// Acknowledgement timeout, as 4.096 µs · 2^n.
    pub ack_timeout: u8,
    /// Vendor options.
    pub ece: Ece,
    /// Private data of the program, after the IP header.
    pub private_data: PrivateData,
}

/// Transport service of extended connections and of unknown ones, which a connection manager of reliable connections
/// rejects.
const UNKNOWN_SERVICE: u8 = 3;

/// The permissive LID, in place of the LIDs of a path: `RoCE` has none.
const NO_LID: u16 = 0xffff;

/// The GID of an address.
pub(super) fn gid(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped().octets(),
        IpAddr::V6(addr) => addr.octets(),
    }
}

fn address(gid: [u8; 16]) -> IpAddr {
    std::net::Ipv6Addr::from(gid).to_canonical()
}

impl Request {
    pub(super) fn decode(mad: &Mad) -> Self {
        let kind = match mad.bits(43, 1, 2) {
            0 => Some(QpKind::Rc),
            1 => Some(QpKind::Uc),
            // Unknown services are rejected, not dropped: the peer would retry.
            _ => None,
        };
        let param = ConnParam {
            qp_num: mad.u24(32),
            responder_resources: mad.bits(35, 0, 8),
            initiator_depth: mad.bits(39, 0, 8),
            flow_control: mad.bits(43, 0, 1) != 0,
            retry_count: mad.bits(47, 0, 3),
            rnr_retry_count: mad.bits(50, 0, 3),
            srq: mad.bits(51, 3, 1) != 0,
        };
        Self {
            local_comm_id: mad.u32(0),
            service_id: mad.u64(8),
            ca_guid: mad.u64(16),
            kind,
            param,
            starting_psn: mad.u24(44),
            remote_response_timeout: mad.bits(43, 3, 5),
            local_response_timeout: mad.bits(47, 3, 5),
            max_cm_retries: mad.bits(51, 4, 4),
            pkey: mad.u16(48),
            mtu: mad.bits(50, 4, 4),
            local_addr: address(mad.array(56)),
            remote_addr: address(mad.array(72)),
            flow_label: mad.u32(88) >> 12,
            traffic_class: mad.bits(92, 0, 8),
            hop_limit: mad.bits(93, 0, 8),
            ack_timeout: mad.bits(95, 3, 5),
            ece: Ece {
                vendor_id: mad.u24(5),
                options: mad.modifier,
            },
            private_data: PrivateData::new(mad.bytes(140, PRIVATE_LEN)),
        }
    }

    pub(super) fn encode(&self, mad: &mut Mad) {
        mad.modifier = self.ece.options;
        mad.put_u32(0, self.local_comm_id);
        mad.put_u24(5, self.ece.vendor_id);
        mad.put_u64(8, self.service_id);
        mad.put_u64(16, self.ca_guid);
        mad.put_u24(32, self.param.qp_num);
        mad.put(35, &[self.param.responder_resources]);
        mad.put(39, &[self.param.initiator_depth]);
        mad.put_bits(43, 3, 5, self.remote_response_timeout);
        let service = match self.kind {
            Some(QpKind::Rc) => 0,
            Some(QpKind::Uc) => 1,
            _ => UNKNOWN_SERVICE,
        };
        mad.put_bits(43, 1, 2, service);
        mad.put_bits(43, 0, 1, self.param.flow_control.into());
        mad.put_u24(44, self.starting_psn);
        mad.put_bits(47, 3, 5, self.local_response_timeout);
        mad.put_bits(47, 0, 3, self.param.retry_count);
        mad.put_u16(48, self.pkey);
        mad.put_bits(50, 4, 4, self.mtu);
        mad.put_bits(50, 0, 3, self.param.rnr_retry_count);
        mad.put_bits(51, 4, 4, self.max_cm_retries);
        mad.put_bits(51, 3, 1, self.param.srq.into());
        // Primary path. Its rate is zero: unknown.
        mad.put_u16(52, NO_LID);
        mad.put_u16(54, NO_LID);
        mad.put(56, &gid(self.local_addr));
        mad.put(72, &gid(self.remote_addr));
        mad.put_u32(88, self.flow_label << 12);
        mad.put(92, &[self.traffic_class, self.hop_limit]);
        mad.put_bits(95, 3, 5, self.ack_timeout);
        mad.put(140, self.private_data.as_slice());
    }
}
