//! Work completions: the results of posted requests.

use std::fmt;

use ibverbs_sys as ffi;

use super::status::{WcError, WcOpcode, WcStatus};
use crate::{
    bounded::QpNum,
    wr_id::{QpId, WrId},
};

/// `ibv_wc`—A completion, before its queue pair has taken it.
///
/// Handing a completion to [`QueuePair::complete`](crate::QueuePair::complete) returns the work.
/// Completions cannot be cloned: work completes once. If a completion is dropped instead, its work
/// is not lost: a later completion of the same queue returns it, or the drop of the queue pair
/// drops it.
///
/// # References
/// [ibv_poll_cq(3)](https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html)
#[doc(alias = "ibv_wc")]
pub struct WorkCompletion<'p> {
    wc: &'p ffi::ibv_wc,
}

impl<'p> WorkCompletion<'p> {
    #[inline]
    pub(super) fn new(wc: &'p ffi::ibv_wc) -> Self {
        Self { wc }
    }

    #[inline]
    pub(crate) fn wr_id(&self) -> WrId {
        WrId(self.wc.wr_id)
    }

    /// Of `ibv_wc_flags`.
    #[inline]
    pub(crate) fn flags(&self) -> u32 {
        self.wc.wc_flags
    }

    /// The C form of the completion, copied.
    pub(crate) fn to_raw(&self) -> ffi::ibv_wc {
        *self.wc
    }

    /// The queue pair of the completed work, as named by [`QueuePair::id`](crate::QueuePair::id).
    #[inline]
    pub fn qp_id(&self) -> QpId {
        self.wr_id().qp()
    }

    /// Whether the completed request is a receive, rather than a request of a send queue.
    #[inline]
    pub fn is_receive(&self) -> bool {
        self.wr_id().is_receive()
    }

    /// The status of the request.
    #[inline]
    pub fn status(&self) -> WcStatus {
        WcStatus(self.wc.status.0)
    }

    /// The number of the local queue pair.
    #[inline]
    pub fn qp_num(&self) -> QpNum {
        QpNum::from_low_bits(self.wc.qp_num)
    }

    /// The number of the sending queue pair of a datagram. Meaningless on other transports.
    #[inline]
    pub fn src_qp(&self) -> QpNum {
        QpNum::from_low_bits(self.wc.src_qp)
    }

    /// Whether the received data begin with a global route header: always, for a datagram on RoCE.
    #[doc(alias = "IBV_WC_GRH")]
    #[inline]
    pub fn has_grh(&self) -> bool {
        self.is_receive() && self.wc.wc_flags & ffi::ibv_wc_flags::IBV_WC_GRH.0 != 0
    }

    /// The RKey invalidated by the message.
    ///
    /// Soft-RoCE of kernel 6.1 invalidates the key without reporting so: the completion has the
    /// wrong flag.
    #[doc(alias = "ibv_wc_read_invalidated_rkey")]
    #[doc(alias = "IBV_WC_WITH_INV")]
    #[inline]
    pub fn invalidated_rkey(&self) -> Option<u32> {
        let with_inv = ffi::ibv_wc_flags::IBV_WC_WITH_INV;
        (self.is_receive() && self.wc.wc_flags & with_inv.0 != 0)
            .then(|| self.wc.invalidated_rkey())
    }

    /// The sender's local identifier. Meaningless on RoCE.
    #[inline]
    pub fn slid(&self) -> u16 {
        self.wc.slid
    }

    /// The service level of the message.
    #[inline]
    pub fn sl(&self) -> u8 {
        self.wc.sl
    }

    /// The device maker's own code for a failure.
    #[inline]
    pub fn vendor_err(&self) -> u32 {
        self.wc.vendor_err
    }

    /// Whether the request succeeded.
    ///
    /// # Errors
    /// The status as a result; the error explains the status.
    #[inline]
    pub fn ok(&self) -> Result<(), WcError> {
        if self.status() == WcStatus::SUCCESS {
            Ok(())
        } else {
            Err(failure(self.wc))
        }
    }

    /// The completed operation. Meaningless if the request failed.
    #[inline]
    pub fn opcode(&self) -> WcOpcode {
        WcOpcode(self.wc.opcode.0)
    }

    /// The number of received or transferred bytes. Meaningless if the request failed.
    #[inline]
    pub fn byte_len(&self) -> usize {
        self.wc.byte_len as usize
    }

    /// The immediate data of the message, as the number given by the sender.
    #[doc(alias = "IBV_WC_WITH_IMM")]
    #[inline]
    pub fn imm_data(&self) -> Option<u32> {
        let with_imm = ffi::ibv_wc_flags::IBV_WC_WITH_IMM;
        // The device may leave flags of an earlier message on completions of the send queue.
        (self.is_receive() && self.wc.wc_flags & with_imm.0 != 0)
            .then(|| self.wc.imm_data().to_ne())
    }
}

/// The error of a failed request. Out of line, so that success costs only a comparison.
#[cold]
#[inline(never)]
fn failure(wc: &ffi::ibv_wc) -> WcError {
    WcError::new(WcStatus(wc.status.0), wc.vendor_err)
}

impl fmt::Debug for WorkCompletion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkCompletion")
            .field("qp_id", &self.qp_id())
            .field("receive", &self.is_receive())
            .field("status", &self.status())
            .field("opcode", &self.opcode())
            .field("byte_len", &self.byte_len())
            .finish()
    }
}
