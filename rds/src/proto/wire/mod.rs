//! What goes over the wire, as values: nothing a peer may send makes a decoder fail otherwise than
//! with an error.

mod connect;
mod cookie;
mod extension;
mod header;
mod map;
mod reader;
mod version;

pub use connect::{BadConnectData, ConnectData, Family, HostPair};
pub use cookie::Cookie;
pub use extension::{Extension, Extensions, Iter, NotAdded};
pub use header::{BadHeader, Flags, Header};
pub use map::CongestionMap;
pub use version::{REJECTED, Version};

pub(crate) use reader::Reader;

/// The most bytes of a message that a frame carries; all frames but the last carry exactly so many.
pub const FRAGMENT: u32 = 4096;

/// The most bytes of a message, and of an RDMA operation.
pub const MAX_MESSAGE: u32 = 1 << 20;

/// The port that answers a message of its own accord: a ping.
pub const PING_PORT: u16 = 0;

/// The port that must never be on the wire: kernels use it for a handshake of their TCP transport,
/// and their InfiniBand transport does not survive it.
pub const RESERVED_PORT: u16 = 1;
