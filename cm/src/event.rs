//! What an event channel tells.

use std::{ffi::CStr, fmt};

use rdmacm_sys as ffi;
use verbs::Error;

use crate::{
    accept::ConnectRequest,
    addr::Addr,
    connect::ConnectResponse,
    datagram::{DatagramPeer, ServiceRequest},
    id::CmId,
    multicast::MulticastGroup,
    phases::{AddrResolved, Closed, Connected, Idle, RouteResolved, ServiceResolved},
    registry::Key,
};

/// `rdma_cm_event`—What has become of an identifier.
///
/// An identifier that was waiting for the event comes with it. The others are named by their key.
///
/// # References
/// [rdma_get_cm_event(3)](https://man7.org/linux/man-pages/man3/rdma_get_cm_event.3.html)
#[doc(alias = "rdma_cm_event")]
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// [`resolve_addr`](CmId::resolve_addr) has succeeded.
    AddrResolved(CmId<AddrResolved>),
    /// [`resolve_addr`](CmId::resolve_addr) has failed, and can be tried again.
    AddrError {
        /// The identifier, as it was before.
        id: CmId<Idle>,
        /// Why.
        error: Error,
    },
    /// [`resolve_route`](CmId::resolve_route) has succeeded.
    RouteResolved(CmId<RouteResolved>),
    /// [`resolve_route`](CmId::resolve_route) has failed, and can be tried again.
    RouteError {
        /// The identifier, as it was before.
        id: CmId<AddrResolved>,
        /// Why.
        error: Error,
    },
    /// A peer wants to connect to a listener.
    ConnectRequest(ConnectRequest),
    /// The peer has accepted; the connection is to be established.
    ConnectResponse(ConnectResponse),
    /// A connection could not be made, whether it was asked for or accepted.
    ConnectFailed {
        /// The identifier, of no more use.
        id: CmId<Closed>,
        /// Why.
        failure: ConnectFailure,
    },
    /// The connection that was accepted is established.
    Established(CmId<Connected>),
    /// The peer has said where it takes datagrams.
    ServiceResolved {
        /// The identifier that asked.
        id: CmId<ServiceResolved>,
        /// Where.
        peer: DatagramPeer,
    },
    /// A peer asks a listener where to send datagrams.
    ServiceRequest(ServiceRequest),
    /// [`join_multicast`](CmId::join_multicast) has succeeded.
    MulticastJoined {
        /// The identifier, which the program has.
        key: Key,
        /// Where to send datagrams for the group, and what to attach a queue pair to.
        group: MulticastGroup,
    },
    /// [`join_multicast`](CmId::join_multicast) has failed, or the membership has ended.
    MulticastFailed {
        /// The identifier, which the program has.
        key: Key,
        /// The address of the group.
        addr: Addr,
        /// Why.
        error: Error,
    },
    /// The connection has ended, at this side's wish or the peer's.
    ///
    /// The side that did not ask for it answers by disconnecting too, or by dropping the
    /// connection. The side that did gets this event when the answer has come.
    Disconnected {
        /// The identifier, which the program has.
        key: Key,
        /// Why, if neither side asked for it: the peer is [unreachable](ConnectFailure::Unreachable) since
        /// its hardware address has changed, for example.
        cause: Option<ConnectFailure>,
    },
    /// The device is being removed. Everything that was made of it is of no more use, and must be
    /// dropped.
    DeviceRemoval(Key),
    /// The address of this side has moved to another device.
    AddrChange(Key),
    /// No packet of the ended connection can still be on its way, so its queue pair may be used
    /// again.
    TimewaitExit(Key),
    /// An event that this crate does not know, or that has no meaning for what the identifier is
    /// doing.
    Other {
        /// The identifier.
        key: Key,
        /// The number C knows the event by.
        event: u32,
        /// Its status: 0, a negative error number, or a number of the transport.
        status: i32,
    },
}

/// `rdma_event_str`—The name of an event by the number that C knows it by, as in
/// [`Event::Other`].
///
/// # References
/// [rdma_event_str(3)](https://man7.org/linux/man-pages/man3/rdma_event_str.3.html)
#[doc(alias = "rdma_event_str")]
pub fn event_name(event: u32) -> &'static str {
    // SAFETY: the call takes any number.
    let name = unsafe { ffi::rdma_event_str(ffi::rdma_cm_event_type(event)) };
    // SAFETY: the name is constant, and terminated.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().unwrap_or("UNKNOWN EVENT")
}

/// Why a connection could not be made, or was lost.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// The peer has rejected the connection.
    Rejected {
        /// The transport's reason. On InfiniBand and RoCE: 8, no listener is there; 28, the peer's
        /// application has rejected, or its kernel has closed the listener. On iWARP a negative error
        /// number.
        reason: i32,
        /// Bytes of the peer's application.
        private_data: Vec<u8>,
    },
    /// The peer takes no datagrams for this service.
    ServiceRejected {
        /// InfiniBand's status of the service resolution: 1, nobody listens there; 2, the peer's
        /// application has rejected; 3, it has no queue pair for it; 4, it is elsewhere; 5, it
        /// speaks another version.
        status: i32,
        /// Bytes of the peer's application.
        private_data: Vec<u8>,
    },
    /// The peer did not answer.
    Unreachable {
        /// A negative error number, or a number of the transport.
        status: i32,
    },
    /// The connection failed while it was being made.
    Failed {
        /// A negative error number, or a number of the transport.
        status: i32,
    },
    /// The peer has ended the connection before it was established.
    Disconnected,
    /// The device has been removed.
    DeviceRemoved,
}

impl fmt::Display for ConnectFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected { reason: 8, .. } => f.write_str("rejected: nobody listens there"),
            // The kernel gives this reason, too, and no data, when it closes a listener with requests.
            Self::Rejected {
                reason: 28,
                private_data,
            } if private_data.iter().all(|&byte| byte == 0) => f.write_str(
                "rejected by the peer's application, or by its kernel because the listener was closed",
            ),
            Self::Rejected { reason: 28, .. } => f.write_str("rejected by the peer's application"),
            Self::Rejected { reason, .. } => write!(f, "rejected: {}", Status(*reason)),
            Self::ServiceRejected { status: 1, .. } => {
                f.write_str("rejected: nobody listens there")
            }
            Self::ServiceRejected { status: 2, .. } => {
                f.write_str("rejected by the peer's application")
            }
            Self::ServiceRejected { status, .. } => write!(f, "rejected: {}", Status(*status)),
            Self::Unreachable { status } => write!(f, "unreachable: {}", Status(*status)),
            Self::Failed { status } => write!(f, "failed: {}", Status(*status)),
            Self::Disconnected => f.write_str("the peer has ended it at once"),
            Self::DeviceRemoved => f.write_str("the device has been removed"),
        }
    }
}

/// Reads as [`Display`](fmt::Display): it is what `fn main() -> Result` prints, without the peer's private data,
/// which are padded with zeros.
impl fmt::Debug for ConnectFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for ConnectFailure {}

/// The status of an event: a negative error number, or a number of the transport.
struct Status(i32);

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 0 {
            write!(
                f,
                "{}",
                std::io::Error::from_raw_os_error(self.0.saturating_neg())
            )
        } else {
            write!(f, "status {}", self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_names_and_unknown_ones_too() {
        assert_eq!(event_name(11), "RDMA_CM_EVENT_DEVICE_REMOVAL");
        assert_eq!(event_name(99), "UNKNOWN EVENT");
    }

    #[test]
    fn failures_say_what_they_mean() {
        let rejected = |reason| ConnectFailure::Rejected {
            reason,
            private_data: vec![],
        };
        for (failure, text) in [
            (rejected(8), "rejected: nobody listens there"),
            (
                rejected(28),
                "rejected by the peer's application, or by its kernel because the listener was closed",
            ),
            (
                ConnectFailure::Rejected {
                    reason: 28,
                    private_data: b"full\0\0".to_vec(),
                },
                "rejected by the peer's application",
            ),
            (
                rejected(-111),
                "rejected: Connection refused (os error 111)",
            ),
            (
                ConnectFailure::Unreachable { status: -110 },
                "unreachable: Connection timed out (os error 110)",
            ),
            (ConnectFailure::Failed { status: 3 }, "failed: status 3"),
        ] {
            assert_eq!(failure.to_string(), text);
            // As `fn main() -> Result` prints it.
            assert_eq!(format!("{failure:?}"), text);
            let error = failure.into_error("rdma_connect");
            assert_eq!(
                format!("{error:?}"),
                format!("`rdma_connect` failed: {text}")
            );
        }
    }
}
