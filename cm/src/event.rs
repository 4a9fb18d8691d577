//! What an event channel tells.

use std::{fmt, ptr::NonNull, sync::Arc};

use rdmacm_sys::{self as ffi, rdma_cm_event_type};
use verbs::Error;

use crate::{
    accept::ConnectRequest,
    channel::ChannelHandle,
    connect::ConnectResponse,
    id::{
        CmId, RawId,
        phases::{AddrResolved, Closed, Connected, Idle, RouteResolved},
    },
    param::PeerParam,
    phase::{Kind, Meaning, Phase},
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
    /// The connection has ended, at this side's wish or the peer's.
    ///
    /// The side that did not ask for it answers by disconnecting too, or by dropping the
    /// connection. The side that did gets this event when the answer has come.
    Disconnected(Key),
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

/// Why a connection could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// The peer has rejected the connection.
    Rejected {
        /// The transport's reason. On InfiniBand and RoCE: 8, nobody listens there; 28, the peer's
        /// application has rejected. On iWARP a negative error number.
        reason: i32,
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
            Self::Rejected { reason: 28, .. } => f.write_str("rejected by the peer's application"),
            Self::Rejected { reason, .. } => write!(f, "rejected: {}", Status(*reason)),
            Self::Unreachable { status } => write!(f, "unreachable: {}", Status(*status)),
            Self::Failed { status } => write!(f, "failed: {}", Status(*status)),
            Self::Disconnected => f.write_str("the peer has ended it at once"),
            Self::DeviceRemoved => f.write_str("the device has been removed"),
        }
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

/// An event as it was read, with everything it says copied.
pub(crate) struct Intake {
    key: Key,
    kind: Kind,
    event: u32,
    status: i32,
    param: PeerParam,
    /// The identifier of a connection request.
    arrived: Option<RawId>,
}

impl Intake {
    /// Copies an event. The identifier of a connection request gets its key, and its place in the
    /// registry.
    ///
    /// # Safety
    /// - `raw` is an event of `channel`, not yet acknowledged.
    /// - The caller holds the intake lock of the channel.
    pub(crate) unsafe fn read(
        raw: NonNull<ffi::rdma_cm_event>,
        channel: &Arc<ChannelHandle>,
    ) -> Self {
        // SAFETY: the event is live until it is acknowledged, and librdmacm does not change it any
        // more.
        let raw = unsafe { raw.as_ref() };
        let kind = Kind::from(raw.event);
        let subject = if kind == Kind::ConnectRequest {
            raw.listen_id
        } else {
            raw.id
        };
        // SAFETY: an identifier is not destroyed before its events have been acknowledged.
        let key = Key::from_context(unsafe { (*subject).context });
        // SAFETY: identifiers here are of connections, never of datagrams, so this is the variant
        // in use; what librdmacm has not written is zero.
        let param = unsafe { &raw.param.conn };
        // SAFETY: the private data is inside the event, or the pointer is null.
        let param = unsafe { PeerParam::from_raw(param) };
        let arrived = match (kind, NonNull::new(raw.id)) {
            (Kind::ConnectRequest, Some(id)) => {
                let key = channel.registry().add(Phase::Requested);
                // SAFETY: the identifier is fresh. Only the holder of the intake lock, which is the
                // caller, reads or writes its context.
                unsafe { (*id.as_ptr()).context = key.to_context() };
                // SAFETY: a request's identifier belongs to whoever reads the event.
                Some(unsafe { RawId::new(id, key, Arc::clone(channel)) })
            }
            _ => None,
        };
        Self {
            key,
            kind,
            event: raw.event.0,
            status: raw.status,
            param,
            arrived,
        }
    }

    /// Finds out what the event means. `None`: its identifier is gone.
    pub(crate) fn deliver(self, channel: &ChannelHandle) -> Option<Event> {
        let Self {
            key,
            kind,
            event,
            status,
            param,
            arrived,
        } = self;
        let (meaning, returned) = {
            let mut registry = channel.registry();
            let meaning = registry.phase(key)?.meaning(kind);
            let returned = match meaning {
                Meaning::Returns(next) => Some((registry.unpark(key, next)?, next)),
                _ => None,
            };
            (meaning, returned)
        };
        let other = Event::Other { key, event, status };
        Some(match (meaning, returned, arrived) {
            (Meaning::Returns(_), Some((id, next)), _) => {
                returned_event(id, next, kind, status, param)
            }
            (Meaning::Arrives, _, Some(id)) => {
                Event::ConnectRequest(ConnectRequest::new(key, CmId::new(id), param))
            }
            (Meaning::Tells, ..) => match kind {
                Kind::DeviceRemoval => Event::DeviceRemoval(key),
                Kind::AddrChange => Event::AddrChange(key),
                Kind::TimewaitExit => Event::TimewaitExit(key),
                _ => Event::Disconnected(key),
            },
            _ => other,
        })
    }
}

/// The event that gives an identifier back, in its next phase.
fn returned_event(id: RawId, next: Phase, kind: Kind, status: i32, param: PeerParam) -> Event {
    let error = |call| match status {
        status if status < 0 => Error::from_errno(call, status.saturating_neg()),
        status => Error::from_errno(call, libc::EHOSTUNREACH).detail(format!("status {status}")),
    };
    match (next, kind) {
        (Phase::Idle, _) => Event::AddrError {
            id: CmId::new(id),
            error: error("rdma_resolve_addr"),
        },
        (Phase::AddrResolved, Kind::RouteError) => Event::RouteError {
            id: CmId::new(id),
            error: error("rdma_resolve_route"),
        },
        (Phase::AddrResolved, _) => Event::AddrResolved(CmId::new(id)),
        (Phase::RouteResolved, _) => Event::RouteResolved(CmId::new(id)),
        (Phase::Responded, kind) => {
            let established = kind == Kind::Established;
            Event::ConnectResponse(ConnectResponse::new(CmId::new(id), param, established))
        }
        (Phase::Connected, _) => Event::Established(CmId::new(id)),
        (_, kind) => Event::ConnectFailed {
            id: CmId::new(id),
            failure: match kind {
                Kind::Rejected => ConnectFailure::Rejected {
                    reason: status,
                    private_data: param.private_data,
                },
                Kind::Unreachable => ConnectFailure::Unreachable { status },
                Kind::Disconnected => ConnectFailure::Disconnected,
                Kind::DeviceRemoval => ConnectFailure::DeviceRemoved,
                _ => ConnectFailure::Failed { status },
            },
        },
    }
}

impl From<rdma_cm_event_type> for Kind {
    fn from(event: rdma_cm_event_type) -> Self {
        match event {
            rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED => Self::AddrResolved,
            rdma_cm_event_type::RDMA_CM_EVENT_ADDR_ERROR => Self::AddrError,
            rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED => Self::RouteResolved,
            rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_ERROR => Self::RouteError,
            rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST => Self::ConnectRequest,
            rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_RESPONSE => Self::ConnectResponse,
            rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_ERROR => Self::ConnectError,
            rdma_cm_event_type::RDMA_CM_EVENT_UNREACHABLE => Self::Unreachable,
            rdma_cm_event_type::RDMA_CM_EVENT_REJECTED => Self::Rejected,
            rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED => Self::Established,
            rdma_cm_event_type::RDMA_CM_EVENT_DISCONNECTED => Self::Disconnected,
            rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL => Self::DeviceRemoval,
            rdma_cm_event_type::RDMA_CM_EVENT_ADDR_CHANGE => Self::AddrChange,
            rdma_cm_event_type::RDMA_CM_EVENT_TIMEWAIT_EXIT => Self::TimewaitExit,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_events_are_other() {
        assert_eq!(Kind::from(rdma_cm_event_type(99)), Kind::Other);
        assert_eq!(
            Kind::from(rdma_cm_event_type::RDMA_CM_EVENT_MULTICAST_JOIN),
            Kind::Other
        );
    }

    #[test]
    fn failures_say_what_they_mean() {
        let rejected = |reason| ConnectFailure::Rejected {
            reason,
            private_data: vec![],
        };
        for (failure, text) in [
            (rejected(8), "rejected: nobody listens there"),
            (rejected(28), "rejected by the peer's application"),
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
        }
    }
}
