//! Completions, as programs poll them.

/// Result of a request; the values are those of `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Success = 0,
    /// The message exceeds the receive, or what the queue pair can send.
    LocalLength = 1,
    /// The queue pair cannot carry the request out.
    LocalOperation = 2,
    /// A local key does not allow the access.
    LocalProtection = 4,
    /// The queue pair was in the error state.
    Flushed = 5,
    /// A window cannot be bound so.
    Bind = 6,
    /// The peer's answer does not fit the request.
    BadResponse = 7,
    /// The peer's request does not fit the receive's memory.
    LocalAccess = 8,
    /// The peer does not take the request.
    RemoteInvalidRequest = 9,
    /// The remote key does not allow the access.
    RemoteAccess = 10,
    /// The peer failed.
    RemoteOperation = 11,
    /// The peer has not acknowledged in time, and no retry is left.
    RetryExceeded = 12,
    /// The peer has had no receive for too long.
    RnrRetryExceeded = 13,
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
    /// A window was bound.
    Bind,
    /// A window was unbound.
    LocalInvalidate,
    /// A message was received.
    Receive,
    /// An RDMA write with immediate data was received.
    ReceiveWrite,
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Of the request.
    pub wr_id: u64,
    /// Result.
    pub status: Status,
    /// Operation; without meaning unless the request has succeeded.
    pub op: CompletionOp,
    /// Bytes received, read or written, the 40 bytes before a datagram included.
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Key that the peer has invalidated.
    pub invalidated: Option<u32>,
    /// Number of the queue pair.
    pub qp: u32,
    /// Number of the sender's queue pair, of a datagram.
    pub src_qp: u32,
    /// Whether the first 40 bytes of the receive are a header (GRH).
    pub has_grh: bool,
}
