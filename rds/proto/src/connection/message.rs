//! Outgoing messages with their operations.

use std::{error, fmt};

use crate::{
    SocketId,
    wire::{Cookie, Extension, Extensions, MAX_MESSAGE, RESERVED_PORT},
};

/// An outgoing message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message<P> {
    /// The sending socket.
    pub owner: SocketId,
    /// The source port.
    pub from: u16,
    /// The destination port.
    pub to: u16,
    /// Content and operations.
    pub draft: Draft<P>,
}

/// Content of a message, and operations before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft<P> {
    /// Length in bytes.
    pub len: u32,
    /// The caller's handle to the bytes and to the memory of operations.
    pub payload: P,
    /// Memory exported to the receiver.
    pub cookie: Option<Cookie>,
    /// RDMA operation performed before the message.
    pub rdma: Option<Box<Rdma>>,
    /// Atomic operation performed before the message.
    pub atomic: Option<Box<Atomic>>,
    /// If empty, the message is not sent after its operations.
    pub silent: bool,
    /// A waiter depends on the completion. The message always requests an acknowledgement, and its
    /// last request is signaled.
    pub urgent: bool,
}

/// Direction of an RDMA operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the peer.
    Read,
    /// To the peer.
    Write,
}

/// An RDMA operation performed before a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rdma {
    /// Direction of the transfer.
    pub direction: Direction,
    /// Remote key.
    pub rkey: u32,
    /// Remote address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Number of send queue entries, posted together.
    pub requests: u32,
    /// The message waits for the completion of the operation.
    pub fence: bool,
    /// Notification options.
    pub report: Report,
}

/// An atomic operation on a 64-bit value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// Stores the second operand if the value equals the first.
    CompareSwap(u64, u64),
    /// Adds the operand.
    FetchAdd(u64),
}

/// An atomic operation performed before a message, and after its RDMA operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// Operation and operands.
    pub op: AtomicOp,
    /// Remote key.
    pub rkey: u32,
    /// Remote address, a multiple of 8.
    pub addr: u64,
    /// The message waits for the completion of the operation.
    pub fence: bool,
    /// Notification options.
    pub report: Report,
}

/// Notification options of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Report {
    /// User token, returned in the notification.
    pub token: u64,
    /// Notify the end of the operation in any case. Otherwise only failures are notified, and only
    /// if the socket enables `RDS_RECVERR`.
    pub notify: bool,
    /// Notify success after the peer's acknowledgement, instead of after the send completion.
    pub remote: bool,
}

/// Status of a finished operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Status {
    /// The operation was performed.
    Success = 0,
    /// The peer's device has rejected the operation.
    RemoteError = 1,
    /// The program has cancelled the message. The operation may have been performed.
    Cancelled = 2,
    /// The connection was lost. The operation may have been performed.
    Dropped = 3,
    /// Another error.
    OtherError = 4,
}

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The socket of the operation.
    pub owner: SocketId,
    /// User token of the operation.
    pub token: u64,
    /// Status of the operation.
    pub status: Status,
    /// The program has requested this notification; otherwise the socket must enable `RDS_RECVERR`.
    pub requested: bool,
}

/// How a message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageOutcome {
    /// The peer has acknowledged the message, or the message consisted of operations only.
    Done,
    /// The owner has cancelled the message.
    Cancelled,
    /// The connection was lost, and the message cannot be retransmitted.
    Dropped,
}

/// A finished message. If [urgent](Draft::urgent) or with operations, its memory is no longer
/// accessed by the device. Otherwise requests may be in flight, and the caller keeps their memory
/// until completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished<P> {
    /// Sequence number.
    pub sequence: u64,
    /// The message.
    pub message: Message<P>,
    /// How the message ended.
    pub outcome: MessageOutcome,
    /// Status of the first failed operation.
    pub failed: Option<Status>,
}

/// Why a message is rejected.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadMessage {
    /// A reserved port: 1, or 0 as source.
    Port(u16),
    /// The message or its RDMA operation exceeds 1 MiB.
    Len(u32),
}

/// A rejected message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused<P> {
    /// The reason.
    pub error: BadMessage,
    /// The message.
    pub draft: Draft<P>,
}

impl<P> Message<P> {
    pub(super) fn check(&self) -> Result<(), BadMessage> {
        for port in [self.from, self.to] {
            if port == RESERVED_PORT {
                return Err(BadMessage::Port(port));
            }
        }
        if self.from == 0 {
            return Err(BadMessage::Port(0));
        }
        let longest = self.draft.len.max(self.draft.moved());
        if longest > MAX_MESSAGE {
            return Err(BadMessage::Len(longest));
        }
        Ok(())
    }
}

impl<P> Draft<P> {
    /// A draft without operations.
    pub fn new(len: u32, payload: P) -> Self {
        Self {
            len,
            payload,
            cookie: None,
            rdma: None,
            atomic: None,
            silent: false,
            urgent: false,
        }
    }

    /// Whether only the operations are posted.
    pub fn is_silent(&self) -> bool {
        self.silent && self.len == 0 && self.cookie.is_none() && self.has_operation()
    }

    /// Number of bytes transferred by the RDMA operation.
    pub(crate) fn moved(&self) -> u32 {
        self.rdma.as_ref().map_or(0, |rdma| rdma.len)
    }

    /// Whether the acknowledgement of the peer suffices to finish the message, without a send
    /// completion.
    pub(super) fn is_plain(&self) -> bool {
        !self.urgent && !self.has_operation()
    }

    pub(super) fn has_operation(&self) -> bool {
        self.rdma.is_some() || self.atomic.is_some()
    }

    pub(super) fn fence(&self) -> bool {
        let rdma = self.rdma.as_ref().is_some_and(|rdma| rdma.fence);
        let atomic = self.atomic.as_ref().is_some_and(|atomic| atomic.fence);
        rdma || atomic
    }

    pub(super) fn extensions(&self) -> Extensions {
        let mut extensions = Extensions::NONE;
        let extension = match (&self.rdma, self.cookie) {
            (Some(rdma), _) => Extension::Rdma(rdma.rkey),
            (None, Some(cookie)) => Extension::Destination(cookie),
            (None, None) => return extensions,
        };
        let added = extensions.add(extension);
        debug_assert!(added.is_ok(), "it is the only one");
        extensions
    }
}

impl fmt::Display for BadMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(port) => write!(f, "port {port} is reserved; use another one"),
            Self::Len(len) => write!(f, "{len} bytes exceed the limit of {MAX_MESSAGE}"),
        }
    }
}

/// Reads as [`Display`](fmt::Display): `unwrap` and `fn main() -> Result` print it.
impl fmt::Debug for BadMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl error::Error for BadMessage {}
