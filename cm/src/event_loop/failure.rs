//! Errors of the event loop.

use std::fmt;

use verbs::{cq::WcError, error::PostError};

use crate::{ConnectFailure, Error, Refused};

/// The reason for the end of a connection or of an [`EventLoop`](super::EventLoop), apart from the protocol's own errors.
#[non_exhaustive]
pub enum Failure {
    /// A call has failed, or the resolution of the peer's address.
    Call(Error),
    /// The peer has refused the connection, or is lost.
    Connect(ConnectFailure),
    /// A request has failed, and the device ends the connection.
    Request(WcError),
    /// The address leads to another device than the loop's first connection. A loop has one device, with one completion
    /// queue.
    OtherDevice,
    /// The kernel has removed the device, and with it all connections.
    DeviceRemoved,
    /// The device has completed a request that is not in flight.
    StaleCompletion,
    /// A newer request has taken the place of the connection: of one whose peer has not completed the handshake, or at a
    /// limit of one idle for longest of the address with the most connections.
    Displaced,
    /// The peer has not completed the handshake within
    /// [`handshake_timeout`](super::EventLoop::handshake_timeout).
    HandshakeTimeout,
    /// No request has completed within [`idle_timeout`](super::EventLoop::idle_timeout).
    IdleTimeout,
    /// The peer has not answered the disconnect request within
    /// [`disconnect_timeout`](super::EventLoop::disconnect_timeout). The connection has ended nevertheless.
    DisconnectTimeout,
    /// The peer's address has [`max_per_address`](super::EventLoop::max_per_address) connections: the request is
    /// rejected.
    AddressLimit,
    /// The loop has [`max_connections`](super::EventLoop::max_connections) connections, of which none gives way: the
    /// request is rejected.
    ConnectionLimit,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(err) => err.fmt(f),
            Self::Connect(err) => err.fmt(f),
            Self::Request(err) => err.fmt(f),
            Self::OtherDevice => f.write_str(
                "the connection is on another device than the first one; use an event loop for each device",
            ),
            Self::DeviceRemoved => {
                f.write_str("the device has been removed; start a new event loop once it is back")
            }
            Self::StaleCompletion => f.write_str("a completion belongs to no request in flight"),
            Self::Displaced => f.write_str(
                "displaced by a newer request, at a limit of the event loop, the process or the device",
            ),
            Self::HandshakeTimeout => {
                f.write_str("the peer has not completed the handshake before `handshake_timeout`")
            }
            Self::IdleTimeout => f.write_str("no completion within `idle_timeout`"),
            Self::DisconnectTimeout => {
                f.write_str("no answer to the disconnect request within `disconnect_timeout`")
            }
            Self::AddressLimit => f.write_str(
                "rejected: the peer's address has as many connections as `max_per_address` permits",
            ),
            Self::ConnectionLimit => f.write_str(
                "rejected: the event loop has as many connections as `max_connections` permits",
            ),
        }
    }
}

/// The message of `Display`, as shown by `unwrap`.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The message has the reason, so `source` does not repeat it.
impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Call(err) => std::error::Error::source(err),
            Self::Connect(err) => std::error::Error::source(err),
            Self::Request(err) => std::error::Error::source(err),
            Self::OtherDevice
            | Self::DeviceRemoved
            | Self::StaleCompletion
            | Self::Displaced
            | Self::HandshakeTimeout
            | Self::IdleTimeout
            | Self::DisconnectTimeout
            | Self::AddressLimit
            | Self::ConnectionLimit => None,
        }
    }
}

impl From<Error> for Failure {
    fn from(err: Error) -> Self {
        Self::Call(err)
    }
}

impl From<ConnectFailure> for Failure {
    fn from(err: ConnectFailure) -> Self {
        Self::Connect(err)
    }
}

impl From<WcError> for Failure {
    fn from(err: WcError) -> Self {
        Self::Request(err)
    }
}

impl<T> From<PostError<T>> for Failure {
    fn from(err: PostError<T>) -> Self {
        Self::Call(err.into())
    }
}

impl<T> From<Refused<T>> for Failure {
    fn from(err: Refused<T>) -> Self {
        Self::Call(err.into())
    }
}
