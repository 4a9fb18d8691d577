//! The connections of a node.

use std::{collections::BTreeSet, error, fmt, net::IpAddr, time::Duration};

use super::{ConnectionId, Delivery, MOST_UNSETTLED, Node, Route};
use crate::proto::{
    SocketId,
    connection::{Bodies, Completion, Connection, Oddities, Received, Tag, Violation, Work},
    link::{Action, Attempt, Demand, Failure, Link, RequestId},
    wire::{BadConnectData, BadHeader, CongestionMap, ConnectData, Ends, Header, Version},
};

/// A connection, and what is below it.
#[derive(Debug)]
pub(super) struct Peer<P, B> {
    pub(super) route: Route,
    ends: Ends,
    link: Link,
    pub(super) connection: Connection<P, B>,
    /// Who waits for the peer to say which ports are congested, since one is: it does so when it is
    /// connected. Until then it is dialled, also where they wait since before a connection was lost.
    waiting: BTreeSet<SocketId>,
    /// What the peer has asked for last.
    request: Option<ConnectData>,
    /// What is being accepted, with what the peer said of its side.
    accepted: Option<(Attempt, ConnectData)>,
}

/// Why a request to connect is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadRequest {
    /// What it says makes no sense.
    Data(BadConnectData),
    /// The addresses of the two hosts are of different families.
    Family(IpAddr, IpAddr),
    /// There are so many connections already.
    Connections(usize),
}

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(bad) => bad.fmt(f),
            Self::Family(local, peer) => write!(f, "{peer} cannot connect to {local}"),
            Self::Connections(count) => write!(f, "there are {count} connections"),
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
    /// The connection for a route, made if need be.
    pub(super) fn connection_to(&mut self, route: Route) -> Result<ConnectionId, BadRequest> {
        if let Some(&id) = self.routes.get(&route.key()) {
            return Ok(id);
        }
        let ends = Ends::new(route.local, route.peer)
            .ok_or(BadRequest::Family(route.local, route.peer))?;
        let same = |peer: &&Peer<P, B>| peer.route.peer == route.peer;
        let to_peer = self.peers.iter().filter(same).count();
        for (count, most) in [
            (self.peers.len(), self.settings.max_connections),
            (to_peer, self.settings.max_connections_per_peer),
        ] {
            if count >= most {
                return Err(BadRequest::Connections(count));
            }
        }
        let id = ConnectionId(self.peers.len());
        self.peers.push(Peer {
            route,
            ends,
            link: Link::new(route.local, route.peer, self.rng.u64(..)),
            connection: Connection::new(&self.settings.connection, self.settings.first_sequence),
            waiting: BTreeSet::new(),
            request: None,
            accepted: None,
        });
        self.routes.insert(route.key(), id);
        Ok(id)
    }

    fn peer(&mut self, id: ConnectionId) -> Option<&mut Peer<P, B>> {
        self.hurry(id);
        self.peers.get_mut(id.0)
    }

    /// Has a connection made, whenever there is none, until its peer has told which ports are
    /// congested, or the socket is closed.
    pub(super) fn want(&mut self, id: SocketId, route: Route) {
        let Ok(connection) = self.connection_to(route) else {
            return;
        };
        if let Some(peer) = self.peer(connection) {
            peer.waiting.insert(id);
        }
    }

    /// A socket is closed, and waits for nobody.
    pub(super) fn wait_no_more(&mut self, id: SocketId) {
        for peer in &mut self.peers {
            peer.waiting.remove(&id);
        }
    }

    /// Which hosts a connection is between.
    pub fn route(&self, id: ConnectionId) -> Option<Route> {
        self.peers.get(id.0).map(|peer| peer.route)
    }

    /// The attempt, or the connection below, that there is.
    pub fn attempt(&self, id: ConnectionId) -> Option<Attempt> {
        self.peers.get(id.0)?.link.current()
    }

    /// All connections.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionId> + use<P, B> {
        (0..self.peers.len()).map(ConnectionId)
    }

    /// Whether there is a connection below.
    pub fn is_up(&self, id: ConnectionId) -> bool {
        self.peers.get(id.0).is_some_and(|peer| peer.link.is_up())
    }

    /// The numbers of the next message that is sent, and of the next that is expected.
    pub fn next_sequences(&self, id: ConnectionId) -> Option<(u64, u64)> {
        let peer = self.peers.get(id.0)?;
        Some(peer.connection.next_sequences())
    }

    /// What was noticed of a peer.
    pub fn oddities(&self, id: ConnectionId) -> Option<Oddities> {
        Some(self.peers.get(id.0)?.connection.oddities())
    }

    /// The private data to dial with.
    pub fn proposal(&self, id: ConnectionId) -> Option<ConnectData> {
        let peer = self.peers.get(id.0)?;
        Some(ConnectData::proposal(peer.ends, peer.route.tos))
    }

    /// The private data to accept with.
    pub fn answer(&self, id: ConnectionId) -> Option<ConnectData> {
        let peer = self.peers.get(id.0)?;
        let (_, asked) = peer.accepted.as_ref()?;
        asked.answer(peer.ends.reversed()).ok()
    }

    fn demand(&self, id: ConnectionId) -> Demand {
        match self.peers.get(id.0) {
            // It has what it could want.
            Some(peer) if peer.link.is_up() => Demand::Nothing,
            Some(peer) if !peer.waiting.is_empty() || peer.connection.has_unacknowledged() => {
                Demand::Messages
            }
            Some(peer) if self.ports.has(peer.route.local) => Demand::Sockets,
            _ => Demand::Nothing,
        }
    }

    /// What is to be done about the connection below, if anything.
    pub fn poll(&mut self, now: Duration, id: ConnectionId) -> Option<Action> {
        if self.peers.get(id.0)?.link.is_content() {
            return None;
        }
        let demand = self.demand(id);
        let peer = self.peers.get_mut(id.0)?;
        let action = peer.link.poll(now, demand)?;
        if let Action::Accept(_, attempt) = action {
            peer.accepted = peer.request.map(|asked| (attempt, asked));
        }
        Some(action)
    }

    /// Whether a connection is up, and there is nothing to be posted, nor to be done about what is below.
    pub fn is_content(&self, now: Duration, id: ConnectionId) -> bool {
        let peer = self.peers.get(id.0);
        peer.is_some_and(|peer| peer.link.is_content() && peer.connection.is_content(now))
    }

    /// When a connection has to be looked at again, if nothing happens before.
    pub fn deadline(&self, id: ConnectionId) -> Option<Duration> {
        let peer = self.peers.get(id.0)?;
        let link = peer.link.deadline(self.demand(id));
        link.into_iter().chain(peer.connection.deadline()).min()
    }

    /// A peer wants to connect, to an address here: what becomes of it is an [`Action`] later.
    ///
    /// # Errors
    /// It is to be refused, with [`REJECTED`](crate::proto::wire::REJECTED).
    pub fn request(
        &mut self,
        now: Duration,
        (local, peer): (IpAddr, IpAddr),
        data: &[u8],
        request: RequestId,
    ) -> Result<ConnectionId, BadRequest> {
        let ends = Ends::new(peer, local).ok_or(BadRequest::Family(local, peer))?;
        let asked = ConnectData::decode(data, ends.family())?;
        asked.answer(ends)?;
        let tos = asked.tos;
        let id = self.connection_to(Route { local, peer, tos })?;
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
            (None, reply) => ConnectData::decode(reply.unwrap_or_default(), peer.ends.family())
                .and_then(|reply| match Version::adopt(&reply) {
                    Some(_) => Ok(reply),
                    None => Err(BadConnectData::Version(reply.version)),
                }),
        };
        match said {
            Ok(said) => {
                let counts = peer.link.established(attempt);
                if counts {
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
        self.hurry(id);
        let Some(peer) = self.peers.get_mut(id.0) else {
            return;
        };
        if peer.link.current() == Some(attempt) {
            self.counters.resets += u64::from(peer.connection.is_up());
            peer.connection.reset();
            peer.link.closed(now, attempt);
            self.drain(id);
        }
    }

    /// The device has taken frames that nobody will see any more: to be said before the attempt is
    /// [closed](Self::closed).
    pub fn unheard(&mut self, id: ConnectionId) {
        if let Some(peer) = self.peers.get_mut(id.0) {
            peer.connection.unheard();
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
        if let Some(peer) = self.peers.get(id.0) {
            peer.connection.payloads(each);
        }
    }

    /// What is to be posted next, where there is room for so many requests.
    pub fn transmit(&mut self, id: ConnectionId, room: u32) -> Option<Work<'_, P>> {
        let peer = self.peers.get_mut(id.0)?;
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
        let peer = self.peers.get_mut(id.0).filter(|peer| peer.link.is_up())?;
        let ack = peer.connection.acknowledge(now);
        self.counters.acks_sent += u64::from(ack.is_some());
        ack
    }

    /// Whether to post a probe: see [`Connection::probe`].
    pub fn probe(&mut self, now: Duration, id: ConnectionId) -> Option<Tag> {
        let peer = self.peers.get_mut(id.0).filter(|peer| peer.link.is_up())?;
        peer.connection.probe(now)
    }

    /// Whether something goes on when the device has completed a request, and not before: otherwise
    /// completions can wait until a frame comes, or is sent.
    pub fn awaits_device(&self, id: ConnectionId) -> bool {
        let peer = self.peers.get(id.0);
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
        let Some(peer) = self.peers.get_mut(id.0) else {
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
                    self.crowded.remove(&owner);
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
        let Some(peer) = self.peers.get_mut(id.0) else {
            return Ok(None);
        };
        let route = peer.route;
        let plain = peer.connection.plain(now, header, body.as_ref().len());
        let result = match plain.and_then(|header| Some((header, self.room(route, header.to)?))) {
            Some((header, owner)) => {
                self.deliver_plain(now, id, owner, &header, body);
                Ok(None)
            }
            None => self.receive_any(now, id, route, header, body),
        };
        let Some(peer) = self.peers.get(id.0) else {
            return result;
        };
        self.hurries |= peer.connection.owes();
        if !peer.connection.is_settled() {
            if peer.connection.can_settle_later() {
                self.settles |= peer.connection.lag() >= MOST_UNSETTLED || !self.crowded.is_empty();
                self.unsettled.insert(id);
            } else {
                self.drain(id);
            }
        }
        result
    }

    /// The socket that a message from a peer goes to, if there is one, and it has room.
    fn room(&self, route: Route, port: u16) -> Option<SocketId> {
        let owner = self.ports.find(route.local, port)?;
        self.sockets.get(&owner)?.has_room().then_some(owner)
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
        let Some(peer) = self.peers.get_mut(id.0) else {
            return;
        };
        peer.connection.take_plain(now, header);
        let delivery = Delivery {
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
        let Some(peer) = self.peers.get_mut(id.0) else {
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
        let Some(peer) = self.peers.get_mut(id.0) else {
            return Ok(None);
        };
        match received {
            Received::Map(map) => {
                self.hurries = true;
                self.counters.maps_received += 1;
                let old = self.peer_maps.insert(route.peer.into(), map);
                let new = &self.peer_maps[&route.peer.into()];
                let released = old.unwrap_or_default().released(new);
                for peer in &mut self.peers {
                    if peer.route.peer == route.peer {
                        // Who still cannot send says so again.
                        peer.waiting.clear();
                    }
                }
                self.map_came(released);
                Ok(None)
            }
            Received::Ping(from) => {
                self.hurries = true;
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
                let Some((owner, socket)) =
                    owner.zip(owner.and_then(|id| self.sockets.get_mut(&id)))
                else {
                    self.counters.no_socket += 1;
                    peer.connection.take(now, &incoming);
                    return Ok(None);
                };
                if !socket.has_room() {
                    let violation = Violation::Overflow(port);
                    peer.connection.refuse(violation);
                    return Err(violation);
                }
                peer.connection.take(now, &incoming);
                let used = incoming.used.map(|rkey| (owner, rkey));
                let delivery = Delivery {
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
