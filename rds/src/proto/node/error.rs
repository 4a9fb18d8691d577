//! Why a socket refuses a call. Each has the number that the kernel's sockets give for it.

use std::{error, fmt, net::SocketAddr};

/// Why a socket refuses a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketError {
    /// There is no such socket (any more): `EBADF`.
    Closed,
    /// Nobody can have that address: `EINVAL`.
    Address(SocketAddr),
    /// That address is no default destination, being nobody's: `EDESTADDRREQ`.
    NoDestination(SocketAddr),
    /// Port 1 is for nobody: `EINVAL`.
    Port(u16),
    /// It has an address already: `EINVAL`.
    AlreadyBound(SocketAddr),
    /// Another socket has that address: `EADDRINUSE`.
    InUse(SocketAddr),
    /// It has no address, or no destination: `ENOTCONN`.
    NotConnected,
    /// Source and destination are of different families, or on different links: `EOPNOTSUPP`.
    Family(SocketAddr),
    /// The message, or its RDMA operation, is longer than any may be: `EMSGSIZE`.
    TooLong(u32),
    /// The destination can take no more: `ENOBUFS`.
    Congested(SocketAddr),
    /// Too much is waiting to be acknowledged: `EAGAIN`.
    Full,
    /// The type of service has been set, or used: `EINVAL`.
    TosInUse(u8),
    /// There are as many connections as there may be: `ENOBUFS`.
    Connections(usize),
}

impl fmt::Display for SocketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(f, "the socket is closed"),
            Self::Address(addr) => write!(f, "{addr} is no address of a host"),
            Self::NoDestination(addr) => write!(f, "{addr} is no destination"),
            Self::Port(port) => write!(f, "port {port} cannot be used"),
            Self::AlreadyBound(addr) => write!(f, "the socket is bound to {addr} already"),
            Self::InUse(addr) => write!(f, "{addr} is in use"),
            Self::NotConnected => write!(f, "the socket has no address, or no destination"),
            Self::Family(addr) => write!(f, "{addr} is not on the network of the socket"),
            Self::TooLong(len) => write!(f, "{len} bytes are more than a message can have"),
            Self::Congested(addr) => write!(f, "{addr} can take no more"),
            Self::Full => write!(f, "too much is waiting to be acknowledged"),
            Self::TosInUse(tos) => write!(f, "the type of service is {tos}, and in use"),
            Self::Connections(count) => write!(f, "there are {count} connections"),
        }
    }
}

impl error::Error for SocketError {}
