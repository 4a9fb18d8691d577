//! How a connection fails.

use std::{error, fmt};

/// Why a connection has failed.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The peer does not keep to the protocol.
    Violation(Violation),
    /// A request could not be completed: the peer has not answered, or has refused.
    Send,
    /// The peer has gone without saying so.
    Lost,
    /// What was sent has not been acknowledged for too long.
    TimedOut,
}

/// What a peer has done that it must not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// It has sent a message that has no meaning.
    Reserved(u8),
    /// It has sent more messages than it had credits.
    Credits,
    /// It has sent more bytes than it had room for.
    Overflow(u32),
    /// It has announced a mapping that the table has no room for.
    Mapping(u16),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Violation(violation) => write!(f, "the peer broke the protocol: {violation}"),
            Self::Send => write!(f, "the peer did not take what was sent"),
            Self::Lost => write!(f, "the peer has gone"),
            Self::TimedOut => write!(f, "what was sent has not been acknowledged in time"),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reserved(op) => write!(f, "message {op} has no meaning"),
            Self::Credits => write!(f, "a message without a credit"),
            Self::Overflow(len) => write!(f, "{len} bytes of data without room for them"),
            Self::Mapping(index) => write!(f, "mapping {index}, for which there is no entry"),
        }
    }
}

/// Reads as [`Display`](fmt::Display): `unwrap` and `fn main() -> Result` print it.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl error::Error for Failure {}
