//! The connections of a node.

use std::{collections::BTreeSet, error, fmt, net::IpAddr, time::Duration};

use super::{
    ConnectionId, Delivery, MAX_UNRETIRED, Node, Route, Settings,
    admission::{Origin, RETRY_INTERVAL},
};
use crate::proto::{
    SocketId,
    connection::{Bodies, Completion, Connection, ConnectionStats, Received, Tag, Violation, Work},
    link::{Action, Attempt, Demand, Failure, Link, RequestId},
    wire::{BadConnectData, BadHeader, CongestionMap, ConnectData, Header, HostPair, Version},
};

/// Least interval between wake-ups of sockets that maps do not concern: a peer can send maps as fast as the link
/// carries them, and each would wake every socket.
const MAP_INTERVAL: Duration = Duration::from_millis(10);

/// A connection, and what is below it.
#[derive(Debug)]
pub(super) struct Peer<P, B> {
    pub(super) route: Route,
    hosts: HostPair,
    pub(super) link: Link,
    pub(super) connection: Connection<P, B>,
    /// Who waits for the peer to say which ports are congested, since one is: it does so when it is
    /// connected. Until then it is dialled, also where they wait since before a connection was lost.
    waiting: BTreeSet<SocketId>,
    /// What the peer has asked for last.
    request: Option<ConnectData>,
    /// What is being accepted, with what the peer said of its side.
    accepted: Option<(Attempt, ConnectData)>,
    /// It has been connected, or has talked before it said so: what it sends again is told from what is new.
    pub(super) is_known: bool,
    /// When a frame has last come from the peer, or a connection has begun or ended.
    pub(super) used_at: Duration,
    /// The bytes of its messages that wait in sockets, by [`Delivery::cost`].
    pub(super) waiting_bytes: u64,
    /// Until when it may not ask again, as its connection was closed for the sake of others.
    pub(super) retired_until: Duration,
    /// Sockets are to be woken since its map has changed.
    map_due: bool,
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
            is_known: false,
            used_at: now,
            waiting_bytes: 0,
            retired_until: Duration::ZERO,
            map_due: false,
        }
    }

    /// Whether nothing is to be sent to the peer, and no socket waits for it.
    pub(super) fn is_idle(&self) -> bool {
        self.connection.all_finished() && self.waiting.is_empty()
    }

    /// Whether nothing is lost with it but what has been received.
    pub(super) fn is_forgettable(&self) -> bool {
        self.link.is_down() && self.is_idle()
    }
}

/// Why a request to connect is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadRequest {
    /// What it says makes no sense.
    Data(BadConnectData),
    /// The addresses of the two hosts are of different families.
    Family(IpAddr, IpAddr),
    /// That is the number of connections, to all peers or to this one, and none can be forgotten.
    Connections(usize),
    /// That is the number of peers, in all or at this address, that have asked and are not connected yet.
    Pending(usize),
    /// That is the number of connections that are up, and as many as there may be.
    Links(usize),
}

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(bad) => bad.fmt(f),
            Self::Family(local, peer) => write!(f, "{peer} cannot connect to {local}"),
            Self::Connections(count) => write!(f, "there are {count} connections"),
            Self::Pending(count) => write!(f, "{count} peers are being connected"),
            Self::Links(count) => write!(f, "{count} connections are up"),
        }
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
        self.mark_urgent(id);
        self.peers.get_mut(id)
    }

    /// Has a connection made, whenever there is none, until its peer has told which ports are
    /// congested, or the socket is closed.
    pub(super) fn want(&mut self, id: SocketId, route: Route) {
        let Ok(connection) = self.connection_to(route, Origin::Program) else {
            return;
        };
        if let Some(peer) = self.peer(connection) {
            peer.waiting.insert(id);
        }
    }

    /// A socket is closed, and waits for nobody.
    pub(super) fn wait_no_more(&mut self, id: SocketId) {
        for (_, peer) in self.peers.iter_mut() {
            peer.waiting.remove(&id);
        }
    }

    /// Which hosts a connection is between.
    pub fn route(&self, id: ConnectionId) -> Option<Route> {
        self.peers.get(id).map(|peer| peer.route)
    }

    /// The attempt, or the connection below, that there is.
    pub fn attempt(&self, id: ConnectionId) -> Option<Attempt> {
        self.peers.get(id)?.link.current()
    }

    /// All connections.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.peers.iter().map(|(id, _)| id)
    }

    /// Whether there is a connection below.
    pub fn is_up(&self, id: ConnectionId) -> bool {
        self.peers.get(id).is_some_and(|peer| peer.link.is_up())
    }

    /// The numbers of the next message that is sent, and of the next that is expected.
    pub fn next_sequences(&self, id: ConnectionId) -> Option<(u64, u64)> {
        let peer = self.peers.get(id)?;
        Some(peer.connection.next_sequences())
    }

    /// What was noticed of a peer.
    pub fn stats(&self, id: ConnectionId) -> Option<ConnectionStats> {
        Some(self.peers.get(id)?.connection.stats())
    }

    /// The private data to dial with.
    pub fn proposal(&self, id: ConnectionId) -> Option<ConnectData> {
        let peer = self.peers.get(id)?;
        Some(ConnectData::proposal(peer.hosts, peer.route.tos))
    }

    /// The private data to accept with.
    pub fn answer(&self, id: ConnectionId) -> Option<ConnectData> {
        let peer = self.peers.get(id)?;
        let (_, asked) = peer.accepted.as_ref()?;
        asked.answer(peer.hosts.reversed()).ok()
    }

    pub(super) fn demand(&self, id: ConnectionId) -> Demand {
        match self.peers.get(id) {
            // It has what it could want.
            Some(peer) if peer.link.is_up() => Demand::Nothing,
            Some(peer) if !peer.waiting.is_empty() || peer.connection.has_unacknowledged() => {
                Demand::Messages
            }
            Some(peer) if self.ports.has(peer.route.local) => Demand::Sockets,
            _ => Demand::Nothing,
        }
    }

    /// What is to be done about the connection below, if anything. A peer that has never been connected, and that
    /// nothing is sent to, is forgotten when nothing is.
    pub fn poll(&mut self, now: Duration, id: ConnectionId) -> Option<Action> {
        let peer = self.peers.get(id)?;
        if peer.map_due {
            self.tell_maps(now, id);
        }
        if self.peers.get(id)?.link.is_idle() {
            return None;
        }
        self.latest = now;
        let demand = self.demand(id);
        if self.peers.get(id)?.link.is_about_to_dial(now, demand)
            && self.links() >= self.settings.max_links
        {
            self.retire_idle();
            let peer = self.peers.get_mut(id)?;
            peer.link.postpone(now + RETRY_INTERVAL);
        }
        let peer = self.peers.get_mut(id)?;
        match peer.link.poll(now, demand) {
            Some(Action::Accept(request, attempt)) => {
                peer.accepted = peer.request.map(|asked| (attempt, asked));
                Some(Action::Accept(request, attempt))
            }
            None if !peer.is_known && peer.is_forgettable() => {
                self.forget(id);
                None
            }
            action => action,
        }
    }

    /// Whether a connection is up, and there is nothing to be posted, nor to be done about what is below.
    pub fn is_idle(&self, now: Duration, id: ConnectionId) -> bool {
        let peer = self.peers.get(id);
        peer.is_some_and(|peer| {
            let link = peer.link.is_idle() && !peer.map_due;
            link && peer.connection.is_idle(now)
        })
    }

    /// When a connection has to be looked at again, if nothing happens before.
    pub fn deadline(&self, id: ConnectionId) -> Option<Duration> {
        let peer = self.peers.get(id)?;
        let link = peer.link.deadline(self.demand(id)).into_iter();
        let maps = peer.map_due.then(|| self.maps_at());
        link.chain(peer.connection.deadline()).chain(maps).min()
    }

    /// When sockets may be woken next only because a map has come.
    fn maps_at(&self) -> Duration {
        self.maps_told
            .map_or(Duration::ZERO, |told| told + MAP_INTERVAL)
    }

    /// Wakes all sockets for the sake of a connection's maps, if that has not been done lately.
    fn tell_maps(&mut self, now: Duration, id: ConnectionId) {
        let is_time = self.maps_at() <= now;
        if let Some(peer) = self.peers.get_mut(id) {
            peer.map_due = !is_time;
        }
        if is_time {
            self.maps_told = Some(now);
            for &socket in self.sockets.keys() {
                self.woken.insert(socket);
            }
        }
    }

    /// A peer wants to connect, to an address here: what becomes of it is an [`Action`] later.
    ///
    /// # Errors
    /// It is to be refused, with [`REJECTED`](crate::proto::wire::REJECTED), and is [counted](Self::refused).
    pub fn request(
        &mut self,
        now: Duration,
        hosts: (IpAddr, IpAddr),
        data: &[u8],
        request: RequestId,
    ) -> Result<ConnectionId, BadRequest> {
        self.latest = now;
        let result = self.asked(now, hosts, data, request);
        if result.is_err() {
            self.refused();
        }
        result
    }

    /// Counts a request that is refused: `conn_refused`.
    pub fn refused(&mut self) {
        self.counters.refused += 1;
    }

    fn asked(
        &mut self,
        now: Duration,
        (local, peer): (IpAddr, IpAddr),
        data: &[u8],
        request: RequestId,
    ) -> Result<ConnectionId, BadRequest> {
        let hosts = HostPair::new(peer, local).ok_or(BadRequest::Family(local, peer))?;
        let asked = ConnectData::decode(data, hosts.family())?;
        asked.answer(hosts)?;
        let route = Route {
            local,
            peer,
            tos: asked.tos,
        };
        self.check_links(now, route)?;
        let id = self.connection_to(route, Origin::Peer)?;
        if let Some(peer) = self.peer(id) {
            // An older request that still waits is refused by this one.
            peer.request = Some(asked);
            peer.link.request(now, request);
        }
        Ok(id)
    }

    /// An attempt has come to a connection. `reply` is what the peer said, where it was dialled.
    /// Whether the attempt still counts.
    ///
    /// # Errors
    /// The peer has said what makes no sense; the attempt has failed.
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
        let said = match (accepted, reply) {
            (Some((_, asked)), _) => Ok(asked),
            (None, reply) => ConnectData::decode(reply.unwrap_or_default(), peer.hosts.family())
                .and_then(|reply| match Version::adopt(&reply) {
                    Some(_) => Ok(reply),
                    None => Err(BadConnectData::Version(reply.version)),
                }),
        };
        match said {
            Ok(said) => {
                let counts = peer.link.established(attempt);
                if counts {
                    peer.is_known = true;
                    peer.used_at = now;
                    peer.connection.established(now, said.ack);
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

    /// An attempt has failed, or a connection is lost.
    pub fn failed(&mut self, id: ConnectionId, attempt: Attempt, failure: Failure) {
        if let Some(peer) = self.peer(id) {
            peer.link.failed(attempt, failure);
        }
    }

    /// The device has let go of everything of an attempt.
    pub fn closed(&mut self, now: Duration, id: ConnectionId, attempt: Attempt) {
        self.mark_urgent(id);
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        if peer.link.current() == Some(attempt) {
            self.counters.resets += u64::from(peer.connection.is_up());
            peer.connection.reset();
            peer.link.closed(now, attempt);
            peer.used_at = now;
            self.drain(id);
        }
    }

    /// The device has taken frames that nobody will see any more: to be said before the attempt is
    /// [closed](Self::closed).
    pub fn mark_rx_lost(&mut self, id: ConnectionId) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.connection.mark_rx_lost();
        }
    }

    /// Gives up messages of a connection that cannot be sent any more, because of what the caller
    /// gave with them. Their operations are told to be
    /// [dropped](crate::proto::connection::Status::Dropped).
    pub fn give_up(&mut self, id: ConnectionId, which: impl Fn(&P) -> bool) {
        if let Some(peer) = self.peer(id) {
            peer.connection.give_up(which);
            self.drain(id);
        }
    }

    /// Calls `each` for what the caller gave with every message of a connection that is not over.
    pub fn payloads(&self, id: ConnectionId, each: impl FnMut(&P)) {
        if let Some(peer) = self.peers.get(id) {
            peer.connection.payloads(each);
        }
    }

    /// What is to be posted next, where there is room for so many requests.
    pub fn transmit(&mut self, id: ConnectionId, room: u32) -> Option<Work<'_, P>> {
        let peer = self.peers.get_mut(id)?;
        if !peer.link.is_up() {
            return None;
        }
        let (maps, local) = (&mut self.maps, peer.route.local.into());
        peer.connection
            .transmit(room, move || &*maps.entry(local).or_default())
    }

    /// The frame with nothing but an acknowledgement, if one is due after all that was to be
    /// [transmitted](Self::transmit).
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

    /// Whether to post a probe: see [`Connection::probe`].
    pub fn probe(&mut self, now: Duration, id: ConnectionId) -> Option<Tag> {
        let peer = self.peers.get_mut(id).filter(|peer| peer.link.is_up())?;
        peer.connection.probe(now)
    }

    /// Whether something goes on when the device has completed a request, and not before: otherwise
    /// completions can wait until a frame comes, or is sent.
    pub fn awaits_device(&self, id: ConnectionId) -> bool {
        let peer = self.peers.get(id);
        peer.is_some_and(|peer| peer.connection.awaits_device())
    }

    /// A request has completed; those without a signal have when a later one has.
    pub fn completed(&mut self, id: ConnectionId, tag: Tag, completion: Completion) {
        if let Some(peer) = self.peer(id) {
            peer.connection.completed(tag, completion);
            self.drain(id);
        }
    }

    /// Takes what is over out of a connection.
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

    /// A frame has arrived. Returns the key of memory that a peer has used, and whose it is to be:
    /// if it was for one use, it is free now.
    ///
    /// # Errors
    /// The peer breaks the protocol: the connection is being given up.
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
        // Its last word of the handshake may come later, or never.
        peer.is_known = true;
        let route = peer.route;
        let plain = peer.connection.plain(now, header, body.as_ref().len());
        let result = match plain.and_then(|header| Some((header, self.room(route, header.to)?))) {
            Some((header, owner)) => {
                self.deliver_plain(now, id, owner, &header, body);
                Ok(None)
            }
            None => self.receive_any(now, id, route, header, body),
        };
        let Some(peer) = self.peers.get(id) else {
            return result;
        };
        self.has_urgent |= peer.connection.ack_requested();
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

    /// The socket that a message from a peer goes to, if there is one, and it has room.
    fn room(&self, route: Route, port: u16) -> Option<SocketId> {
        let owner = self.ports.find(route.local, port)?;
        let room = self.waiting_bytes < self.settings.max_waiting;
        (room && self.sockets.get(&owner)?.has_room()).then_some(owner)
    }

    /// Whether a connection has so much waiting that its next message is too much: of what waits in a socket, or
    /// in all. Where others have taken the room, it still has a share of its own.
    fn exceeds(&self, id: ConnectionId, owner: SocketId) -> bool {
        let socket = self.sockets.get(&owner);
        let fills_socket =
            socket.is_some_and(|socket| !socket.has_room() && socket.is_filled_by(id));
        let most = self.settings.max_waiting;
        let share = most / self.settings.max_connections.max(1) as u64;
        let own = self.peers.get(id).map_or(0, |peer| peer.waiting_bytes);
        fills_socket || self.waiting_bytes >= most && own >= share
    }

    /// A message of one frame has arrived, with nothing but bytes in it, and there is room for it.
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

    /// A frame has arrived, whatever it is.
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
                self.has_urgent = true;
                self.counters.maps_received += 1;
                let first = CongestionMap::default();
                let old = self.peer_maps.get(&route.peer.into());
                let changed = old.is_none_or(|old| *old != map);
                let released = old.unwrap_or(&first).released(&map);
                self.peer_maps.insert(route.peer.into(), map);
                for (_, peer) in self.peers.iter_mut() {
                    if peer.route.peer == route.peer {
                        // A socket that still cannot send says so again.
                        for socket in std::mem::take(&mut peer.waiting) {
                            self.woken.insert(socket);
                        }
                    }
                }
                self.map_came(released);
                if changed {
                    self.tell_maps(now, id);
                }
                Ok(None)
            }
            Received::Ping(from) => {
                self.has_urgent = true;
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

    /// Which ports of a peer are congested, as far as it has told.
    pub fn peer_map(&self, peer: IpAddr) -> Option<&CongestionMap> {
        self.peer_maps.get(&peer.into())
    }
}
