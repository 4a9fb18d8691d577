//! A node: the sockets of a process, and its connections to other hosts.
//!
//! For every connection returned by [`busy`](Node::busy), and after its
//! [`deadline`](Node::deadline), the caller performs the output of [`poll`](Node::poll),
//! [`transmit`](Node::transmit), [`acknowledge`](Node::acknowledge) and [`probe`](Node::probe).
//! Events of the RDMA connection go to [`request`](Node::request),
//! [`established`](Node::established), [`failed`](Node::failed), [`closed`](Node::closed),
//! [`received`](Node::received) and [`completed`](Node::completed). [`woken`](Node::woken) returns
//! sockets with a changed state, and [`finished`](Node::finished) messages whose memory is no
//! longer needed.

mod admission;
mod error;
mod info;
mod peers;
mod ports;
mod socket;
mod sockets;
mod stats;
mod table;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
    num::NonZero,
    time::Duration,
};

use fastrand::Rng;
use ports::Ports;
use socket::SocketState;
use table::PeerTable;

pub use error::SocketError;
pub use peers::BadRequest;
pub use socket::{DEFAULT_LIMIT, Delivery, Event, MAX_COPIED_LEN, Pending, Readiness};
pub use sockets::{Dispatched, LocalMessage, NotSent};
pub use stats::{NodeStats, SocketStats};

use super::{
    Host, PendingSet, SocketId,
    connection::{self, AllPongs, Finished},
    wire::CongestionMap,
};

/// Settings of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Settings of connections.
    pub connection: connection::Settings,
    /// First sequence number of every connection. Must exceed the sequence numbers of earlier
    /// processes at the same addresses. See [`Connection::new`](connection::Connection::new).
    pub first_sequence: NonZero<u64>,
    /// Maximum number of known connections. One eighth is reserved for peers addressed by local
    /// programs. At the limit, an idle connection is forgotten, or another connection yields.
    pub max_connections: usize,
    /// Maximum number of connections to one address, with different types of service.
    pub max_connections_per_peer: usize,
    /// Maximum number of concurrent connection requests from unknown peers, which also have at most a
    /// quarter of the receives. An address can have one eighth; beyond, its oldest attempt yields
    /// after 2 s. At the limit, the oldest attempt of the address with most of them yields.
    pub max_pending: usize,
    /// Receives posted for a connection until its peer has delivered or acknowledged a message.
    pub initial_receives: u32,
    /// Receives posted for a connection in the end: see [`Node::grow`].
    pub receives: u32,
    /// Memory of the queues of a connection, in receives. Counts as further receives.
    pub queues: u32,
    /// Maximum number of receives posted for all connections, established, connecting or closing.
    /// One eighth is reserved for peers addressed by local programs, and one quarter for the initial
    /// receives of connections. At the limit, a connection of the address with most of them yields.
    pub max_receives: u64,
    /// Time without progress after which the unfinished messages of local programs no longer keep
    /// the last connection of an address from yielding.
    pub idle_after: Duration,
    /// Maximum number of bytes in the receive buffers of all sockets, counting 256 bytes of
    /// overhead per message, and a whole frame for a body over [`MAX_COPIED_LEN`]. Beyond the limit,
    /// a connection is reset if its messages exceed an equal share, `max_waiting / max_connections`.
    pub max_waiting: u64,
    /// Seed of the random number generator.
    pub seed: u64,
}

impl Settings {
    /// The default settings. Microseconds since 1970 are a good `first_sequence`.
    pub fn new(first_sequence: NonZero<u64>, seed: u64) -> Self {
        Self {
            connection: connection::Settings::default(),
            first_sequence,
            max_connections: 4096,
            max_connections_per_peer: 16,
            max_pending: 64,
            initial_receives: 16,
            receives: 768,
            queues: 0,
            max_receives: 1 << 18,
            idle_after: Duration::from_secs(30),
            max_waiting: 256 << 20,
            seed,
        }
    }
}

/// Addresses and type of service of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// The local address.
    pub local: IpAddr,
    /// The peer's address.
    pub peer: IpAddr,
    /// Type of service.
    pub tos: u8,
}

impl Route {
    fn key(&self) -> (Host, Host, u8) {
        (self.local.into(), self.peer.into(), self.tos)
    }
}

/// Id of a connection, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    slot: u32,
    generation: u32,
}

/// Number of acknowledged messages per connection after which they are retired.
const MAX_UNRETIRED: u64 = 16;

/// Sockets and connections of a process.
#[derive(Debug)]
pub struct Node<P, B> {
    settings: Settings,
    rng: Rng,
    next_socket: u64,
    sockets: BTreeMap<SocketId, SocketState<B>>,
    ports: Ports,
    peers: PeerTable<P, B>,
    /// The latest time passed to a call.
    latest: Duration,
    /// Bytes of received messages in all sockets, by [`Delivery::cost`].
    waiting_bytes: u64,
    routes: BTreeMap<(Host, Host, u8), ConnectionId>,
    /// Congestion maps of local addresses.
    maps: BTreeMap<Host, CongestionMap>,
    /// Congestion maps of peers.
    peer_maps: BTreeMap<Host, CongestionMap>,
    /// Sockets with a send refused by a congested port that is not released yet.
    congestion_blocked: BTreeSet<SocketId>,
    busy: PendingSet<ConnectionId>,
    woken: PendingSet<SocketId>,
    /// Connections with acknowledged messages not retired yet.
    unretired: PendingSet<ConnectionId>,
    /// Retiring is due: many messages are acknowledged, or a socket waits for room.
    retire_due: bool,
    /// Sockets with a full send buffer.
    send_blocked: PendingSet<SocketId>,
    finished: VecDeque<Finished<P>>,
    /// Resources were missing for a connection, and no other has ended since.
    is_exhausted: bool,
    /// Number of queued pongs of all connections.
    pongs: AllPongs,
    counters: NodeStats,
}

impl<P, B: AsRef<[u8]>> Node<P, B> {
    /// Creates a node without sockets and connections.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            rng: Rng::with_seed(settings.seed),
            next_socket: 0,
            sockets: BTreeMap::new(),
            ports: Ports::default(),
            peers: PeerTable::new(),
            latest: Duration::ZERO,
            waiting_bytes: 0,
            routes: BTreeMap::new(),
            maps: BTreeMap::new(),
            peer_maps: BTreeMap::new(),
            congestion_blocked: BTreeSet::new(),
            busy: PendingSet::new(),
            woken: PendingSet::new(),
            unretired: PendingSet::new(),
            retire_due: false,
            send_blocked: PendingSet::new(),
            finished: VecDeque::new(),
            is_exhausted: false,
            pongs: AllPongs::default(),
            counters: NodeStats::default(),
        }
    }

    /// Whether no work is left except at a [`deadline`](Self::deadline).
    pub fn is_quiet(&self) -> bool {
        let is_idle = self.busy.is_empty() && self.woken.is_empty();
        is_idle && !self.retire_due && self.finished.is_empty()
    }

    /// The next connection with work to do.
    pub fn busy(&mut self) -> Option<ConnectionId> {
        self.busy.pop()
    }

    /// Retires acknowledged messages, when [due](Self::retire_due) or at any other time.
    pub fn retire_acked(&mut self) {
        self.retire_due = false;
        while let Some(id) = self.unretired.pop() {
            self.drain(id);
        }
    }

    /// Whether to call [`retire_acked`](Self::retire_acked). Retiring is batched while only buffer
    /// space depends on it.
    pub fn retire_due(&self) -> bool {
        self.retire_due
    }

    /// The next socket with a possible change of readiness.
    pub fn woken(&mut self) -> Option<SocketId> {
        self.woken.pop()
    }

    /// The next finished message.
    pub fn finished(&mut self) -> Option<Finished<P>> {
        self.finished.pop_front()
    }

    /// Statistics of the node.
    pub fn stats(&self) -> NodeStats {
        let mut stats = self.counters;
        for (_, peer) in self.peers.iter() {
            stats.add(peer.connection.stats());
        }
        stats
    }

    /// Updates the congestion bit of a socket's port, and schedules the map for all peers of its
    /// address.
    fn update_congestion(&mut self, id: SocketId) {
        let congestion = self.sockets.get_mut(&id).and_then(SocketState::congestion);
        self.set_congestion(id, congestion);
    }

    /// Sets the congestion bit of a socket's port, if it changes.
    fn set_congestion(&mut self, id: SocketId, congestion: Option<bool>) {
        if let Some(congested) = congestion
            && let Some(bound) = self.sockets.get(&id).and_then(|socket| socket.bound)
        {
            self.mark(bound.ip(), bound.port(), congested);
        }
    }

    fn mark(&mut self, ip: IpAddr, port: u16, congested: bool) {
        if !self.maps.entry(ip.into()).or_default().set(port, congested) {
            return;
        }
        for (id, peer) in self.peers.iter_mut() {
            if peer.route.local == ip {
                peer.connection.map_changed();
                self.counters.maps_queued += 1;
                self.busy.insert(id);
            }
        }
        // Local senders are woken directly.
        if !congested {
            self.ports_released(CongestionMap::fold(port));
        }
    }

    /// Wakes the sockets with a refused send to one of these ports, which are no longer congested.
    fn ports_released(&mut self, released: u64) {
        let Self {
            sockets,
            woken,
            congestion_blocked,
            ..
        } = self;
        congestion_blocked.retain(|&id| {
            let Some(socket) = sockets.get_mut(&id) else {
                return false;
            };
            if socket.ports_released(released) {
                woken.insert(id);
            }
            socket.awaits_ports()
        });
    }
}
