//! Work requests.

use super::{access::Access, keys::Binding, path::Path};

/// Element of a scatter/gather list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Local key of the region.
    pub lkey: u32,
}

/// A receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecvRequest {
    /// Identifier for the completion.
    pub wr_id: u64,
    /// Memory for the message.
    pub sges: Vec<Sge>,
}

/// Payload of a send request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Registered memory, read or written during execution.
    Sges(Vec<Sge>),
    /// Bytes copied at posting.
    Inline(Vec<u8>),
}

impl Payload {
    /// Whether the payload has no elements or bytes.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Sges(sges) => sges.is_empty(),
            Self::Inline(bytes) => bytes.is_empty(),
        }
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address of the first byte.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
}

/// Destination of a datagram, or of a request of an initiator (DCI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Path to the destination host.
    pub path: Path,
    /// Number of the destination queue pair.
    pub qp: u32,
    /// Q_Key of the destination; with the highest of 32 bits set, the sender's Q_Key is used. Of a target (DCT), the access key.
    pub key: u64,
}

/// Effect of a flush; the values of `ibv_placement_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement(
    /// The flags.
    pub u8,
);

impl Placement {
    /// All readers of the peer's memory see the data.
    pub const GLOBAL: Self = Self(1);
    /// The data survive a power failure of the peer.
    pub const PERSISTENT: Self = Self(1 << 1);

    /// Rights needed by a flush; `None` without a flag, or with an unknown one.
    pub(super) fn rights(self) -> Option<Access> {
        match self.0 {
            1 => Some(Access::FLUSH_GLOBAL),
            2 => Some(Access::FLUSH_PERSISTENT),
            3 => Some(Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT),
            _ => None,
        }
    }
}

/// Operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// A message to the peer's receive queue.
    Send {
        /// Immediate data.
        imm: Option<u32>,
        /// Remote key invalidated at the peer.
        invalidate: Option<u32>,
    },
    /// An RDMA write.
    Write {
        /// The peer's memory.
        remote: Remote,
        /// Immediate data; consumes a receive of the peer.
        imm: Option<u32>,
    },
    /// An RDMA read.
    Read(
        /// The peer's memory.
        Remote,
    ),
    /// An atomic comparison and exchange.
    CompareSwap {
        /// The peer's number.
        remote: Remote,
        /// The expected number.
        compare: u64,
        /// The new number.
        swap: u64,
    },
    /// An atomic addition.
    FetchAdd {
        /// The peer's number.
        remote: Remote,
        /// The number to add.
        add: u64,
    },
    /// A flush of earlier writes, without a payload.
    Flush {
        /// The peer's memory.
        remote: Remote,
        /// Length of the flushed range in bytes.
        len: u32,
        /// Effect of the flush.
        placement: Placement,
        /// Whether the whole region is flushed, instead of the range.
        whole_region: bool,
    },
    /// An atomic write of 8 bytes, without a payload.
    AtomicWrite {
        /// The peer's memory, at an address that is a multiple of 8.
        remote: Remote,
        /// The bytes.
        value: [u8; 8],
    },
    /// Unbinding of a type 2 window.
    LocalInvalidate(
        /// The window's key.
        u32,
    ),
    /// Binding of a window.
    Bind {
        /// The window's current key.
        rkey: u32,
        /// The window's new key; only the lowest 8 bits may differ.
        new_rkey: u32,
        /// Range opened by the window.
        binding: Binding,
    },
}

impl SendOp {
    /// Whether the peer responds with data, or with an empty read response.
    pub(super) fn needs_response(&self) -> bool {
        matches!(
            self,
            Self::Read(_)
                | Self::CompareSwap { .. }
                | Self::FetchAdd { .. }
                | Self::Flush { .. }
                | Self::AtomicWrite { .. }
        )
    }

    /// Whether the operation has no payload of its own.
    pub(super) fn is_bare(&self) -> bool {
        self.is_local() || matches!(self, Self::Flush { .. } | Self::AtomicWrite { .. })
    }

    /// Whether the request is executed without packets.
    pub(super) fn is_local(&self) -> bool {
        matches!(self, Self::LocalInvalidate(_) | Self::Bind { .. })
    }

    /// Whether the operation is atomic.
    pub(super) fn is_atomic(&self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }
}

/// A request to a send queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// Identifier for the completion.
    pub wr_id: u64,
    /// Operation.
    pub op: SendOp,
    /// Payload.
    pub payload: Payload,
    /// Destination, for datagrams and initiators.
    pub destination: Option<Destination>,
    /// Number of the peer's shared receive queue, for extended connections.
    pub xrc_srq: Option<u32>,
    /// Whether success makes a completion.
    pub signaled: bool,
    /// Whether the receiver's completion is solicited.
    pub solicited: bool,
    /// Whether the request waits for earlier reads and atomics.
    pub fence: bool,
}
