//! Errors of connection attempts, in the words of rdmacm-utils.

use std::fmt;

use cm::{ConnectFailure, Error, event_name};

/// An event that reports a failure, and its status.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    event: u32,
    status: i32,
}

impl Failure {
    /// Address resolution failed.
    pub fn of_addr(error: &Error) -> Self {
        Self::new(1, status(error))
    }

    /// Route resolution failed.
    pub fn of_route(error: &Error) -> Self {
        Self::new(3, status(error))
    }

    /// Joining a multicast group failed, or the membership has ended.
    pub fn of_multicast(error: &Error) -> Self {
        Self::new(13, status(error))
    }

    /// The address has moved to another device.
    pub fn of_change() -> Self {
        Self::new(14, 0)
    }

    /// Name of the event in C.
    pub fn event(self) -> &'static str {
        event_name(self.event)
    }

    /// Status of the event: a negative error number, or a reason code of the transport.
    pub fn status(self) -> i32 {
        self.status
    }

    fn new(event: u32, status: i32) -> Self {
        Self { event, status }
    }
}

impl From<&ConnectFailure> for Failure {
    fn from(failure: &ConnectFailure) -> Self {
        match *failure {
            ConnectFailure::Failed { status } => Self::new(6, status),
            ConnectFailure::Unreachable { status }
            | ConnectFailure::ServiceRejected { status, .. } => Self::new(7, status),
            ConnectFailure::Rejected { reason, .. } => Self::new(8, reason),
            ConnectFailure::DeviceRemoved => Self::new(11, 0),
            // The only other variant known to this version of the crate.
            _ => Self::new(10, 0),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event: {}, error: {}", self.event(), self.status)
    }
}

/// Reads as [`Display`](fmt::Display): `unwrap` and `fn main() -> Result` print it.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}

fn status(error: &Error) -> i32 {
    error.raw_os_error().map_or(0, |errno| -errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_names_match_c() {
        let rejected = ConnectFailure::Rejected {
            reason: 28,
            private_data: Vec::new(),
        };
        assert_eq!(
            Failure::from(&rejected).to_string(),
            "event: RDMA_CM_EVENT_REJECTED, error: 28"
        );
        for (failure, event) in [
            (
                ConnectFailure::Failed { status: -1 },
                "RDMA_CM_EVENT_CONNECT_ERROR",
            ),
            (
                ConnectFailure::Unreachable { status: -1 },
                "RDMA_CM_EVENT_UNREACHABLE",
            ),
            (
                ConnectFailure::DeviceRemoved,
                "RDMA_CM_EVENT_DEVICE_REMOVAL",
            ),
            (ConnectFailure::Disconnected, "RDMA_CM_EVENT_DISCONNECTED"),
        ] {
            assert_eq!(Failure::from(&failure).event(), event);
        }
        assert_eq!(Failure::of_change().event(), "RDMA_CM_EVENT_ADDR_CHANGE");
        let refused = Error::from_errno("rdma_join_multicast_ex", 22);
        assert_eq!(
            Failure::of_multicast(&refused).to_string(),
            "event: RDMA_CM_EVENT_MULTICAST_ERROR, error: -22"
        );
    }
}
