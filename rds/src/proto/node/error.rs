//! Errors of socket calls, with the `errno` of the kernel's sockets.

use std::{error, fmt, net::SocketAddr};

/// Error of a socket call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketError {
    /// The socket is closed: `EBADF`.
    Closed,
    /// Not an address of a host: `EINVAL`.
    Address(SocketAddr),
    /// The unspecified address as default destination: `EDESTADDRREQ`.
    NoDestination(SocketAddr),
    /// The reserved port 1: `EINVAL`.
    Port(u16),
    /// The socket is bound already: `EINVAL`.
    AlreadyBound(SocketAddr),
    /// Another socket is bound to the address: `EADDRINUSE`.
    InUse(SocketAddr),
    /// The socket is unbound or has no destination: `ENOTCONN`.
    NotConnected,
    /// Source and destination have different families or scopes: `EOPNOTSUPP`.
    Family(SocketAddr),
    /// The message or its RDMA operation is too long: `EMSGSIZE`.
    TooLong(u32),
    /// The destination port is congested: `ENOBUFS`.
    Congested(SocketAddr),
    /// The send buffer is full: `EAGAIN`.
    Full,
    /// The type of service is already set or used: `EINVAL`.
    TosInUse(u8),
    /// The number of connections is at the limit: `ENOBUFS`.
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
