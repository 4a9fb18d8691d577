//! Failures of a connection.

use std::{error, fmt};

/// Reason for the failure of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The peer has violated the protocol.
    Violation(Violation),
    /// A request has failed: the peer has not acknowledged or has refused the request.
    Send,
    /// The peer has disconnected without a shutdown message.
    Lost,
    /// Data has been unacknowledged for longer than the timeout.
    TimedOut,
}

/// Violation of the protocol by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// A message with a reserved operation code.
    Reserved(u8),
    /// A message without a credit.
    Credits,
    /// More bytes than there is room for; holds the length of the message.
    Overflow(u32),
    /// A mapping beyond the end of the table; holds the index.
    Mapping(u16),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Violation(violation) => write!(f, "the peer broke the protocol: {violation}"),
            Self::Send => write!(f, "a request to the peer has failed"),
            Self::Lost => write!(f, "the peer has gone"),
            Self::TimedOut => write!(f, "sent data has not been acknowledged in time"),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reserved(op) => write!(f, "reserved message {op}"),
            Self::Credits => write!(f, "a message without a credit"),
            Self::Overflow(len) => write!(f, "{len} bytes of data without room for them"),
            Self::Mapping(index) => write!(f, "mapping {index} is beyond the table"),
        }
    }
}

/// Prints the [`Display`](fmt::Display) text, since `unwrap` and `fn main() -> Result` print errors with
/// `Debug`.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl error::Error for Failure {}
