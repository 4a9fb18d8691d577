//! Identifiers: one end of a connection, a listener, or one end of a service of datagrams.

use std::{net::SocketAddr, time::Duration};

use super::{
    connection::Connection, datagram::Service, event::GroupId, param::Ece, port_space::PortSpace,
};

/// Number of an identifier, and of the connection in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdNum(
    /// The number.
    pub u32,
);

/// Options of an identifier.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    /// Whether the address may be shared with other identifiers of the same option.
    pub(super) reuse_addr: bool,
    /// Whether an IPv6 wildcard excludes IPv4; `None` for the default of the address family.
    pub(super) af_only: Option<bool>,
    /// Traffic class of the path.
    pub(super) tos: u8,
    /// Acknowledgement timeout, as 4.096 µs · 2^n.
    pub(super) ack_timeout: Option<u8>,
}

/// State of an identifier.
#[derive(Debug)]
pub(super) enum IdState {
    Idle,
    Bound,
    /// Waiting for an address without a host; the errno is the status of the failure.
    ResolvingAddr {
        until: Duration,
        errno: i32,
    },
    AddrResolved,
    RouteResolved,
    Listening {
        /// Maximum number of requests not yet taken by the program.
        backlog: usize,
        /// Number of requests not yet taken by the program.
        waiting: usize,
    },
    Connection(Box<Connection>),
    Service(Box<Service>),
}

/// An identifier.
#[derive(Debug)]
pub(super) struct Id {
    pub(super) space: PortSpace,
    /// Address of this host; unspecified for a listener on all addresses.
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) options: Options,
    /// Vendor options for the peer.
    pub(super) ece: Ece,
    pub(super) state: IdState,
    pub(super) groups: Vec<GroupId>,
    /// The listener of a request not yet taken by the program.
    pub(super) waits_at: Option<IdNum>,
    /// The identifier's earliest entry in the manager's timers.
    pub(super) timer: Option<Duration>,
    /// Number of the identifier in the order of creation; its communication id is pseudorandom.
    pub(super) serial: u64,
}

impl Id {
    pub(super) fn new(space: PortSpace) -> Self {
        Self {
            space,
            local: None,
            peer: None,
            options: Options::default(),
            ece: Ece::default(),
            state: IdState::Idle,
            groups: Vec::new(),
            waits_at: None,
            timer: None,
            serial: 0,
        }
    }

    /// Whether the identifier is bound to a device.
    pub(super) fn has_device(&self) -> bool {
        self.local.is_some_and(|addr| !addr.ip().is_unspecified())
    }

    /// Deadline of the identifier's state.
    pub(super) fn deadline(&self) -> Option<Duration> {
        match &self.state {
            IdState::ResolvingAddr { until, .. } => Some(*until),
            IdState::Connection(connection) => connection.deadline(),
            IdState::Service(service) => service.deadline(),
            _ => None,
        }
    }
}
