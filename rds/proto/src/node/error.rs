//! Errors of socket calls, with the `errno` of the kernel's sockets.

use std::{error, fmt, net::SocketAddr};

/// Error of a socket call.
#[derive(Clone, Copy, PartialEq, Eq)]
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
            Self::Address(addr) => write!(f, "{addr} is not an address of a host"),
            Self::NoDestination(addr) => write!(f, "{addr} is not a valid destination"),
            Self::Port(port) => write!(f, "port {port} is reserved; use another one"),
            Self::AlreadyBound(addr) => write!(f, "the socket is already bound to {addr}"),
            Self::InUse(addr) => write!(f, "{addr} is in use"),
            Self::NotConnected => write!(
                f,
                "the socket is unbound or has no destination; call bind or connect"
            ),
            Self::Family(addr) => write!(
                f,
                "{addr} has another family or scope than the address of the socket"
            ),
            Self::TooLong(len) => write!(
                f,
                "{len} bytes exceed the maximum of a message: the send limit (SO_SNDBUF), and at most 1 MiB"
            ),
            Self::Congested(addr) => {
                write!(f, "{addr} is congested; try again when the socket is ready")
            }
            Self::Full => write!(
                f,
                "the send buffer is full; try again when the socket is writable"
            ),
            Self::TosInUse(tos) => write!(f, "the type of service is already {tos} and in use"),
            Self::Connections(count) => write!(f, "the limit of {count} connections is reached"),
        }
    }
}

/// Reads as [`Display`](fmt::Display): `unwrap` and `fn main() -> Result` print it.
impl fmt::Debug for SocketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl error::Error for SocketError {}
