//! Events of identifiers.

use std::net::IpAddr;

use super::{
    id::IdNum,
    param::{ConnParam, Ece},
    private_data::PrivateData,
};
use crate::engine::Path;

/// Number of a membership in a multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId(
    /// The number.
    pub u32,
);

/// An event of an identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmEvent {
    /// The identifier; for requests, the listener.
    pub id: IdNum,
    /// Kind and contents of the event.
    pub what: Occurrence,
}

/// Contents of an event. A negative status is an errno.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Occurrence {
    /// The peer's address has been resolved; the identifier has a device.
    AddrResolved,
    /// The peer's address was not resolved in time.
    AddrError(i32),
    /// The route has been resolved.
    RouteResolved,
    /// A connection request of a peer (REQ).
    ConnectRequest {
        /// Identifier of the new connection.
        child: IdNum,
        /// Parameters of the peer.
        param: ConnParam,
        /// Vendor options of the peer.
        ece: Ece,
        /// Data of the peer.
        private_data: PrivateData,
    },
    /// The peer has accepted (REP).
    ConnectResponse {
        /// Parameters of the peer.
        param: ConnParam,
        /// Vendor options of the peer.
        ece: Ece,
        /// Data of the peer.
        private_data: PrivateData,
    },
    /// The connection is established.
    Established,
    /// The peer has rejected (REJ).
    Rejected {
        /// Reason, as numbered by the specification.
        reason: u16,
        /// Data of the peer.
        private_data: PrivateData,
    },
    /// The peer has not answered in time, or has rejected a service of datagrams with a positive status.
    Unreachable {
        /// Negative errno, or positive status of the peer.
        status: i32,
        /// Data of the peer.
        private_data: PrivateData,
    },
    /// The connection has ended: status 0 if the peer has acknowledged, or a negative errno.
    Disconnected(i32),
    /// Packets of the connection can no longer be in flight.
    TimewaitExit,
    /// A peer's request for the queue pair of a service (SIDR).
    ServiceRequest {
        /// Identifier for the answer.
        child: IdNum,
        /// Data of the peer.
        private_data: PrivateData,
    },
    /// The peer has answered with a queue pair.
    ServiceResolved {
        /// Path to the peer.
        path: Path,
        /// Number of the queue pair.
        qp_num: u32,
        /// Q_Key of the queue pair.
        qkey: u32,
        /// Data of the peer.
        private_data: PrivateData,
    },
    /// The identifier is a member of a multicast group.
    MulticastJoined {
        /// The membership.
        membership: GroupId,
        /// The group.
        group: IpAddr,
        /// Address of the member device.
        local: IpAddr,
    },
    /// The device of the identifier has been removed.
    DeviceRemoval,
}
