//! Event dispatch: copies librdmacm's events, and determines the effect of each on the identifier.

use std::{ptr::NonNull, sync::Arc};

use rdmacm_sys::{self as ffi, rdma_cm_event_type};
use verbs::{Error, Ud, qp::Transport};

use crate::{
    accept::ConnectRequest,
    channel::ChannelHandle,
    connect::ConnectResponse,
    datagram::{DatagramPeer, ServiceRequest},
    event::{ConnectFailure, Event},
    id::{CmId, RawId},
    multicast::MulticastGroup,
    param::PeerParam,
    phase::{Disposition, Kind, Phase},
    registry::{GroupKey, Key},
    resolve::explain,
};

/// An event as read from the channel, with all data copied.
pub(crate) struct RawEvent {
    key: Key,
    kind: Kind,
    event: u32,
    status: i32,
    data: EventData,
    /// Identifier of a new request.
    new_id: Option<RawId>,
}

/// Data of an event, by kind.
enum EventData {
    /// Parameters of a connection.
    Connection(PeerParam),
    /// Address of a datagram peer.
    Datagram(DatagramPeer),
    /// Address of a multicast group.
    Group(GroupKey, DatagramPeer),
}

impl RawEvent {
    /// Copies an event. The identifier of a request gets a key and a registry entry.
    ///
    /// # Safety
    /// - `raw` is an event of `channel`, not yet acknowledged.
    /// - The caller holds the dispatch lock of the channel.
    pub(crate) unsafe fn read(
        raw: NonNull<ffi::rdma_cm_event>,
        channel: &Arc<ChannelHandle>,
    ) -> Self {
        // SAFETY: the event is live until acknowledged, and librdmacm does not change it any more.
        let raw = unsafe { raw.as_ref() };
        let kind = Kind::from(raw.event);
        let subject = if kind == Kind::ConnectRequest {
            raw.listen_id
        } else {
            raw.id
        };
        // SAFETY: an identifier is not destroyed before its events have been acknowledged.
        let key = Key::from_context(unsafe { (*subject).context });
        // SAFETY: as above; the type is constant after creation.
        let datagram = unsafe { (*subject).qp_type } == Ud::RAW;
        if kind == Kind::DeviceRemoval {
            // SAFETY: as above. Assumption: librdmacm sets the device of an identifier once.
            let device = unsafe { (*subject).verbs };
            channel.contexts().forget(device);
        }
        // SAFETY: the event fits the identifier.
        let data = unsafe { EventData::read(raw, kind, datagram) };
        let new_id = match (kind, NonNull::new(raw.id)) {
            (Kind::ConnectRequest, Some(id)) => {
                let key = channel.registry().add(Phase::Requested);
                // SAFETY: the identifier is new. Only the holder of the dispatch lock, the caller, accesses the
                // context.
                unsafe { (*id.as_ptr()).context = key.to_context() };
                // SAFETY: a request's identifier is owned by the reader of the event.
                Some(unsafe { RawId::new(id, key, Arc::clone(channel)) })
            }
            _ => None,
        };
        Self {
            key,
            kind,
            event: raw.event.0,
            status: raw.status,
            data,
            new_id,
        }
    }

    /// Applies the event to the registry, and returns the public event. `None` if the identifier is gone.
    pub(crate) fn deliver(self, channel: &ChannelHandle) -> Option<Event> {
        let Self {
            key,
            kind,
            event,
            status,
            data,
            new_id,
        } = self;
        let (disposition, returned, group) = {
            let mut registry = channel.registry();
            let disposition = registry.phase(key)?.disposition(kind);
            let returned = match disposition {
                Disposition::ReturnsId(next) => Some((registry.unpark(key, next)?, next)),
                _ => None,
            };
            let group = match &data {
                EventData::Group(group, _) => Some(registry.group(key, *group)?),
                _ => None,
            };
            (disposition, returned, group)
        };
        Some(match (disposition, returned, new_id) {
            (Disposition::ReturnsId(_), Some((id, next)), _) => {
                returned_event(id, next, kind, status, data)
            }
            (Disposition::NewId, _, Some(id)) => match data {
                EventData::Connection(param) => {
                    Event::ConnectRequest(ConnectRequest::new(key, CmId::new(id), param))
                }
                EventData::Datagram(peer) | EventData::Group(_, peer) => Event::ServiceRequest(
                    ServiceRequest::new(key, CmId::new(id), peer.private_data),
                ),
            },
            (Disposition::Notifies, ..) => match (kind, data, group) {
                (Kind::MulticastJoin, EventData::Group(_, peer), Some(addr)) if status == 0 => {
                    let group = MulticastGroup::new(addr, &peer);
                    Event::MulticastJoined { key, group }
                }
                (Kind::MulticastJoin | Kind::MulticastError, _, Some(addr)) => {
                    let error = error("rdma_join_multicast_ex", status).detail(addr.to_string());
                    Event::MulticastFailed { key, addr, error }
                }
                (Kind::DeviceRemoval, ..) => Event::DeviceRemoval(key),
                (Kind::AddrChange, ..) => Event::AddrChange(key),
                (Kind::TimewaitExit, ..) => Event::TimewaitExit(key),
                (kind, data, _) => Event::Disconnected {
                    key,
                    cause: cause(kind, status, data),
                },
            },
            _ => Event::Other { key, event, status },
        })
    }
}

impl EventData {
    /// # Safety
    /// - The event is not yet acknowledged, and `datagram` is the kind of the event's identifier.
    unsafe fn read(raw: &ffi::rdma_cm_event, kind: Kind, datagram: bool) -> Self {
        // SAFETY: both variants of the union begin with a pointer and a length, and are plain data.
        // Assumption: librdmacm clears an event before it fills the event.
        let mut ud = unsafe { raw.param.ud };
        match kind {
            Kind::MulticastJoin | Kind::MulticastError => {
                // The private data pointer is the group's number from the join.
                let group = GroupKey::from_context(ud.private_data);
                ud.private_data = std::ptr::null();
                // SAFETY: the pointer is null.
                Self::Group(group, unsafe { DatagramPeer::from_raw(&ud) })
            }
            // SAFETY: the private data is inside the event, or the pointer is null.
            _ if datagram => Self::Datagram(unsafe { DatagramPeer::from_raw(&ud) }),
            _ => {
                // SAFETY: see above.
                let param = unsafe { &raw.param.conn };
                // SAFETY: the private data is inside the event, or the pointer is null.
                Self::Connection(unsafe { PeerParam::from_raw(param) })
            }
        }
    }

    fn private_data(self) -> Vec<u8> {
        match self {
            Self::Connection(param) => param.private_data,
            Self::Datagram(peer) | Self::Group(_, peer) => peer.private_data,
        }
    }
}

/// Converts the status of an event to an error.
fn error(call: &'static str, status: i32) -> Error {
    match status {
        status if status < 0 => Error::from_errno(call, status.saturating_neg()),
        status => Error::from_errno(call, libc::EHOSTUNREACH).detail(format!("status {status}")),
    }
}

/// The error of a resolution, with the peer's address.
fn unresolved(call: &'static str, status: i32, id: &RawId) -> Error {
    explain(error(call, status), None, id.any_peer_addr(), false)
}

/// The event with the identifier, in the next phase.
fn returned_event(id: RawId, next: Phase, kind: Kind, status: i32, data: EventData) -> Event {
    match (next, kind, data) {
        (Phase::Idle, ..) => Event::AddrError {
            error: unresolved("rdma_resolve_addr", status, &id),
            id: CmId::new(id),
        },
        (Phase::AddrResolved, Kind::RouteError, _) => Event::RouteError {
            error: unresolved("rdma_resolve_route", status, &id),
            id: CmId::new(id),
        },
        (Phase::AddrResolved, ..) => Event::AddrResolved(CmId::new(id)),
        (Phase::RouteResolved, ..) => Event::RouteResolved(CmId::new(id)),
        (Phase::Responded, kind, EventData::Connection(param)) => {
            let established = kind == Kind::Established;
            Event::ConnectResponse(ConnectResponse::new(CmId::new(id), param, established))
        }
        (Phase::ServiceResolved, _, EventData::Datagram(peer)) => Event::ServiceResolved {
            id: CmId::new(id),
            peer,
        },
        (Phase::Connected, ..) => Event::Established(CmId::new(id)),
        (_, kind, data) => Event::ConnectFailed {
            id: CmId::new(id),
            failure: failure(kind, status, data),
        },
    }
}

/// Cause of a connection's end without a disconnect by either side, or with one that the other has not answered: the status
/// of the event is then the failure of the connection manager's message.
fn cause(kind: Kind, status: i32, data: EventData) -> Option<ConnectFailure> {
    match kind {
        Kind::Disconnected if status == 0 => None,
        kind => Some(failure(kind, status, data)),
    }
}

/// Cause of a failed connection setup, or of a connection's end.
fn failure(kind: Kind, status: i32, data: EventData) -> ConnectFailure {
    match (kind, data) {
        (Kind::Unreachable, EventData::Datagram(peer)) if status > 0 => {
            ConnectFailure::ServiceRejected {
                status,
                private_data: peer.private_data,
            }
        }
        (Kind::Rejected, data) => ConnectFailure::Rejected {
            reason: status,
            private_data: data.private_data(),
        },
        (Kind::Disconnected, _) if status == 0 => ConnectFailure::Disconnected,
        // A disconnect without an answer has the status `-ETIMEDOUT`.
        (Kind::Unreachable | Kind::Disconnected, _) => ConnectFailure::Unreachable { status },
        (Kind::DeviceRemoval, _) => ConnectFailure::DeviceRemoved,
        _ => ConnectFailure::Failed { status },
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
            rdma_cm_event_type::RDMA_CM_EVENT_MULTICAST_JOIN => Self::MulticastJoin,
            rdma_cm_event_type::RDMA_CM_EVENT_MULTICAST_ERROR => Self::MulticastError,
            rdma_cm_event_type::RDMA_CM_EVENT_ADDR_CHANGE => Self::AddrChange,
            rdma_cm_event_type::RDMA_CM_EVENT_TIMEWAIT_EXIT => Self::TimewaitExit,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn default_data() -> EventData {
        EventData::Connection(PeerParam::default())
    }

    #[test]
    fn late_failure_of_established_connection_keeps_its_cause() {
        let cause = |kind, status| cause(kind, status, default_data());
        assert_eq!(cause(Kind::Disconnected, 0), None);
        let unanswered = ConnectFailure::Unreachable {
            status: -libc::ETIMEDOUT,
        };
        assert_eq!(
            cause(Kind::Disconnected, -libc::ETIMEDOUT),
            Some(unanswered)
        );
        let unreachable = ConnectFailure::Unreachable {
            status: -libc::ETIMEDOUT,
        };
        assert_eq!(
            cause(Kind::Unreachable, -libc::ETIMEDOUT),
            Some(unreachable)
        );
        let rejected = ConnectFailure::Rejected {
            reason: 4,
            private_data: Vec::new(),
        };
        assert_eq!(cause(Kind::Rejected, 4), Some(rejected));
        let failed = ConnectFailure::Failed { status: -5 };
        assert_eq!(cause(Kind::ConnectError, -5), Some(failed));
    }

    #[test]
    fn error_with_the_address_keeps_the_status() {
        let error = error("rdma_resolve_route", 3).detail("10.9.0.1:7471");
        assert!(
            error.to_string().contains("(status 3, 10.9.0.1:7471)"),
            "{error}"
        );
    }

    #[test]
    fn unknown_event_becomes_other() {
        assert_eq!(Kind::from(rdma_cm_event_type(99)), Kind::Other);
        assert_eq!(
            Kind::from(rdma_cm_event_type::RDMA_CM_EVENT_USER),
            Kind::Other
        );
    }
}
