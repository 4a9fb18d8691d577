//! Causes of the end of a lease.

use std::fmt;

/// Why a lease has ended before its pages were in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// This side has cancelled the lease.
    Cancelled,
    /// The peer has cancelled the lease.
    CancelledByPeer,
    /// The deadline has passed.
    Deadline,
    /// All queue pairs of the peer have ended, for this reason.
    PeerLost(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled => f.write_str("cancelled by this side"),
            Self::CancelledByPeer => f.write_str("cancelled by the peer"),
            Self::Deadline => f.write_str("the deadline has passed"),
            Self::PeerLost(reason) => write!(f, "the peer is lost: {reason}"),
        }
    }
}
