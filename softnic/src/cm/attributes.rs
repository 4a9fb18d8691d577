//! Attributes for the transitions of a program's queue pair.

use super::{
    connection::{Connection, Phase},
    datagram::QKEY,
    error::CmError,
    id::{IdNum, IdState},
    manager::Manager,
};
use crate::engine::{Access, AttributeMask, QpAttributes, QpKind, State as QpState};

const UNKNOWN: CmError = CmError::Invalid("the attributes of that state are not known yet");

impl Manager {
    /// The attributes for a transition to a state, and the mask of valid attributes.
    ///
    /// # Errors
    /// - [`CmError::Invalid`]: the attributes are unknown in the identifier's state, or the connection has ended.
    pub fn qp_attributes(
        &self,
        num: IdNum,
        to: QpState,
    ) -> Result<(QpAttributes, AttributeMask), CmError> {
        let id = self.ids.get(&num).ok_or(CmError::NotFound(num))?;
        match &id.state {
            IdState::Connection(connection) => {
                let (mut attributes, mask) = connection.qp_attributes(to)?;
                // The option counts at any time, also on the passive side.
                if let Some(timeout) = id.options.ack_timeout {
                    attributes.timeout = timeout;
                }
                Ok((attributes, mask))
            }
            _ if id.has_device() => {
                let mut attributes = QpAttributes::default();
                let mut mask =
                    AttributeMask::STATE | AttributeMask::PKEY_INDEX | AttributeMask::PORT;
                if id.space.kind() == QpKind::Ud {
                    attributes.qkey = QKEY;
                    mask = mask | AttributeMask::QKEY;
                } else {
                    mask = mask | AttributeMask::ACCESS;
                }
                Ok((attributes, mask))
            }
            _ => Err(CmError::Invalid("the identifier is not bound to a device")),
        }
    }
}

impl Connection {
    fn qp_attributes(&self, to: QpState) -> Result<(QpAttributes, AttributeMask), CmError> {
        let has_peer = match self.phase {
            Phase::RequestSent => false,
            Phase::ReplyReceived
            | Phase::RequestReceived
            | Phase::ReplySent
            | Phase::Established => true,
            _ => return Err(CmError::Invalid("the connection has ended")),
        };
        let mut access = Access::REMOTE_WRITE;
        if self.responder_resources > 0 {
            access = access | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            access = access | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
        }
        let attributes = QpAttributes {
            access,
            path: Some(self.path),
            mtu: 128 << self.mtu.clamp(1, 5),
            dest_qp: self.dest_qp,
            rq_psn: self.rq_psn,
            sq_psn: self.sq_psn,
            timeout: self.ack_timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            max_rd_atomic: self.initiator_depth,
            max_dest_rd_atomic: self.responder_resources,
            ..QpAttributes::default()
        };
        let mask = match to {
            QpState::Init => {
                AttributeMask::ACCESS | AttributeMask::PKEY_INDEX | AttributeMask::PORT
            }
            QpState::Rtr if has_peer => {
                AttributeMask::PATH
                    | AttributeMask::MTU
                    | AttributeMask::DEST_QP
                    | AttributeMask::RQ_PSN
                    | AttributeMask::MAX_DEST_RD_ATOMIC
                    | AttributeMask::MIN_RNR_TIMER
            }
            QpState::Rts if has_peer => {
                AttributeMask::SQ_PSN
                    | AttributeMask::TIMEOUT
                    | AttributeMask::RETRY_COUNT
                    | AttributeMask::RNR_RETRY
                    | AttributeMask::MAX_RD_ATOMIC
            }
            _ => return Err(UNKNOWN),
        };
        Ok((attributes, AttributeMask::STATE | mask))
    }
}
