//! Protocol violations.

use std::{error, fmt};

use crate::wire::BadHeader;

/// A protocol violation by the peer. The connection has to be closed and reestablished.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// The header is missing or damaged.
    Header(BadHeader),
    /// The body has the wrong length.
    FrameLen {
        /// Expected length in bytes.
        expected: u32,
        /// Actual length in bytes.
        len: usize,
    },
    /// The frame belongs to another message than the incomplete one.
    Interleaved,
    /// The message is too long.
    MessageLen(u32),
    /// The receive buffer of a socket is far over its limit, although its port is marked as
    /// congested.
    Overflow(u16),
    /// A frame of a longer message has arrived after the end of the connection.
    Ended,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(bad) => bad.fmt(f),
            Self::FrameLen { expected, len } => {
                write!(f, "frame with a body of {len} bytes instead of {expected}")
            }
            Self::Interleaved => write!(f, "frame of another message than the incomplete one"),
            Self::MessageLen(len) => write!(f, "message of {len} bytes exceeds the limit"),
            Self::Overflow(port) => write!(f, "receive buffer of port {port} overflows"),
            Self::Ended => write!(f, "frame of a message after the end of the connection"),
        }
    }
}

/// Reads as [`Display`](fmt::Display): `unwrap` and `fn main() -> Result` print it.
impl fmt::Debug for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl error::Error for Violation {}

impl From<BadHeader> for Violation {
    fn from(bad: BadHeader) -> Self {
        Self::Header(bad)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn violation_by_a_header_names_the_header_once() {
        let bad = BadHeader::Short(47);
        let violation = Violation::from(bad);
        assert_eq!(violation.to_string(), bad.to_string());
        assert!(violation.source().is_none());
    }
}
