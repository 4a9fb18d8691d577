//! Everything that a process has of the protocol: its sockets, and its connections to other hosts.
//!
//! The caller does what comes out of [`poll`](Node::poll), [`transmit`](Node::transmit),
//! [`acknowledge`](Node::acknowledge) and [`probe`](Node::probe) for every connection that [`busy`](Node::busy) names, and
//! again when its [`deadline`](Node::deadline) has come. It brings what happens below:
//! [`request`](Node::request), [`established`](Node::established), [`failed`](Node::failed),
//! [`closed`](Node::closed), [`received`](Node::received) and [`completed`](Node::completed).
//! Sockets whose state has changed come out of [`woken`](Node::woken), and memory that the device
//! does not use any more out of [`finished`](Node::finished).

mod admission;
mod counters;
mod error;
mod info;
mod peers;
mod ports;
mod socket;
mod sockets;
mod table;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    num::NonZero,
    time::Duration,
};

use counters::Counters;
use fastrand::Rng;
use ports::Ports;
use socket::Socket;
use table::PeerTable;

pub use error::SocketError;
pub use peers::BadRequest;
pub use socket::{DEFAULT_LIMIT, Delivery, Event, Pending, Readiness};
pub use sockets::{LocalMessage, NotSent, Sent};

use super::{
    Host, PendingSet, SocketId,
    connection::{self, Finished},
    wire::CongestionMap,
};

/// How a node is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// How its connections are to be.
    pub connection: connection::Settings,
    /// The number of the first message of every connection: higher than all of earlier processes
    /// at the same addresses. See [`Connection::new`](connection::Connection::new).
    pub first_sequence: NonZero<u64>,
    /// Maximum number of connections that are remembered. Peers that ask can have seven eighths of them; the rest is
    /// for peers that programs here send to. Where there are more, one that is idle is forgotten.
    pub max_connections: usize,
    /// Maximum number of connections to one address, of different types of service.
    pub max_connections_per_peer: usize,
    /// Maximum number of peers at a time that have asked to connect, and never been connected. An eighth can be of
    /// one address; further requests are refused, and the oldest gives way after 2 s.
    pub max_pending: usize,
    /// Maximum number of connections that are up, or being made or closed: each has memory that is pinned. Where
    /// there are more, one that is idle is closed, requests are refused, and dialling waits.
    pub max_links: usize,
    /// Time without a frame from the peer after which a connection that owes nothing is idle.
    pub idle_after: Duration,
    /// Maximum number of bytes of peers' messages that wait in all sockets, with 256 bytes for each message. Beyond
    /// it, each connection has a share of its own, which is this divided by `max_connections`; one that exceeds its
    /// share is lost.
    pub max_waiting: u64,
    /// Where all chance comes from.
    pub seed: u64,
}

impl Settings {
    /// The usual settings. `first_sequence` is best the microseconds since 1970.
    pub fn new(first_sequence: NonZero<u64>, seed: u64) -> Self {
        Self {
            connection: connection::Settings::default(),
            first_sequence,
            max_connections: 4096,
            max_connections_per_peer: 16,
            max_pending: 64,
            max_links: 4096,
            idle_after: Duration::from_secs(30),
            max_waiting: 256 << 20,
            seed,
        }
    }
}

/// The two hosts of a connection, and its type of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// This host's address.
    pub local: IpAddr,
    /// The other's.
    pub peer: IpAddr,
    /// The type of service.
    pub tos: u8,
}

impl Route {
    fn key(&self) -> (Host, Host, u8) {
        (self.local.into(), self.peer.into(), self.tos)
    }
}

/// The name of a connection, which no other is ever given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    slot: u32,
    generation: u32,
}

/// So many messages that peers have handled may be listed.
const MAX_UNRETIRED: u64 = 16;

/// Sockets and connections.
#[derive(Debug)]
pub struct Node<P, B> {
    settings: Settings,
    rng: Rng,
    next_socket: u64,
    sockets: BTreeMap<SocketId, Socket<B>>,
    ports: Ports,
    peers: PeerTable<P, B>,
    /// The latest time that is known.
    latest: Duration,
    /// The bytes of peers' messages that wait in sockets, by [`Delivery::cost`].
    waiting_bytes: u64,
    /// When sockets have last been woken only because a map had come.
    maps_told: Option<Duration>,
    routes: BTreeMap<(Host, Host, u8), ConnectionId>,
    /// Which ports of an address here are congested.
    maps: BTreeMap<Host, CongestionMap>,
    /// Which ports of a peer are.
    peer_maps: BTreeMap<Host, CongestionMap>,
    busy: PendingSet<ConnectionId>,
    /// Something is to be done at once about one that is busy.
    has_urgent: bool,
    woken: PendingSet<SocketId>,
    /// Connections whose peers may have handled something that is not known to be over yet.
    unretired: PendingSet<ConnectionId>,
    /// There are many, or somebody waits for room.
    retire_due: bool,
    /// Sockets that had no room to send.
    send_blocked: PendingSet<SocketId>,
    finished: VecDeque<Finished<P>>,
    counters: Counters,
}

impl<P, B: AsRef<[u8]>> Node<P, B> {
    /// A node without sockets and connections.
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
            maps_told: None,
            routes: BTreeMap::new(),
            maps: BTreeMap::new(),
            peer_maps: BTreeMap::new(),
            busy: PendingSet::new(),
            has_urgent: false,
            woken: PendingSet::new(),
            unretired: PendingSet::new(),
            retire_due: false,
            send_blocked: PendingSet::new(),
            finished: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Whether nothing is to be done that has not a [`deadline`](Self::deadline).
    pub fn is_quiet(&self) -> bool {
        let nothing = self.busy.is_empty() && self.woken.is_empty();
        nothing && !self.retire_due && self.finished.is_empty()
    }

    /// A connection that has something to be done.
    pub fn busy(&mut self) -> Option<ConnectionId> {
        let busy = self.busy.pop();
        self.has_urgent &= busy.is_some();
        busy
    }

    /// Whether all that is to be done can be done a little later, if nobody waits but who has just received from this
    /// socket: nobody else is to be told of anything, and no peer.
    pub fn can_wait(&self, receiver: SocketId) -> bool {
        let alone = self.woken.iter().all(|&woken| woken == receiver);
        alone && !self.has_urgent && self.send_blocked.is_empty() && self.finished.is_empty()
    }

    fn mark_urgent(&mut self, id: ConnectionId) {
        self.busy.insert(id);
        self.has_urgent = true;
    }

    /// Finds out what is over, since peers have handled it. That is to be done when it is [time for it](Self::retire_due), and
    /// can be at any other.
    pub fn retire_acked(&mut self) {
        self.retire_due = false;
        while let Some(id) = self.unretired.pop() {
            self.drain(id);
        }
    }

    /// Whether to [retire_acked](Self::retire_acked): while it makes no difference, that is done for many messages at once.
    pub fn retire_due(&self) -> bool {
        self.retire_due
    }

    /// A socket that may have become readable or writable.
    pub fn woken(&mut self) -> Option<SocketId> {
        self.woken.pop()
    }

    /// A message that is over, with what was given with it.
    pub fn finished(&mut self) -> Option<Finished<P>> {
        self.finished.pop_front()
    }

    /// Messages that have been dropped as no socket had their port: `recv_drop_no_sock`.
    pub fn dropped(&self) -> u64 {
        self.counters.no_socket
    }

    /// Marks the port of a socket as congested, or takes the mark away, if that is due, and has all
    /// peers of its address told.
    fn update_congestion(&mut self, id: SocketId) {
        let congestion = self.sockets.get_mut(&id).and_then(Socket::congestion);
        self.tell_congestion(id, congestion);
    }

    /// The same for who knows what is due.
    fn tell_congestion(&mut self, id: SocketId, congestion: Option<bool>) {
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
                self.has_urgent = true;
            }
        }
        // Senders of this process have no other way to learn of it.
        if !congested {
            self.map_came(CongestionMap::fold(port));
        }
    }

    /// Records for all sockets that a map has come, by which these ports of some host are free again, and wakes those
    /// that were refused one of them.
    fn map_came(&mut self, released: u64) {
        for (&id, socket) in &mut self.sockets {
            if socket.map_came(released) {
                self.woken.insert(id);
            }
        }
    }
}
