//! Status and opcode of a completed request.

use std::{fmt, io};

use ibverbs_sys::{ibv_wc_opcode, ibv_wc_status};

use crate::error::{COMPLETION, Error};

/// `ibv_wc_status`—How a request ended.
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
    ($($name:ident = $raw:ident, $meaning:literal;)*) => {
        impl WcStatus {
            $(
                #[doc = concat!(stringify!($raw), "—", $meaning)]
                pub const $name: Self = Self(ibv_wc_status::$raw.0);
            )*

            /// The usual meaning of the status, in a few words.
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
    SUCCESS = IBV_WC_SUCCESS, "success";
    LOC_LEN_ERR = IBV_WC_LOC_LEN_ERR, "the message is longer than the receive, or than the device allows";
    LOC_QP_OP_ERR = IBV_WC_LOC_QP_OP_ERR, "the queue pair could not carry out the request";
    LOC_EEC_OP_ERR = IBV_WC_LOC_EEC_OP_ERR, "the end-to-end context could not carry out the request";
    LOC_PROT_ERR = IBV_WC_LOC_PROT_ERR, "a local buffer is not registered for this operation";
    WR_FLUSH_ERR = IBV_WC_WR_FLUSH_ERR, "the queue pair went to the error state before the request was done";
    MW_BIND_ERR = IBV_WC_MW_BIND_ERR, "the memory window could not be bound";
    BAD_RESP_ERR = IBV_WC_BAD_RESP_ERR, "the peer answered with an unexpected packet";
    LOC_ACCESS_ERR = IBV_WC_LOC_ACCESS_ERR, "data of a peer's RDMA write could not be stored here";
    REM_INV_REQ_ERR = IBV_WC_REM_INV_REQ_ERR, "the peer found the message invalid, for example longer than its receive";
    REM_ACCESS_ERR = IBV_WC_REM_ACCESS_ERR, "the peer refused access: wrong RKey, address, length or rights";
    REM_OP_ERR = IBV_WC_REM_OP_ERR, "the peer could not carry out its part";
    RETRY_EXC_ERR = IBV_WC_RETRY_EXC_ERR, "the peer did not acknowledge within the retry limit";
    RNR_RETRY_EXC_ERR = IBV_WC_RNR_RETRY_EXC_ERR, "the peer had no receive posted within the retry limit";
    LOC_RDD_VIOL_ERR = IBV_WC_LOC_RDD_VIOL_ERR, "the reliable datagram domains do not match";
    REM_INV_RD_REQ_ERR = IBV_WC_REM_INV_RD_REQ_ERR, "the peer found the reliable datagram invalid";
    REM_ABORT_ERR = IBV_WC_REM_ABORT_ERR, "the peer aborted the request";
    INV_EECN_ERR = IBV_WC_INV_EECN_ERR, "the end-to-end context number is invalid";
    INV_EEC_STATE_ERR = IBV_WC_INV_EEC_STATE_ERR, "the end-to-end context is in the wrong state";
    FATAL_ERR = IBV_WC_FATAL_ERR, "the device has failed";
    RESP_TIMEOUT_ERR = IBV_WC_RESP_TIMEOUT_ERR, "the peer did not answer in time";
    GENERAL_ERR = IBV_WC_GENERAL_ERR, "an error without a status of its own";
    TM_ERR = IBV_WC_TM_ERR, "tag matching failed";
    TM_RNDV_INCOMPLETE = IBV_WC_TM_RNDV_INCOMPLETE, "the tag-matched message needs a rendezvous in software";
}

macro_rules! opcodes {
    ($($name:ident = $raw:ident, $meaning:literal;)*) => {
        impl WcOpcode {
            $(
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
    SEND = IBV_WC_SEND, "a send";
    RDMA_WRITE = IBV_WC_RDMA_WRITE, "an RDMA write";
    RDMA_READ = IBV_WC_RDMA_READ, "an RDMA read";
    COMP_SWAP = IBV_WC_COMP_SWAP, "a compare-and-swap";
    FETCH_ADD = IBV_WC_FETCH_ADD, "a fetch-and-add";
    BIND_MW = IBV_WC_BIND_MW, "the binding of a memory window";
    LOCAL_INV = IBV_WC_LOCAL_INV, "a local invalidation";
    TSO = IBV_WC_TSO, "a send with TCP segmentation";
    RECV = IBV_WC_RECV, "a receive";
    RECV_RDMA_WITH_IMM = IBV_WC_RECV_RDMA_WITH_IMM, "the immediate data of a peer's RDMA write";
    TM_ADD = IBV_WC_TM_ADD, "a tagged buffer added to the list";
    TM_DEL = IBV_WC_TM_DEL, "a tagged buffer removed from the list";
    TM_SYNC = IBV_WC_TM_SYNC, "a report of the unexpected messages to the device";
    TM_RECV = IBV_WC_TM_RECV, "a message with a tag";
    TM_NO_TAG = IBV_WC_TM_NO_TAG, "a message without a tag, to a tag-matching queue";
}

/// A posted request whose completion reports a failure.
///
/// `?` converts into an [`Error`], with this as the [source](std::error::Error::source).
///
/// ```
/// use verbs::{Error, WcError, WcStatus};
/// let failed = WcError::new(WcStatus::WR_FLUSH_ERR, 0x81);
/// let text = "WR_FLUSH_ERR: the queue pair went to the error state before the request was done \
///             (vendor error 0x81)";
/// assert_eq!(failed.to_string(), text);
/// assert_eq!(Error::from(failed).to_string(), format!("a posted request failed: {text}"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct WcError {
    /// The status of the request.
    pub status: WcStatus,
    /// The device maker's own code.
    pub vendor_err: u32,
}

impl WcError {
    /// A failure with this status and the device maker's code.
    pub const fn new(status: WcStatus, vendor_err: u32) -> Self {
        Self { status, vendor_err }
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
        if self.vendor_err != 0 {
            write!(f, " (vendor error {:#x})", self.vendor_err)?;
        }
        Ok(())
    }
}

impl std::error::Error for WcError {}
