//! Connections of a node.

use std::{collections::BTreeSet, error, fmt, net::IpAddr, time::Duration};

use super::{ConnectionId, Delivery, MAX_UNRETIRED, Node, Route, Settings};
use crate::{
    SocketId,
    connection::{
        Bodies, Completion, Connection, ConnectionStats, MessageOutcome, Received, Tag, Violation,
        Work,
    },
    link::{Action, Attempt, Demand, Failure, Link, RequestId},
    wire::{BadConnectData, BadHeader, CongestionMap, ConnectData, Header, HostPair, Version},
};

/// A connection to a peer, and the link below.
#[derive(Debug)]
pub(super) struct Peer<P, B> {
    pub(super) route: Route,
    hosts: HostPair,
    pub(super) link: Link,
    pub(super) connection: Connection<P, B>,
    /// Sockets blocked by congestion of the peer. The peer sends its map when connected, so the
    /// link dials until a map arrives, even if the connection is lost meanwhile.
    waiting: BTreeSet<SocketId>,
    /// Private data of the peer's last connection request.
    request: Option<ConnectData>,
    /// The accepted attempt, with the peer's private data.
    accepted: Option<(Attempt, ConnectData)>,
    /// The peer was connected or has sent data, so the entry is kept to distinguish retransmissions
    /// from new messages.
    pub(super) is_proven: bool,
    /// Time of the last frame, or of the last change of the connection.
    pub(super) used_at: Duration,
    /// Bytes of its messages in sockets, by [`Delivery::cost`].
    pub(super) waiting_bytes: u64,
    /// Requests of the peer are rejected until then, because its connection was closed in favor of
    /// others.
    pub(super) retired_until: Duration,
    /// Receives posted for the link, in frames.
    pub(super) receives: u32,
    /// Time at which the link began to connect.
    pub(super) linked_at: Duration,
    /// Time at which the peer last delivered a message to a socket, or acknowledged one of a local
    /// program, over this link.
    pub(super) proven_at: Option<Duration>,
    /// Time at which messages of local programs were in progress, at first or after the last acknowledgement. Not changed by a
    /// new link.
    pub(super) pending_since: Option<Duration>,
    /// The peer has acknowledged a message of a local program.
    pub(super) has_acked: bool,
    /// The last request for which another connection has yielded, because resources were missing.
    pub(super) exhausted_by: Option<RequestId>,
}

impl<P, B: AsRef<[u8]>> Peer<P, B> {
    pub(super) fn new(
        route: Route,
        hosts: HostPair,
        settings: &Settings,
        seed: u64,
        now: Duration,
    ) -> Self {
        Self {
            route,
            hosts,
            link: Link::new(route.local, route.peer, seed),
            connection: Connection::new(&settings.connection, settings.first_sequence),
            waiting: BTreeSet::new(),
            request: None,
            accepted: None,
            is_proven: false,
            used_at: now,
            waiting_bytes: 0,
            retired_until: Duration::ZERO,
            receives: 0,
            linked_at: Duration::ZERO,
            proven_at: None,
            pending_since: None,
            has_acked: false,
            exhausted_by: None,
        }
    }

    /// Begins a link with a number of receives.
    pub(super) fn begin_link(&mut self, now: Duration, receives: u32) {
        self.receives = receives;
        self.linked_at = now;
        self.proven_at = None;
    }

    /// Notes the time at which messages are in progress.
    fn note_pending(&mut self, now: Duration) {
        if self.is_idle() {
            self.pending_since = None;
        } else {
            self.pending_since.get_or_insert(now);
        }
    }

    /// Whether no message is unfinished, and no socket waits for the peer.
    pub(super) fn is_idle(&self) -> bool {
        self.connection.all_finished() && self.waiting.is_empty()
    }

    /// Whether the entry can be removed at the cost of duplicate detection only.
    pub(super) fn is_forgettable(&self) -> bool {
        self.link.is_down() && self.is_idle()
    }

    /// Whether the entry can be removed once the connection has closed.
    pub(super) fn is_ending(&self) -> bool {
        self.link.is_ending() && self.is_idle()
    }

    /// Whether this host dials without messages to send: the attempt only spares the peer a request.
    pub(super) fn is_optional(&self) -> bool {
        self.link.is_dialing() && self.is_idle()
    }
}

/// Why a connection request is rejected.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadRequest {
    /// Invalid private data.
    Data(BadConnectData),
    /// The addresses of the hosts have different families.
    Family(IpAddr, IpAddr),
    /// The number of connections, in total or to this peer, is at this limit, and none can be
    /// forgotten.
    Connections(usize),
    /// The number of pending requests, in total or from this address, is at this limit.
    Pending(usize),
    /// The number of posted receives of all connections is at the limit, and no connection yields.
    Receives(u64),
}

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(bad) => bad.fmt(f),
            Self::Family(local, peer) => {
                write!(f, "{peer} and {local} have different address families")
            }
            Self::Connections(count) => write!(f, "the limit of {count} connections is reached"),
            Self::Pending(count) => write!(f, "the limit of {count} pending requests is reached"),
            Self::Receives(count) => {
                write!(f, "{count} receives are posted, and no connection yields")
            }
        }
    }
}

/// Reads as [`Display`](fmt::Display): `unwrap` and `fn main() -> Result` print it.
impl fmt::Debug for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl error::Error for BadRequest {}

impl From<BadConnectData> for BadRequest {
    fn from(bad: BadConnectData) -> Self {
        Self::Data(bad)
    }
}

impl<P, B: AsRef<[u8]>> Node<P, B> {
    pub(super) fn peer(&mut self, id: ConnectionId) -> Option<&mut Peer<P, B>> {
        self.busy.insert(id);
        self.peers.get_mut(id)
    }

    /// Requests a connection for a socket blocked by congestion, until the peer sends a congestion
    /// map or the socket is closed.
    pub(super) fn await_map(&mut self, id: SocketId, route: Route) {
        let Ok(connection) = self.connection_to(route) else {
            return;
        };
        if let Some(peer) = self.peer(connection) {
            peer.waiting.insert(id);
        }
    }

    /// Removes a closed socket from all peers.
    pub(super) fn wait_no_more(&mut self, id: SocketId) {
        self.congestion_blocked.remove(&id);
        for (connection, peer) in self.peers.iter_mut() {
            if peer.waiting.remove(&id) {
                self.busy.insert(connection);
            }
        }
    }

    /// Addresses and type of service of a connection.
    pub fn route(&self, id: ConnectionId) -> Option<Route> {
        self.peers.get(id).map(|peer| peer.route)
    }

    /// The current attempt or connection of the link.
    pub fn attempt(&self, id: ConnectionId) -> Option<Attempt> {
        self.peers.get(id)?.link.current()
    }

    /// Ids of all connections.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.peers.iter().map(|(id, _)| id)
    }

    /// Whether the peer has delivered a message to a socket, or acknowledged one of a local program,
    /// over the current link.
    #[inline]
    pub fn is_proven(&self, id: ConnectionId) -> bool {
        self.peers
            .get(id)
            .is_some_and(|peer| peer.proven_at.is_some())
    }

    /// Counts the receives posted for a connection whose device needs more than the initial ones.
    pub fn count_receives(&mut self, id: ConnectionId, receives: u32) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.receives = receives;
        }
    }

    /// Whether the link is up.
    pub fn is_up(&self, id: ConnectionId) -> bool {
        self.peers.get(id).is_some_and(|peer| peer.link.is_up())
    }

    /// Next sequence numbers to send and to expect.
    pub fn next_sequences(&self, id: ConnectionId) -> Option<(u64, u64)> {
        let peer = self.peers.get(id)?;
        Some(peer.connection.next_sequences())
    }

    /// Statistics of a connection.
    pub fn connection_stats(&self, id: ConnectionId) -> Option<ConnectionStats> {
        Some(self.peers.get(id)?.connection.stats())
    }

    /// Private data for dialing.
    pub fn proposal(&self, id: ConnectionId) -> Option<ConnectData> {
        let peer = self.peers.get(id)?;
        Some(ConnectData::proposal(peer.hosts, peer.route.tos))
    }

    /// Private data for accepting.
    pub fn answer(&self, id: ConnectionId) -> Option<ConnectData> {
        let peer = self.peers.get(id)?;
        let (_, proposal) = peer.accepted.as_ref()?;
        proposal.answer(peer.hosts.reversed()).ok()
    }

    pub(super) fn demand(&self, id: ConnectionId) -> Demand {
        match self.peers.get(id) {
            // The demand is met.
            Some(peer) if peer.link.is_up() => Demand::Nothing,
            Some(peer) if !peer.waiting.is_empty() || peer.connection.has_unacknowledged() => {
                Demand::Messages
            }
            Some(peer) if self.ports.has(peer.route.local) => Demand::Sockets,
            _ => Demand::Nothing,
        }
    }

    /// The next action of the link, if any. Without an action, an unknown peer with nothing queued
    /// is forgotten.
    pub fn poll(&mut self, now: Duration, id: ConnectionId) -> Option<Action> {
        let peer = self.peers.get_mut(id)?;
        peer.note_pending(now);
        if peer.connection.is_stalled(now)
            && let Some(attempt) = peer.link.current()
        {
            peer.link.failed(attempt, Failure::Lost);
        }
        if peer.link.is_idle() {
            return None;
        }
        self.latest = now;
        let demand = self.demand(id);
        self.admit_held(now, id);
        if self.peers.get(id)?.link.is_about_to_dial(now, demand) {
            self.postpone_dial(now, id);
        }
        let receives = self.settings.initial_receives;
        let peer = self.peers.get_mut(id)?;
        match peer.link.poll(now, demand) {
            Some(Action::Dial(attempt)) => {
                peer.begin_link(now, receives);
                Some(Action::Dial(attempt))
            }
            Some(Action::Accept(request, attempt)) => {
                peer.accepted = peer.request.map(|proposal| (attempt, proposal));
                Some(Action::Accept(request, attempt))
            }
            None if !peer.is_proven && peer.is_forgettable() => {
                self.forget(id);
                None
            }
            action => action,
        }
    }

    /// Whether the connection is up and has no work.
    pub fn is_idle(&self, now: Duration, id: ConnectionId) -> bool {
        let peer = self.peers.get(id);
        peer.is_some_and(|peer| peer.link.is_idle() && peer.connection.is_idle(now))
    }

    /// Time of the next timer of a connection.
    pub fn deadline(&self, id: ConnectionId) -> Option<Duration> {
        let peer = self.peers.get(id)?;
        let link = peer.link.deadline(self.demand(id)).into_iter();
        let connection = peer.connection.deadline();
        link.chain(connection.filter(|_| peer.link.is_up())).min()
    }

    /// Handles a connection request of a peer. The answer follows as an [`Action`].
    ///
    /// # Errors
    /// Reject the request with [`REJECTED`](crate::wire::REJECTED). The rejection is
    /// [counted](Self::refused).
    pub fn request(
        &mut self,
        now: Duration,
        hosts: (IpAddr, IpAddr),
        data: &[u8],
        request: RequestId,
    ) -> Result<ConnectionId, BadRequest> {
        self.latest = now;
        let result = self.handle_request(now, hosts, data, request);
        if result.is_err() {
            self.refused();
        }
        result
    }

    /// Counts a rejected request: `conn_refused`.
    pub fn refused(&mut self) {
        self.counters.refused += 1;
    }

    fn handle_request(
        &mut self,
        now: Duration,
        (local, peer): (IpAddr, IpAddr),
        data: &[u8],
        request: RequestId,
    ) -> Result<ConnectionId, BadRequest> {
        let hosts = HostPair::new(peer, local).ok_or(BadRequest::Family(local, peer))?;
        let proposal = ConnectData::decode(data, hosts.family())?;
        proposal.answer(hosts)?;
        let route = Route {
            local,
            peer,
            tos: proposal.tos,
        };
        let id = self.admit_request(now, route)?;
        if let Some(peer) = self.peer(id) {
            // The link rejects an older pending request.
            peer.request = Some(proposal);
            peer.link.request(now, request);
        }
        Ok(id)
    }

    /// Handles an established attempt; `reply` is the peer's private data if this host dialed.
    /// Returns whether the attempt is the current one.
    ///
    /// # Errors
    /// The private data is invalid, and the attempt has failed.
    pub fn established(
        &mut self,
        now: Duration,
        id: ConnectionId,
        attempt: Attempt,
        reply: Option<&[u8]>,
    ) -> Result<bool, BadConnectData> {
        let Some(peer) = self.peer(id) else {
            return Ok(false);
        };
        let accepted = peer.accepted.filter(|(accepted, _)| *accepted == attempt);
        let adopted = match (accepted, reply) {
            (Some((_, proposal)), _) => Ok(proposal),
            (None, reply) => ConnectData::decode(reply.unwrap_or_default(), peer.hosts.family())
                .and_then(|reply| match Version::adopt(&reply) {
                    Some(_) => Ok(reply),
                    None => Err(BadConnectData::Version(reply.version)),
                }),
        };
        match adopted {
            Ok(adopted) => {
                let counts = peer.link.established(attempt);
                if counts {
                    peer.is_proven = true;
                    peer.used_at = now;
                    peer.connection.established(now, adopted.ack);
                }
                self.drain(id);
                Ok(counts)
            }
            Err(bad) => {
                peer.link.failed(attempt, Failure::Refused);
                Err(bad)
            }
        }
    }

    /// Handles a failed attempt or a lost connection.
    pub fn failed(&mut self, id: ConnectionId, attempt: Attempt, failure: Failure) {
        if let Some(peer) = self.peer(id) {
            peer.link.failed(attempt, failure);
        }
    }

    /// Handles the end of closing: the device has released the resources of an attempt.
    pub fn closed(&mut self, now: Duration, id: ConnectionId, attempt: Attempt) {
        self.busy.insert(id);
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        if peer.link.current() == Some(attempt) {
            self.counters.resets += u64::from(peer.connection.is_up());
            peer.connection.reset();
            peer.link.closed(now, attempt);
            peer.used_at = now;
            peer.receives = 0;
            self.drain(id);
            self.is_exhausted = false;
            // Their resources may be free now.
            for (id, peer) in self.peers.iter() {
                if peer.link.is_held() {
                    self.busy.insert(id);
                }
            }
        }
    }

    /// Records the loss of frames acknowledged by the device. Call before [`closed`](Self::closed).
    pub fn mark_rx_lost(&mut self, id: ConnectionId) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.connection.mark_rx_lost();
        }
    }

    /// Gives up messages with unusable payloads. Their operations end with
    /// [`Dropped`](crate::connection::Status::Dropped).
    pub fn give_up(&mut self, id: ConnectionId, which: impl Fn(&P) -> bool) {
        if let Some(peer) = self.peer(id) {
            peer.connection.give_up(which);
            self.drain(id);
        }
    }

    /// Calls `each` with the payload of every unfinished message of a connection.
    pub fn payloads(&self, id: ConnectionId, each: impl FnMut(&P)) {
        if let Some(peer) = self.peers.get(id) {
            peer.connection.payloads(each);
        }
    }

    /// The next request to post, given `free` entries of the send queue.
    pub fn transmit(&mut self, id: ConnectionId, free: u32) -> Option<Work<'_, P>> {
        let peer = self.peers.get_mut(id)?;
        if !peer.link.is_up() {
            return None;
        }
        let (maps, local) = (&mut self.maps, peer.route.local.into());
        peer.connection
            .transmit(free, move || &*maps.entry(local).or_default())
    }

    /// The pure acknowledgement to post, if one is due. Call after [`transmit`](Self::transmit)
    /// returns `None`.
    pub fn acknowledge(
        &mut self,
        now: Duration,
        id: ConnectionId,
    ) -> Option<(Tag, [u8; Header::SIZE])> {
        let peer = self.peers.get_mut(id).filter(|peer| peer.link.is_up())?;
        let ack = peer.connection.acknowledge(now);
        self.counters.acks_sent += u64::from(ack.is_some());
        ack
    }

    /// The keepalive probe to post, if one is due: see [`Connection::probe`].
    pub fn probe(&mut self, now: Duration, id: ConnectionId) -> Option<Tag> {
        let peer = self.peers.get_mut(id).filter(|peer| peer.link.is_up())?;
        peer.connection.probe(now)
    }

    /// Whether progress depends on a send completion. Otherwise send completions can wait until the
    /// next receive or send.
    pub fn awaits_device(&self, id: ConnectionId) -> bool {
        let peer = self.peers.get(id);
        peer.is_some_and(|peer| peer.connection.awaits_device())
    }

    /// Handles the completion of a signaled request, and of earlier unsignaled ones.
    pub fn completed(&mut self, id: ConnectionId, tag: Tag, completion: Completion) {
        if let Some(peer) = self.peer(id) {
            peer.connection.completed(tag, completion);
            self.drain(id);
        }
    }

    /// Collects the finished messages and operations of a connection.
    pub(super) fn drain(&mut self, id: ConnectionId) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        while let Some(notification) = peer.connection.notification() {
            if let Some(socket) = self.sockets.get_mut(&notification.owner) {
                socket.notify(notification);
                self.woken.insert(notification.owner);
            }
        }
        while let Some(finished) = peer.connection.finished() {
            if finished.outcome == MessageOutcome::Done {
                peer.proven_at = Some(self.latest);
                peer.pending_since = None;
                peer.has_acked = true;
            }
            let owner = finished.message.owner;
            if let Some(socket) = self.sockets.get_mut(&owner) {
                socket.released(finished.message.draft.len);
                if socket.may_send() {
                    self.send_blocked.remove(&owner);
                }
                self.woken.insert(owner);
            }
            self.finished.push_back(finished);
        }
    }

    /// Handles a received frame. Returns owner and key of exported memory used by the peer, to end
    /// a use-once export.
    ///
    /// # Errors
    /// The peer has violated the protocol; the link closes the connection.
    pub fn received(
        &mut self,
        now: Duration,
        id: ConnectionId,
        header: &[u8],
        body: B,
    ) -> Result<Option<(SocketId, u32)>, Violation> {
        self.busy.insert(id);
        let Some(peer) = self.peers.get_mut(id) else {
            return Ok(None);
        };
        peer.used_at = now;
        // The RTU may arrive later or never.
        peer.is_proven = true;
        let route = peer.route;
        let plain = peer.connection.plain(now, header, body.as_ref().len());
        let result = match plain.and_then(|header| Some((header, self.receiver(route, header.to)?)))
        {
            Some((header, owner)) => {
                self.deliver_plain(now, id, owner, &header, body);
                Ok(None)
            }
            None => self.receive_any(now, id, route, header, body),
        };
        let Some(peer) = self.peers.get(id) else {
            return result;
        };
        if peer.connection.has_acked() {
            if peer.connection.can_retire_later() {
                self.retire_due |=
                    peer.connection.acked_len() >= MAX_UNRETIRED || !self.send_blocked.is_empty();
                self.unretired.insert(id);
            } else {
                self.drain(id);
            }
        }
        result
    }

    /// The receiving socket of a message, if it has room.
    fn receiver(&self, route: Route, port: u16) -> Option<SocketId> {
        let owner = self.ports.find(route.local, port)?;
        let fits = self.waiting_bytes < self.settings.max_waiting;
        (fits && self.sockets.get(&owner)?.has_space()).then_some(owner)
    }

    /// Whether the next message of a connection exceeds its share of a socket's buffer or of all
    /// buffers. A connection below its share is not affected by the others.
    fn exceeds(&self, id: ConnectionId, owner: SocketId) -> bool {
        let socket = self.sockets.get(&owner);
        let fills_socket =
            socket.is_some_and(|socket| !socket.has_space() && socket.is_filled_by(id));
        let max = self.settings.max_waiting;
        let share = max / self.settings.max_connections.max(1) as u64;
        let of_connection = self.peers.get(id).map_or(0, |peer| peer.waiting_bytes);
        fills_socket || self.waiting_bytes >= max && of_connection >= share
    }

    /// Delivers a plain message to a socket with room.
    fn deliver_plain(
        &mut self,
        now: Duration,
        id: ConnectionId,
        owner: SocketId,
        header: &Header,
        body: B,
    ) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        peer.connection.take_plain(now, header);
        peer.proven_at = Some(now);
        let delivery = Delivery {
            connection: Some(id),
            sequence: header.sequence,
            from: (peer.route.peer, header.from).into(),
            times: Some((now, now)),
            len: header.len,
            bodies: Bodies::One(body),
            cookie: None,
        };
        self.deliver(owner, delivery);
    }

    /// Handles frames outside of the plain path.
    #[inline(never)]
    fn receive_any(
        &mut self,
        now: Duration,
        id: ConnectionId,
        route: Route,
        header: &[u8],
        body: B,
    ) -> Result<Option<(SocketId, u32)>, Violation> {
        let Some(peer) = self.peers.get_mut(id) else {
            return Ok(None);
        };
        if !peer.link.is_active() {
            peer.connection.ended(header);
        }
        let result = match peer.connection.received(now, header, body) {
            Ok(Some(received)) => self.take(now, id, route, received),
            Ok(None) => Ok(None),
            Err(violation) => Err(violation),
        };
        if let Err(violation) = &result {
            let damaged = matches!(violation, Violation::Header(BadHeader::Checksum(_)));
            self.counters.bad_checksums += u64::from(damaged);
            if let Some(peer) = self.peer(id)
                && let Some(attempt) = peer.link.current()
            {
                peer.link.failed(attempt, Failure::Lost);
            }
        }
        result
    }

    fn take_map(&mut self, route: Route, map: CongestionMap) {
        self.counters.maps_received += 1;
        let old = self.peer_maps.get(&route.peer.into());
        let released = old.map_or(0, |old| old.released(&map));
        self.peer_maps.insert(route.peer.into(), map);
        for (_, peer) in self.peers.iter_mut() {
            if peer.route.peer == route.peer {
                // A socket still blocked registers again.
                for socket in std::mem::take(&mut peer.waiting) {
                    self.woken.insert(socket);
                }
            }
        }
        self.ports_released(released);
    }

    fn take(
        &mut self,
        now: Duration,
        id: ConnectionId,
        route: Route,
        received: Received<B>,
    ) -> Result<Option<(SocketId, u32)>, Violation> {
        let Some(peer) = self.peers.get_mut(id) else {
            return Ok(None);
        };
        match received {
            Received::Map(map) => {
                self.take_map(route, map);
                Ok(None)
            }
            Received::Ping(from) => {
                self.counters.pings += 1;
                let map = self.peer_maps.get(&route.peer.into());
                if !map.is_some_and(|map| map.contains(from)) {
                    peer.connection.pong(from);
                    self.counters.pongs += 1;
                }
                Ok(None)
            }
            Received::Message(incoming) => {
                let port = incoming.to;
                let owner = self.ports.find(route.local, port);
                let owner = owner.filter(|owner| self.sockets.contains_key(owner));
                let too_much = owner.is_some_and(|owner| self.exceeds(id, owner));
                let Some(peer) = self.peers.get_mut(id) else {
                    return Ok(None);
                };
                if too_much {
                    let violation = Violation::Overflow(port);
                    peer.connection.refuse(violation);
                    return Err(violation);
                }
                peer.connection.take(now, &incoming);
                let Some(owner) = owner else {
                    self.counters.no_socket += 1;
                    return Ok(None);
                };
                peer.proven_at = Some(now);
                let used = incoming.used.map(|rkey| (owner, rkey));
                let delivery = Delivery {
                    connection: Some(id),
                    sequence: incoming.sequence,
                    from: (route.peer, incoming.from).into(),
                    times: Some((incoming.began, now)),
                    len: incoming.len,
                    bodies: incoming.bodies,
                    cookie: incoming.cookie,
                };
                self.deliver(owner, delivery);
                Ok(used)
            }
        }
    }

    /// The last congestion map of a peer.
    pub fn peer_map(&self, peer: IpAddr) -> Option<&CongestionMap> {
        self.peer_maps.get(&peer.into())
    }
}
