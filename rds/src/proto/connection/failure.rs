//! Why a connection is given up.

use std::{error, fmt};

use crate::proto::wire::BadHeader;

/// What a peer has done that it must not do. The connection has to be made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// A frame has no header, or a damaged one.
    Header(BadHeader),
    /// A frame has another number of bytes than it must have.
    FrameLen {
        /// What there must be.
        expected: u32,
        /// What there is.
        len: usize,
    },
    /// A frame is of another message than the one that has not ended.
    Interleaved,
    /// A message is longer than any may be.
    MessageLen(u32),
    /// A socket has far more than it can take, although its port is marked as congested.
    Overflow(u16),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(bad) => bad.fmt(f),
            Self::FrameLen { expected, len } => {
                write!(f, "a frame with {len} bytes of a message, not {expected}")
            }
            Self::Interleaved => write!(f, "a frame of another message than the one before"),
            Self::MessageLen(len) => write!(f, "a message of {len} bytes"),
            Self::Overflow(port) => write!(f, "port {port} has far more than it can take"),
        }
    }
}

impl error::Error for Violation {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Header(bad) => Some(bad),
            _ => None,
        }
    }
}

impl From<BadHeader> for Violation {
    fn from(bad: BadHeader) -> Self {
        Self::Header(bad)
    }
}
