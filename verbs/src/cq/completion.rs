//! Work completions: the results of posted requests.

use std::{fmt, io};

use ibverbs_sys as ffi;

use super::status::{WcError, WcOpcode, WcStatus};
use crate::{
    bounded::QpNum,
    error::{Error, Result},
    wr_id::{QpId, WrId},
};

/// `ibv_wc`—A completion, before its queue pair has taken it.
///
/// Handing a completion to [`QueuePair::complete`](crate::QueuePair::complete) returns the work.
/// Completions cannot be cloned: work completes once. If a completion is dropped instead, its work
/// is not lost: a later completion of the same queue returns it, or the drop of the queue pair
/// drops it.
///
/// The device sets few fields of a failed completion: the [status](Self::status), the numbers of the
/// queue pair, and [`vendor_err`](Self::vendor_err). The others are absent then, and those of a message
/// also in the completion of a request to send.
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

    /// Of `ibv_wc_flags`; 0 if the device has not set them.
    #[inline]
    pub(crate) fn flags(&self) -> u32 {
        match self.status() {
            // The latter ends the device's use of the buffer.
            WcStatus::SUCCESS | WcStatus::TM_RNDV_INCOMPLETE => self.wc.wc_flags,
            _ => 0,
        }
    }

    /// The C form of the completion, copied: of a received message.
    pub(crate) fn to_raw(&self, call: &'static str) -> Result<ffi::ibv_wc> {
        match self.of_message(*self.wc) {
            Some(wc) => Ok(wc),
            None => {
                let reason = "the completion is not of a received message";
                Err(Error::refused(call, io::ErrorKind::InvalidInput, reason))
            }
        }
    }

    /// Whether the request succeeded.
    #[inline]
    fn succeeded(&self) -> bool {
        self.status() == WcStatus::SUCCESS
    }

    /// A field of a received message. Assumption: the device sets few fields of a failed completion.
    #[inline]
    fn of_message<T>(&self, field: T) -> Option<T> {
        // The device may leave fields of an earlier message on completions of the send queue.
        (self.is_receive() && self.succeeded()).then_some(field)
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

    /// The number of the sending queue pair of a datagram. Meaningless on other transports. `None`
    /// without a message.
    #[inline]
    pub fn src_qp(&self) -> Option<QpNum> {
        self.of_message(QpNum::from_low_bits(self.wc.src_qp))
    }

    /// Whether the received data begin with a global route header: always, for a datagram on RoCE.
    #[doc(alias = "IBV_WC_GRH")]
    #[inline]
    pub fn has_grh(&self) -> bool {
        self.has_flag(ffi::ibv_wc_flags::IBV_WC_GRH)
    }

    /// The RKey invalidated by the message.
    ///
    /// Soft-RoCE of kernel 6.1 invalidates the key without reporting so: the completion has the
    /// wrong flag.
    #[doc(alias = "ibv_wc_read_invalidated_rkey")]
    #[doc(alias = "IBV_WC_WITH_INV")]
    #[inline]
    pub fn invalidated_rkey(&self) -> Option<u32> {
        self.has_flag(ffi::ibv_wc_flags::IBV_WC_WITH_INV)
            .then(|| self.wc.invalidated_rkey())
    }

    /// The sender's local identifier. Meaningless on RoCE. `None` without a message.
    #[inline]
    pub fn slid(&self) -> Option<u16> {
        self.of_message(self.wc.slid)
    }

    /// The service level of the message; `None` without one.
    #[inline]
    pub fn sl(&self) -> Option<u8> {
        self.of_message(self.wc.sl)
    }

    /// Whether a received message has a property of `ibv_wc_flags`.
    #[inline]
    fn has_flag(&self, flag: ffi::ibv_wc_flags) -> bool {
        self.of_message(self.wc.wc_flags)
            .is_some_and(|flags| flags & flag.0 != 0)
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
        if self.succeeded() {
            Ok(())
        } else {
            Err(failure(self.wc))
        }
    }

    /// The completed operation; `None` if the request failed.
    #[inline]
    pub fn opcode(&self) -> Option<WcOpcode> {
        self.succeeded().then_some(WcOpcode(self.wc.opcode.0))
    }

    /// The number of received or transferred bytes; 0 if the request failed.
    #[inline]
    pub fn byte_len(&self) -> usize {
        if self.succeeded() {
            self.wc.byte_len as usize
        } else {
            0
        }
    }

    /// The immediate data of the message, as the number given by the sender.
    #[doc(alias = "IBV_WC_WITH_IMM")]
    #[inline]
    pub fn imm_data(&self) -> Option<u32> {
        self.has_flag(ffi::ibv_wc_flags::IBV_WC_WITH_IMM)
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
