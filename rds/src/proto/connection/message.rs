//! Messages on their way out, and what goes with them.

use std::{error, fmt};

use crate::proto::{
    SocketId,
    wire::{Cookie, Extension, Extensions, MAX_MESSAGE, RESERVED_PORT},
};

/// A message to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message<P> {
    /// Whose it is.
    pub owner: SocketId,
    /// The port it comes from.
    pub from: u16,
    /// The port it goes to.
    pub to: u16,
    /// What is sent.
    pub draft: Draft<P>,
}

/// What is in a message, and goes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft<P> {
    /// The number of bytes.
    pub len: u32,
    /// What the caller needs to find the bytes, and the memory of the operations.
    pub payload: P,
    /// Memory that the receiver may use.
    pub cookie: Option<Cookie>,
    /// Memory of the receiver's that is read or written before.
    pub rdma: Option<Box<Rdma>>,
    /// A number of the receiver's that is changed before.
    pub atomic: Option<Box<Atomic>>,
    /// With nothing but operations in it, it is not sent itself.
    pub silent: bool,
    /// Somebody waits for its end: it is never left to a peer that acknowledges unasked, nor to requests that
    /// are posted later.
    pub urgent: bool,
}

/// Which way an RDMA operation moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the peer.
    Read,
    /// To the peer.
    Write,
}

/// An RDMA operation before a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rdma {
    /// Which way.
    pub direction: Direction,
    /// The key of the peer's memory.
    pub rkey: u32,
    /// The address of the peer's memory.
    pub addr: u64,
    /// The number of bytes.
    pub len: u32,
    /// How many entries of the send queue it takes; all are posted at once.
    pub requests: u32,
    /// The message is not sent before the operation is over.
    pub fence: bool,
    /// Who hears of its end.
    pub report: Report,
}

/// What an atomic operation does to a number of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// If it is the first, it becomes the second.
    CompareSwap(u64, u64),
    /// So much is added.
    FetchAdd(u64),
}

/// An atomic operation before a message, after the RDMA operation if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// What is done.
    pub op: AtomicOp,
    /// The key of the peer's memory.
    pub rkey: u32,
    /// The address of the number, a multiple of 8.
    pub addr: u64,
    /// The message is not sent before the operation is over.
    pub fence: bool,
    /// Who hears of its end.
    pub report: Report,
}

/// Who hears of the end of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Report {
    /// What the program calls the operation.
    pub token: u64,
    /// It is told however the operation ends; otherwise only of failures, if its socket wants these.
    pub notify: bool,
    /// Success is told when the peer has acknowledged the message, not when the device has.
    pub remote: bool,
}

/// How an operation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Status {
    /// It has been done.
    Success = 0,
    /// The peer's device has refused it.
    RemoteError = 1,
    /// The program has cancelled it. It may have been done.
    Cancelled = 2,
    /// The connection was lost. It may have been done.
    Dropped = 3,
    /// Something else.
    OtherError = 4,
}

/// An operation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// Whose it was.
    pub owner: SocketId,
    /// What the program calls the operation.
    pub token: u64,
    /// How it ended.
    pub status: Status,
    /// The program has asked for it; otherwise its socket has to want failures.
    pub requested: bool,
}

/// How a message has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageOutcome {
    /// The peer has handled it, or there was nothing to be handled but operations.
    Done,
    /// Its owner did not want it any more.
    Cancelled,
    /// The connection was lost, and it cannot be sent again.
    Dropped,
}

/// A message that is over. If it was [urgent](Draft::urgent), or had operations, the device does not touch its memory
/// any more; what is in flight of others is kept by the caller until it has completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished<P> {
    /// Its number.
    pub sequence: u64,
    /// The message.
    pub message: Message<P>,
    /// How it ended.
    pub outcome: MessageOutcome,
    /// How the first of its operations ended that has failed.
    pub failed: Option<Status>,
}

/// Why a message cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadMessage {
    /// Port 1 is never used, nor port 0 to send from.
    Port(u16),
    /// It is too long, or its RDMA operation is.
    Len(u32),
}

/// A message that cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused<P> {
    /// Why.
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
    /// Nothing but bytes.
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

    /// Whether nothing but its operations is posted.
    pub fn is_silent(&self) -> bool {
        self.silent && self.len == 0 && self.cookie.is_none() && self.has_operation()
    }

    /// How many bytes the RDMA operation moves.
    pub(in crate::proto) fn moved(&self) -> u32 {
        self.rdma.as_ref().map_or(0, |rdma| rdma.len)
    }

    /// Whether its end is known when the peer has it, and nobody needs to hear from the device.
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
            Self::Port(port) => write!(f, "port {port} cannot be used"),
            Self::Len(len) => write!(f, "{len} bytes are more than {MAX_MESSAGE}"),
        }
    }
}

impl error::Error for BadMessage {}
