//! Wire formats. Decoders reject malformed input with an error and never panic.

mod congestion_map;
mod connect;
mod cookie;
mod extension;
mod header;
mod reader;
mod version;

pub use congestion_map::CongestionMap;
pub use connect::{BadConnectData, ConnectData, Family, HostPair};
pub use cookie::Cookie;
pub use extension::{Extension, Extensions, Iter, NotAdded};
pub use header::{BadHeader, Flags, Header};
pub use version::{REJECTED, Version};

pub(crate) use reader::Reader;

/// Maximum number of message bytes in a frame. All frames of a message but the last are full.
pub const FRAGMENT: u32 = 4096;

/// Maximum length of a message and of an RDMA operation, in bytes.
pub const MAX_MESSAGE: u32 = 1 << 20;

/// Destination port of a ping, answered by the protocol.
pub const PING_PORT: u16 = 0;

/// Port never to be sent. Kernels use it for the handshake of their TCP transport, and their
/// InfiniBand transport crashes on it.
pub const RESERVED_PORT: u16 = 1;
