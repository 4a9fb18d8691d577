//! Status and opcode of a completed request.

use std::{fmt, io};

use ibverbs_sys::{ibv_wc_opcode, ibv_wc_status};

use super::attempts::Attempts;
use crate::{
    error::{COMPLETION, Error},
    hint,
};

/// `ibv_wc_status`—The result of a request.
///
/// The known values are constants; values unknown to this crate are preserved.
///
/// ```
/// use verbs::WcStatus;
/// assert_eq!(format!("{:?}", WcStatus::RNR_RETRY_EXC_ERR), "RNR_RETRY_EXC_ERR");
/// assert_eq!(format!("{:?}", WcStatus(77)), "WcStatus(77)");
/// ```
///
/// # References
/// [ibv_poll_cq(3)](https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html), InfiniBand Architecture
/// Specification 1.4, section 11.6.2
#[doc(alias = "ibv_wc_status")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct WcStatus(
    /// C's number for the value.
    pub u32,
);

/// `ibv_wc_opcode`—The operation of a completed request. Unknown values are preserved.
#[doc(alias = "ibv_wc_opcode")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct WcOpcode(
    /// C's number for the value.
    pub u32,
);

macro_rules! statuses {
    ($($(#[$alias:meta])* $name:ident = $raw:ident, $meaning:literal;)*) => {
        impl WcStatus {
            $(
                $(#[$alias])*
                #[doc = concat!(stringify!($raw), "—", $meaning)]
                pub const $name: Self = Self(ibv_wc_status::$raw.0);
            )*

            /// `ibv_wc_status_str`—The usual meaning of the status, in a few words.
            #[doc(alias = "ibv_wc_status_str")]
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning,)*
                    _ => "a status this crate does not know",
                }
            }
        }

        impl fmt::Debug for WcStatus {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$name => f.write_str(stringify!($name)),)*
                    Self(other) => write!(f, "WcStatus({other})"),
                }
            }
        }
    };
}

statuses! {
    #[doc(alias = "IBV_WC_SUCCESS")]
    SUCCESS = IBV_WC_SUCCESS, "success";
    #[doc(alias = "IBV_WC_LOC_LEN_ERR")]
    LOC_LEN_ERR = IBV_WC_LOC_LEN_ERR, "the message is longer than the receive, or than the device allows";
    #[doc(alias = "IBV_WC_LOC_QP_OP_ERR")]
    LOC_QP_OP_ERR = IBV_WC_LOC_QP_OP_ERR, "the queue pair could not carry out the request";
    #[doc(alias = "IBV_WC_LOC_EEC_OP_ERR")]
    LOC_EEC_OP_ERR = IBV_WC_LOC_EEC_OP_ERR, "the end-to-end context could not carry out the request";
    #[doc(alias = "IBV_WC_LOC_PROT_ERR")]
    LOC_PROT_ERR = IBV_WC_LOC_PROT_ERR, "a local buffer is registered in another protection domain, or not for what was asked";
    #[doc(alias = "IBV_WC_WR_FLUSH_ERR")]
    WR_FLUSH_ERR = IBV_WC_WR_FLUSH_ERR, "the queue pair went to the error state before the request was done";
    #[doc(alias = "IBV_WC_MW_BIND_ERR")]
    MW_BIND_ERR = IBV_WC_MW_BIND_ERR, "the memory window could not be bound";
    #[doc(alias = "IBV_WC_BAD_RESP_ERR")]
    BAD_RESP_ERR = IBV_WC_BAD_RESP_ERR, "the peer answered with an unexpected packet";
    #[doc(alias = "IBV_WC_LOC_ACCESS_ERR")]
    LOC_ACCESS_ERR = IBV_WC_LOC_ACCESS_ERR, "data of a peer's RDMA write could not be stored here";
    #[doc(alias = "IBV_WC_REM_INV_REQ_ERR")]
    REM_INV_REQ_ERR = IBV_WC_REM_INV_REQ_ERR, "the message is longer than the receive for it, or no operation of the queue pair";
    #[doc(alias = "IBV_WC_REM_ACCESS_ERR")]
    REM_ACCESS_ERR = IBV_WC_REM_ACCESS_ERR, "the peer refused access: wrong RKey, address, length or rights";
    #[doc(alias = "IBV_WC_REM_OP_ERR")]
    REM_OP_ERR = IBV_WC_REM_OP_ERR, "the peer could not carry out its part";
    #[doc(alias = "IBV_WC_RETRY_EXC_ERR")]
    RETRY_EXC_ERR = IBV_WC_RETRY_EXC_ERR, "the peer did not acknowledge the request, and no retry is left";
    #[doc(alias = "IBV_WC_RNR_RETRY_EXC_ERR")]
    RNR_RETRY_EXC_ERR = IBV_WC_RNR_RETRY_EXC_ERR, "the peer had no receive posted, and no retry is left";
    #[doc(alias = "IBV_WC_LOC_RDD_VIOL_ERR")]
    LOC_RDD_VIOL_ERR = IBV_WC_LOC_RDD_VIOL_ERR, "the reliable datagram domains do not match";
    #[doc(alias = "IBV_WC_REM_INV_RD_REQ_ERR")]
    REM_INV_RD_REQ_ERR = IBV_WC_REM_INV_RD_REQ_ERR, "the peer found the reliable datagram invalid";
    #[doc(alias = "IBV_WC_REM_ABORT_ERR")]
    REM_ABORT_ERR = IBV_WC_REM_ABORT_ERR, "the peer aborted the request";
    #[doc(alias = "IBV_WC_INV_EECN_ERR")]
    INV_EECN_ERR = IBV_WC_INV_EECN_ERR, "the end-to-end context number is invalid";
    #[doc(alias = "IBV_WC_INV_EEC_STATE_ERR")]
    INV_EEC_STATE_ERR = IBV_WC_INV_EEC_STATE_ERR, "the end-to-end context is in the wrong state";
    #[doc(alias = "IBV_WC_FATAL_ERR")]
    FATAL_ERR = IBV_WC_FATAL_ERR, "the device has failed";
    #[doc(alias = "IBV_WC_RESP_TIMEOUT_ERR")]
    RESP_TIMEOUT_ERR = IBV_WC_RESP_TIMEOUT_ERR, "the peer did not answer in time";
    #[doc(alias = "IBV_WC_GENERAL_ERR")]
    GENERAL_ERR = IBV_WC_GENERAL_ERR, "an error without a status of its own";
    #[doc(alias = "IBV_WC_TM_ERR")]
    TM_ERR = IBV_WC_TM_ERR, "tag matching failed";
    #[doc(alias = "IBV_WC_TM_RNDV_INCOMPLETE")]
    TM_RNDV_INCOMPLETE = IBV_WC_TM_RNDV_INCOMPLETE, "the tag-matched message needs a rendezvous in software";
}

impl WcStatus {
    /// Whether the retries of the request are exhausted: the peer did not
    /// [acknowledge](Self::RETRY_EXC_ERR) the request, or had [no receive](Self::RNR_RETRY_EXC_ERR).
    pub fn is_end_of_retries(self) -> bool {
        matches!(self, Self::RETRY_EXC_ERR | Self::RNR_RETRY_EXC_ERR)
    }
}

macro_rules! opcodes {
    ($($(#[$alias:meta])* $name:ident = $raw:ident, $meaning:literal;)*) => {
        impl WcOpcode {
            $(
                $(#[$alias])*
                #[doc = concat!(stringify!($raw), "—", $meaning)]
                pub const $name: Self = Self(ibv_wc_opcode::$raw.0);
            )*
        }

        impl fmt::Debug for WcOpcode {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$name => f.write_str(stringify!($name)),)*
                    Self(other) => write!(f, "WcOpcode({other})"),
                }
            }
        }
    };
}

opcodes! {
    #[doc(alias = "IBV_WC_SEND")]
    SEND = IBV_WC_SEND, "a send";
    #[doc(alias = "IBV_WC_RDMA_WRITE")]
    RDMA_WRITE = IBV_WC_RDMA_WRITE, "an RDMA write";
    #[doc(alias = "IBV_WC_RDMA_READ")]
    RDMA_READ = IBV_WC_RDMA_READ, "an RDMA read";
    #[doc(alias = "IBV_WC_COMP_SWAP")]
    COMP_SWAP = IBV_WC_COMP_SWAP, "a compare-and-swap";
    #[doc(alias = "IBV_WC_FETCH_ADD")]
    FETCH_ADD = IBV_WC_FETCH_ADD, "a fetch-and-add";
    #[doc(alias = "IBV_WC_BIND_MW")]
    BIND_MW = IBV_WC_BIND_MW, "the binding of a memory window";
    #[doc(alias = "IBV_WC_LOCAL_INV")]
    LOCAL_INV = IBV_WC_LOCAL_INV, "a local invalidation";
    #[doc(alias = "IBV_WC_TSO")]
    TSO = IBV_WC_TSO, "a send with TCP segmentation";
    #[doc(alias = "IBV_WC_FLUSH")]
    FLUSH = IBV_WC_FLUSH, "a flush of the peer's memory";
    #[doc(alias = "IBV_WC_ATOMIC_WRITE")]
    ATOMIC_WRITE = IBV_WC_ATOMIC_WRITE, "an atomic write of eight bytes";
    #[doc(alias = "IBV_WC_RECV")]
    RECV = IBV_WC_RECV, "a receive";
    #[doc(alias = "IBV_WC_RECV_RDMA_WITH_IMM")]
    RECV_RDMA_WITH_IMM = IBV_WC_RECV_RDMA_WITH_IMM, "the immediate data of a peer's RDMA write";
    #[doc(alias = "IBV_WC_TM_ADD")]
    TM_ADD = IBV_WC_TM_ADD, "a tagged buffer added to the list";
    #[doc(alias = "IBV_WC_TM_DEL")]
    TM_DEL = IBV_WC_TM_DEL, "a tagged buffer removed from the list";
    #[doc(alias = "IBV_WC_TM_SYNC")]
    TM_SYNC = IBV_WC_TM_SYNC, "a report of the unexpected messages to the device";
    #[doc(alias = "IBV_WC_TM_RECV")]
    TM_RECV = IBV_WC_TM_RECV, "a message with a tag";
    #[doc(alias = "IBV_WC_TM_NO_TAG")]
    TM_NO_TAG = IBV_WC_TM_NO_TAG, "a message without a tag, to a tag-matching queue";
}

/// A posted request whose completion reports a failure.
///
/// `?` converts into an [`Error`], where [`of`](Self::of) finds it again.
///
/// ```
/// use verbs::{Error, WcStatus, cq::WcError};
/// let failed = WcError::new(WcStatus::WR_FLUSH_ERR, 0x81);
/// let text = "WR_FLUSH_ERR: the queue pair went to the error state before the request was done \
///             (vendor error 0x81); an earlier completion";
/// assert!(failed.to_string().starts_with(text));
/// assert_eq!(Error::from(failed).to_string(), format!("a posted request failed: {failed}"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct WcError {
    /// The status of the request.
    pub status: WcStatus,
    /// The device maker's own code.
    pub vendor_err: u32,
    /// Retries of the queue pair, if exhausted and known.
    pub attempts: Option<Attempts>,
}

impl WcError {
    /// A failure with this status and the device maker's code.
    pub const fn new(status: WcStatus, vendor_err: u32) -> Self {
        Self {
            status,
            vendor_err,
            attempts: None,
        }
    }

    /// Adds the retries of the queue pair. The text of the failure shows them if the status is
    /// [`RETRY_EXC_ERR`](WcStatus::RETRY_EXC_ERR) or
    /// [`RNR_RETRY_EXC_ERR`](WcStatus::RNR_RETRY_EXC_ERR).
    ///
    /// ```no_run
    /// # use verbs::{Rts, cq::WcError};
    /// # fn f(qp: &verbs::QueuePair<verbs::Rc, Rts>, failed: WcError) -> verbs::Result<()> {
    /// eprintln!("{}", failed.with_attempts(qp.query()?.attempts()));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn with_attempts(mut self, attempts: Attempts) -> Self {
        self.attempts = Some(attempts);
        self
    }

    /// The failed completion behind an error.
    ///
    /// ```
    /// use verbs::{Error, WcStatus, cq::WcError};
    /// let failed = WcError::new(WcStatus::RNR_RETRY_EXC_ERR, 0);
    /// assert_eq!(WcError::of(&Error::from(failed)), Some(&failed));
    /// assert_eq!(WcError::of(&Error::from_errno("ibv_poll_cq", 5)), None);
    /// ```
    pub fn of(error: &Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// The nearest portable kind of error.
    pub fn kind(&self) -> io::ErrorKind {
        match self.status {
            WcStatus::RETRY_EXC_ERR | WcStatus::RNR_RETRY_EXC_ERR | WcStatus::RESP_TIMEOUT_ERR => {
                io::ErrorKind::TimedOut
            }
            WcStatus::WR_FLUSH_ERR | WcStatus::REM_ABORT_ERR => io::ErrorKind::ConnectionAborted,
            WcStatus::LOC_LEN_ERR | WcStatus::REM_INV_REQ_ERR => io::ErrorKind::InvalidInput,
            WcStatus::LOC_PROT_ERR | WcStatus::LOC_ACCESS_ERR | WcStatus::REM_ACCESS_ERR => {
                io::ErrorKind::PermissionDenied
            }
            _ => io::ErrorKind::Other,
        }
    }
}

impl From<WcError> for Error {
    #[cold]
    fn from(failed: WcError) -> Self {
        Self::refused(COMPLETION, failed.kind(), failed)
    }
}

impl From<WcError> for io::Error {
    #[cold]
    fn from(failed: WcError) -> Self {
        Error::from(failed).into()
    }
}

impl fmt::Debug for WcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for WcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.status, self.status.meaning())?;
        if let Some(attempts) = &self.attempts
            && self.status.is_end_of_retries()
        {
            f.write_str(" (")?;
            attempts.write(self.status, f)?;
            f.write_str(")")?;
        }
        if self.vendor_err != 0 {
            write!(f, " (vendor error {:#x})", self.vendor_err)?;
        }
        match hint::of_status(self.status) {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for WcError {}
