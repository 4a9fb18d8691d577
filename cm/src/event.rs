//! Events of an event channel.

use std::{ffi::CStr, fmt};

use rdmacm_sys as ffi;
use verbs::Error;

use crate::{
    accept::ConnectRequest,
    addr::Addr,
    addrinfo::AddrInfo,
    connect::ConnectResponse,
    datagram::{DatagramPeer, ServiceRequest},
    id::CmId,
    multicast::MulticastGroup,
    phases::{AddrResolved, Closed, Connected, Idle, RouteResolved, ServiceResolved},
    registry::Key,
};

/// `rdma_cm_event`—An event of an identifier.
///
/// An identifier pending for the event is returned in the event. Other events carry only the key.
///
/// # Examples
/// The events of a listener and its connections:
/// ```
/// # let _fabric = doctest::host();
/// use std::time::Duration;
///
/// use cm::{Event, EventChannel};
///
/// let channel = EventChannel::new()?;
/// let mut id = channel.create_id()?;
/// id.bind("10.9.0.1:7471".parse::<std::net::SocketAddr>().unwrap())?;
/// let _listener = id.listen(16)?;
/// # let timeout = Duration::from_millis(1);
/// while let Some(event) = channel.wait_timeout(timeout)? {
///     match event {
///         Event::ConnectRequest(request) => println!("from {:?}", request.id().peer_addr()),
///         Event::Established(id) => println!("{:?} is connected", id.key()),
///         Event::Disconnected { key, cause } => println!("{key:?} has ended: {cause:?}"),
///         other => println!("{other:?}"), // events of connections set up by this program
///     }
/// }
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [rdma_get_cm_event(3)](https://man7.org/linux/man-pages/man3/rdma_get_cm_event.3.html)
#[doc(alias = "rdma_cm_event")]
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// [`resolve_addrinfo`](CmId::resolve_addrinfo) has succeeded.
    #[doc(alias = "RDMA_CM_EVENT_ADDRINFO_RESOLVED")]
    #[doc(alias = "rdma_query_addrinfo")]
    AddrInfoResolved {
        /// The identifier, in the same phase as before.
        id: CmId<Idle>,
        /// The addresses, the preferred one first.
        found: Vec<AddrInfo>,
    },
    /// [`resolve_addrinfo`](CmId::resolve_addrinfo) has failed, and can be repeated.
    #[doc(alias = "RDMA_CM_EVENT_ADDRINFO_ERROR")]
    AddrInfoError {
        /// The identifier, in the same phase as before.
        id: CmId<Idle>,
        /// Cause of the failure, as for [`AddrHints::lookup`](crate::AddrHints::lookup).
        error: Error,
    },
    /// [`resolve_addr`](CmId::resolve_addr) has succeeded.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_RESOLVED")]
    AddrResolved(CmId<AddrResolved>),
    /// [`resolve_addr`](CmId::resolve_addr) has failed, and can be repeated.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_ERROR")]
    AddrError {
        /// The identifier, in the previous phase.
        id: CmId<Idle>,
        /// Cause of the failure.
        error: Error,
    },
    /// [`resolve_route`](CmId::resolve_route) has succeeded.
    #[doc(alias = "RDMA_CM_EVENT_ROUTE_RESOLVED")]
    RouteResolved(CmId<RouteResolved>),
    /// [`resolve_route`](CmId::resolve_route) has failed, and can be repeated.
    #[doc(alias = "RDMA_CM_EVENT_ROUTE_ERROR")]
    RouteError {
        /// The identifier, in the previous phase.
        id: CmId<AddrResolved>,
        /// Cause of the failure.
        error: Error,
    },
    /// A connection request has arrived at a listener.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
    ConnectRequest(ConnectRequest),
    /// The peer has accepted; the connection can be established.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_RESPONSE")]
    ConnectResponse(ConnectResponse),
    /// A connection request or an acceptance has failed.
    ConnectFailed {
        /// The identifier, fit only for being dropped.
        id: CmId<Closed>,
        /// Cause of the failure.
        failure: ConnectFailure,
    },
    /// An accepted connection is established.
    #[doc(alias = "RDMA_CM_EVENT_ESTABLISHED")]
    Established(CmId<Connected>),
    /// The peer has answered with a datagram address.
    ServiceResolved {
        /// The requesting identifier.
        id: CmId<ServiceResolved>,
        /// Address of the peer.
        peer: DatagramPeer,
    },
    /// A request for a datagram address has arrived at a listener.
    ServiceRequest(ServiceRequest),
    /// [`join_multicast`](CmId::join_multicast) has succeeded.
    #[doc(alias = "RDMA_CM_EVENT_MULTICAST_JOIN")]
    MulticastJoined {
        /// Key of the identifier, owned by the program.
        key: Key,
        /// Destination of datagrams for the group, and argument for attaching a queue pair.
        group: MulticastGroup,
    },
    /// [`join_multicast`](CmId::join_multicast) has failed, or the membership has ended.
    #[doc(alias = "RDMA_CM_EVENT_MULTICAST_ERROR")]
    MulticastFailed {
        /// Key of the identifier, owned by the program.
        key: Key,
        /// The address of the group.
        addr: Addr,
        /// Cause of the failure.
        error: Error,
    },
    /// The connection has ended, by either side.
    ///
    /// After a disconnect by the peer, answer by disconnecting too, or by dropping the connection. After a
    /// local disconnect, this event signals the peer's answer.
    #[doc(alias = "RDMA_CM_EVENT_DISCONNECTED")]
    Disconnected {
        /// Key of the identifier, owned by the program.
        key: Key,
        /// Cause, unless either side has disconnected and the other has answered; for example, the peer is
        /// [unreachable](ConnectFailure::Unreachable) after a change of its hardware address, or has not answered a local
        /// disconnect (status `-ETIMEDOUT`).
        cause: Option<ConnectFailure>,
    },
    /// The device is being removed. All resources of the device are unusable, and must be dropped.
    #[doc(alias = "RDMA_CM_EVENT_DEVICE_REMOVAL")]
    DeviceRemoval(Key),
    /// The address of this side has moved to another device.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_CHANGE")]
    AddrChange(Key),
    /// The timewait state of an ended connection is over: no packet can be in flight any more, and the queue
    /// pair may be reused.
    #[doc(alias = "RDMA_CM_EVENT_TIMEWAIT_EXIT")]
    TimewaitExit(Key),
    /// Posted by [`EventChannel::write_event`](crate::EventChannel::write_event).
    #[doc(alias = "RDMA_CM_EVENT_USER")]
    User {
        /// Key given by the writer.
        key: Key,
        /// Status given by the writer.
        status: i32,
        /// Number given by the writer.
        arg: u64,
    },
    /// An event unknown to this crate, or without meaning in the identifier's phase.
    Other {
        /// Key of the identifier.
        key: Key,
        /// Number of the event in C.
        event: u32,
        /// Status: 0, a negative error number, or a reason code of the transport.
        status: i32,
    },
}

/// `rdma_event_str`—Name of an event, given the number in C, as in [`Event::Other`].
///
/// # References
/// [rdma_event_str(3)](https://man7.org/linux/man-pages/man3/rdma_event_str.3.html)
#[doc(alias = "rdma_event_str")]
pub fn event_name(event: u32) -> &'static str {
    // SAFETY: the call accepts any number.
    let name = unsafe { ffi::rdma_event_str(ffi::rdma_cm_event_type(event)) };
    // SAFETY: the name is constant, and terminated.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().unwrap_or("UNKNOWN EVENT")
}

/// Cause of a failed or lost connection.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// The peer has rejected the connection.
    #[doc(alias = "RDMA_CM_EVENT_REJECTED")]
    Rejected {
        /// Reason code of the transport. On InfiniBand and RoCE: 8, no listener; 28, rejected by the peer's
        /// application, or listener closed by the peer's kernel. On iWARP, a negative error number.
        reason: i32,
        /// Private data of the peer's application.
        private_data: Vec<u8>,
    },
    /// The peer has rejected the request for a datagram address.
    ServiceRejected {
        /// Status of InfiniBand's service ID resolution: 1, no listener; 2, rejected by the peer's
        /// application; 3, no queue pair for the service; 4, redirected; 5, unsupported version.
        status: i32,
        /// Private data of the peer's application.
        private_data: Vec<u8>,
    },
    /// The peer did not answer.
    #[doc(alias = "RDMA_CM_EVENT_UNREACHABLE")]
    Unreachable {
        /// A negative error number, or a reason code of the transport.
        status: i32,
    },
    /// The connection failed during setup.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_ERROR")]
    Failed {
        /// A negative error number, or a reason code of the transport.
        status: i32,
    },
    /// The peer has disconnected before the connection was established.
    Disconnected,
    /// The device has been removed.
    DeviceRemoved,
    /// This side has ended the half-open connection in favor of a newer request.
    Displaced,
}

impl fmt::Display for ConnectFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected { reason: 8, .. } => f.write_str("rejected: no listener there"),
            // The kernel uses the same reason, without data, when closing a listener with pending requests.
            Self::Rejected {
                reason: 28,
                private_data,
            } if private_data.iter().all(|&byte| byte == 0) => f.write_str(
                "rejected by the peer's application, or by its kernel because the listener was closed",
            ),
            Self::Rejected { reason: 28, .. } => f.write_str("rejected by the peer's application"),
            Self::Rejected { reason, .. } => write!(f, "rejected: {}", Status(*reason)),
            Self::ServiceRejected { status: 1, .. } => {
                f.write_str("rejected: no listener there")
            }
            Self::ServiceRejected { status: 2, .. } => {
                f.write_str("rejected by the peer's application")
            }
            Self::ServiceRejected { status, .. } => write!(f, "rejected: {}", Status(*status)),
            Self::Unreachable { status } => write!(f, "unreachable: {}", Status(*status)),
            Self::Failed { status } => write!(f, "failed: {}", Status(*status)),
            Self::Disconnected => f.write_str("the peer disconnected during the handshake"),
            Self::DeviceRemoved => f.write_str("the device has been removed"),
            Self::Displaced => {
                f.write_str("displaced by a newer request before the end of the handshake")
            }
        }
    }
}

/// Formats like [`Display`](fmt::Display), for the output of `fn main() -> Result`: without the peer's
/// private data, which are padded with zeros.
impl fmt::Debug for ConnectFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for ConnectFailure {}

/// Status of an event: a negative error number, or a reason code of the transport.
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
    fn event_names_cover_known_and_unknown_events() {
        assert_eq!(event_name(11), "RDMA_CM_EVENT_DEVICE_REMOVAL");
        assert_eq!(event_name(99), "UNKNOWN EVENT");
    }

    #[test]
    fn connect_failure_display_names_the_cause() {
        let rejected = |reason| ConnectFailure::Rejected {
            reason,
            private_data: vec![],
        };
        for (failure, text) in [
            (rejected(8), "rejected: no listener there"),
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
            // The output of `fn main() -> Result`.
            assert_eq!(format!("{failure:?}"), text);
            let error = failure.into_error("rdma_connect");
            assert_eq!(
                format!("{error:?}"),
                format!("`rdma_connect` failed: {text}")
            );
        }
    }
}
