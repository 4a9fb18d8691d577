//! Events as librdmacm has them: copying them, and finding out what they mean.

use std::{ptr::NonNull, sync::Arc};

use rdmacm_sys::{self as ffi, rdma_cm_event_type};
use verbs::{Error, Transport, Ud};

use crate::{
    accept::ConnectRequest,
    channel::ChannelHandle,
    connect::ConnectResponse,
    datagram::{DatagramPeer, ServiceRequest},
    event::{ConnectFailure, Event},
    id::{CmId, RawId},
    multicast::MulticastGroup,
    param::PeerParam,
    phase::{Kind, Meaning, Phase},
    registry::{GroupKey, Key},
};

/// An event as it was read, with everything it says copied.
pub(crate) struct Intake {
    key: Key,
    kind: Kind,
    event: u32,
    status: i32,
    said: Said,
    /// The identifier of a request.
    arrived: Option<RawId>,
}

/// What an event says beside its kind.
enum Said {
    /// Of a connection.
    Connection(PeerParam),
    /// Of a peer for datagrams.
    Datagram(DatagramPeer),
    /// Of a multicast group.
    Group(GroupKey, DatagramPeer),
}

impl Intake {
    /// Copies an event. The identifier of a request gets its key, and its place in the registry.
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
        // SAFETY: as above; the type is set for good when the identifier is made.
        let datagram = unsafe { (*subject).qp_type } == Ud::RAW;
        if kind == Kind::DeviceRemoval {
            // SAFETY: as above; nobody changes the device of an identifier that has one.
            let device = unsafe { (*subject).verbs };
            channel.contexts().forget(device);
        }
        // SAFETY: the event fits the identifier.
        let said = unsafe { Said::read(raw, kind, datagram) };
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
            said,
            arrived,
        }
    }

    /// Finds out what the event means. `None`: what it is about is gone.
    pub(crate) fn deliver(self, channel: &ChannelHandle) -> Option<Event> {
        let Self {
            key,
            kind,
            event,
            status,
            said,
            arrived,
        } = self;
        let (meaning, returned, group) = {
            let mut registry = channel.registry();
            let meaning = registry.phase(key)?.meaning(kind);
            let returned = match meaning {
                Meaning::Returns(next) => Some((registry.unpark(key, next)?, next)),
                _ => None,
            };
            let group = match &said {
                Said::Group(group, _) => Some(registry.group(key, *group)?),
                _ => None,
            };
            (meaning, returned, group)
        };
        Some(match (meaning, returned, arrived) {
            (Meaning::Returns(_), Some((id, next)), _) => {
                returned_event(id, next, kind, status, said)
            }
            (Meaning::Arrives, _, Some(id)) => match said {
                Said::Connection(param) => {
                    Event::ConnectRequest(ConnectRequest::new(key, CmId::new(id), param))
                }
                Said::Datagram(peer) | Said::Group(_, peer) => Event::ServiceRequest(
                    ServiceRequest::new(key, CmId::new(id), peer.private_data),
                ),
            },
            (Meaning::Tells, ..) => match (kind, said, group) {
                (Kind::MulticastJoin, Said::Group(_, peer), Some(addr)) if status == 0 => {
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
                (kind, said, _) => Event::Disconnected {
                    key,
                    cause: cause(kind, status, said),
                },
            },
            _ => Event::Other { key, event, status },
        })
    }
}

impl Said {
    /// # Safety
    /// - The event is not yet acknowledged, and of an identifier for datagrams if it is said so.
    unsafe fn read(raw: &ffi::rdma_cm_event, kind: Kind, datagram: bool) -> Self {
        // SAFETY: both variants of the union begin with a pointer and a length, and are plain data;
        // what librdmacm has not written is zero.
        let mut ud = unsafe { raw.param.ud };
        match kind {
            Kind::MulticastJoin | Kind::MulticastError => {
                // In the place of private data there is the number that the group was joined with.
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

/// The status of an event as an error.
fn error(call: &'static str, status: i32) -> Error {
    match status {
        status if status < 0 => Error::from_errno(call, status.saturating_neg()),
        status => Error::from_errno(call, libc::EHOSTUNREACH).detail(format!("status {status}")),
    }
}

/// The event that gives an identifier back, in its next phase.
fn returned_event(id: RawId, next: Phase, kind: Kind, status: i32, said: Said) -> Event {
    match (next, kind, said) {
        (Phase::Idle, ..) => Event::AddrError {
            id: CmId::new(id),
            error: error("rdma_resolve_addr", status),
        },
        (Phase::AddrResolved, Kind::RouteError, _) => Event::RouteError {
            id: CmId::new(id),
            error: error("rdma_resolve_route", status),
        },
        (Phase::AddrResolved, ..) => Event::AddrResolved(CmId::new(id)),
        (Phase::RouteResolved, ..) => Event::RouteResolved(CmId::new(id)),
        (Phase::Responded, kind, Said::Connection(param)) => {
            let established = kind == Kind::Established;
            Event::ConnectResponse(ConnectResponse::new(CmId::new(id), param, established))
        }
        (Phase::ServiceResolved, _, Said::Datagram(peer)) => Event::ServiceResolved {
            id: CmId::new(id),
            peer,
        },
        (Phase::Connected, ..) => Event::Established(CmId::new(id)),
        (_, kind, said) => Event::ConnectFailed {
            id: CmId::new(id),
            failure: failure(kind, status, said),
        },
    }
}

/// Why a connection has ended that neither side has asked to end.
fn cause(kind: Kind, status: i32, said: Said) -> Option<ConnectFailure> {
    match kind {
        Kind::Disconnected => None,
        kind => Some(failure(kind, status, said)),
    }
}

/// Why a connection could not be made.
fn failure(kind: Kind, status: i32, said: Said) -> ConnectFailure {
    match (kind, said) {
        (Kind::Unreachable, Said::Datagram(peer)) if status > 0 => {
            ConnectFailure::ServiceRejected {
                status,
                private_data: peer.private_data,
            }
        }
        (Kind::Rejected, said) => ConnectFailure::Rejected {
            reason: status,
            private_data: said.private_data(),
        },
        (Kind::Unreachable, _) => ConnectFailure::Unreachable { status },
        (Kind::Disconnected, _) => ConnectFailure::Disconnected,
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

    fn nothing_said() -> Said {
        Said::Connection(PeerParam::default())
    }

    #[test]
    fn late_failure_of_established_connection_keeps_its_cause() {
        let cause = |kind, status| cause(kind, status, nothing_said());
        assert_eq!(cause(Kind::Disconnected, 0), None);
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
    fn unknown_events_are_other() {
        assert_eq!(Kind::from(rdma_cm_event_type(99)), Kind::Other);
        assert_eq!(
            Kind::from(rdma_cm_event_type::RDMA_CM_EVENT_USER),
            Kind::Other
        );
    }
}
