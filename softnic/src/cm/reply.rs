//! The reply to a request (REP).

use super::{
    mad::Mad,
    message::CommIds,
    param::{ConnParam, Ece},
    private_data::PrivateData,
};

/// Length of the private data field.
pub(super) const PRIVATE_LEN: usize = 196;

/// Reply to a request (REP): the passive side accepts the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Numbers of the connection.
    pub ids: CommIds,
    /// Queue pair and limits of the passive side.
    pub param: ConnParam,
    /// Sequence number of the first packet to the passive side.
    pub starting_psn: u32,
    /// Maximum delay of the passive side's acknowledgements, as 4.096 µs · 2^n.
    pub ack_delay: u8,
    /// GUID of the passive side's device.
    pub ca_guid: u64,
    /// Vendor options.
    pub ece: Ece,
    /// Private data of the program.
    pub private_data: PrivateData,
}

impl Reply {
    pub(super) fn decode(mad: &Mad) -> Self {
        let param = ConnParam {
            qp_num: mad.u24(12),
            responder_resources: mad.bits(24, 0, 8),
            initiator_depth: mad.bits(25, 0, 8),
            flow_control: mad.bits(26, 0, 1) != 0,
            // A reply has no retry count.
            retry_count: 0,
            rnr_retry_count: mad.bits(27, 5, 3),
            srq: mad.bits(27, 4, 1) != 0,
        };
        let vendor = [15, 19, 23].map(|at| mad.bits(at, 0, 8));
        let [high, middle, low] = vendor;
        Self {
            ids: CommIds::decode(mad),
            param,
            starting_psn: mad.u24(20),
            ack_delay: mad.bits(26, 3, 5),
            ca_guid: mad.u64(28),
            ece: Ece {
                vendor_id: u32::from_be_bytes([0, high, middle, low]),
                options: mad.modifier,
            },
            private_data: PrivateData::new(mad.bytes(36, PRIVATE_LEN)),
        }
    }

    pub(super) fn encode(&self, mad: &mut Mad) {
        mad.modifier = self.ece.options;
        self.ids.encode(mad);
        mad.put_u24(12, self.param.qp_num);
        mad.put_u24(20, self.starting_psn);
        mad.put(24, &[self.param.responder_resources]);
        mad.put(25, &[self.param.initiator_depth]);
        mad.put_bits(26, 3, 5, self.ack_delay);
        mad.put_bits(26, 0, 1, self.param.flow_control.into());
        mad.put_bits(27, 5, 3, self.param.rnr_retry_count);
        mad.put_bits(27, 4, 1, self.param.srq.into());
        mad.put_u64(28, self.ca_guid);
        let [_, high, middle, low] = self.ece.vendor_id.to_be_bytes();
        for (at, byte) in [(15, high), (19, middle), (23, low)] {
            mad.put(at, &[byte]);
        }
        mad.put(36, self.private_data.as_slice());
    }
}
