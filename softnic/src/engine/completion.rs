//! Work completions.

use std::{net::IpAddr, num::NonZero, time::Duration};

use super::ids::SrqId;

/// Status of a request; the values of `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Success.
    Success = 0,
    /// The message exceeds the receive, or the maximum of the queue pair.
    LocalLength = 1,
    /// The queue pair cannot execute the request.
    LocalOperation = 2,
    /// A local key does not allow the access.
    LocalProtection = 4,
    /// The queue pair was in the error state.
    Flushed = 5,
    /// The window cannot be bound.
    Bind = 6,
    /// The peer's answer does not match the request.
    BadResponse = 7,
    /// The peer's request does not fit the memory of the receive.
    LocalAccess = 8,
    /// The peer refused the request as invalid.
    RemoteInvalidRequest = 9,
    /// The remote key does not allow the access.
    RemoteAccess = 10,
    /// The peer failed.
    RemoteOperation = 11,
    /// The peer has not acknowledged in time, and no retry is left.
    RetryExceeded = 12,
    /// The peer had no receive until all RNR retries were used.
    RnrRetryExceeded = 13,
    /// The destination of a reliable datagram does not exist, or takes no requests.
    RemoteDestination = 15,
    /// The destination of a reliable datagram has not answered in time, and no retry is left.
    ResponseTimeout = 20,
}

impl Status {
    /// The value of `ibv_wc_status`.
    pub fn code(self) -> u32 {
        self as u32
    }
}

/// Operation of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionOp {
    /// A message was sent.
    Send,
    /// An RDMA write was done.
    Write,
    /// An RDMA read was done.
    Read,
    /// An atomic comparison and exchange was done.
    CompareSwap,
    /// An atomic addition was done.
    FetchAdd,
    /// Earlier writes were flushed.
    Flush,
    /// An atomic write was done.
    AtomicWrite,
    /// A window was bound.
    Bind,
    /// A window was unbound.
    LocalInvalidate,
    /// A message was received.
    Receive,
    /// An RDMA write with immediate data was received.
    ReceiveWrite,
}

/// Network header of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkHeader {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// `wr_id` of the request.
    pub wr_id: u64,
    /// Result.
    pub status: Status,
    /// Operation; valid only for successful requests.
    pub op: CompletionOp,
    /// Bytes received, read or written, including the 40 bytes before a datagram.
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Key invalidated by the peer.
    pub invalidated: Option<u32>,
    /// Number of the queue pair.
    pub qp: u32,
    /// Number of the sender's queue pair, for datagrams.
    pub src_qp: u32,
    /// Address of the sender, for reliable datagrams.
    pub src: Option<IpAddr>,
    /// Header at the end of the first 40 bytes of the receive (GRH), for datagrams.
    pub header: Option<NetworkHeader>,
    /// Time of the completion.
    pub time: Duration,
    /// Number of requests of the queue that have ended since the completion before: this one, and unsignaled ones before it.
    pub(crate) ended: u32,
    /// Number of the bytes that the poll of the completion writes.
    pub(super) late_bytes: Option<NonZero<u32>>,
    /// Shared receive queue of the request.
    pub(super) srq: Option<SrqId>,
}

impl Completion {
    /// Shared receive queue of the request.
    pub(crate) fn shared_queue(&self) -> Option<SrqId> {
        self.srq
    }

    /// Whether the request is a receive.
    pub(crate) fn is_receive(&self) -> bool {
        matches!(self.op, CompletionOp::Receive | CompletionOp::ReceiveWrite)
    }
}
