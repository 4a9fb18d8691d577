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
    /// The identifier; for requests the one that listens.
    pub id: IdNum,
    /// What has happened.
    pub what: Occurrence,
}

/// The contents of an event. A negative status is an errno.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Occurrence {
    /// The peer's address has been resolved; the identifier has a device.
    AddrResolved,
    /// The peer's address has not been resolved in time.
    AddrError(i32),
    /// The route has been resolved.
    RouteResolved,
    /// A peer asks for a connection.
    ConnectRequest {
        /// Identifier of the new connection.
        child: IdNum,
        /// Parameters of the peer.
        param: ConnParam,
        /// Options of the vendor's.
        ece: Ece,
        /// Data of the peer.
        private_data: PrivateData,
    },
    /// The peer has accepted.
    ConnectResponse {
        /// Parameters of the peer.
        param: ConnParam,
        /// Options of the vendor's.
        ece: Ece,
        /// Data of the peer.
        private_data: PrivateData,
    },
    /// The connection is established.
    Established,
    /// The peer has refused, for a reason that the specification numbers.
    Rejected {
        /// The reason.
        reason: u16,
        /// Data of the peer.
        private_data: PrivateData,
    },
    /// The peer has not answered in time, or has refused a service of datagrams with a positive status.
    Unreachable {
        /// Result.
        status: i32,
        /// Data of the peer.
        private_data: PrivateData,
    },
    /// The connection has ended; the status tells whether the peer has agreed.
    Disconnected(i32),
    /// Packets of the connection cannot be on their way any more.
    TimewaitExit,
    /// A peer asks for the queue pair of a service.
    ServiceRequest {
        /// Identifier of the answer.
        child: IdNum,
        /// Data of the peer.
        private_data: PrivateData,
    },
    /// The peer has named its queue pair.
    ServiceResolved {
        /// The way to the peer.
        path: Path,
        /// Number of the queue pair.
        qp_num: u32,
        /// Key of the queue pair.
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
        /// Address of the device that is the member.
        local: IpAddr,
    },
    /// The device of the identifier has been removed.
    DeviceRemoval,
}
