//! What programs do with their sockets.

use std::net::{IpAddr, SocketAddr};

use super::{
    ConnectionId, Delivery, Event, Node, Pending, Readiness, Route, SocketError,
    admission::Origin,
    socket::{CachedRoute, Socket},
};
use crate::proto::{
    SocketId,
    connection::{Bodies, Draft, Message, Notification},
    wire::{MAX_MESSAGE, PING_PORT, RESERVED_PORT},
};

/// A message for another socket of the same process: the caller makes its bytes into bodies, and
/// [delivers](Node::deliver_local) it.
#[derive(Debug)]
pub struct LocalMessage<P> {
    /// Who sends it.
    pub from: SocketAddr,
    /// Who is to have it.
    pub to: SocketAddr,
    /// What is sent.
    pub draft: Draft<P>,
}

/// What has become of a message.
#[derive(Debug)]
pub enum Sent<P> {
    /// It is sent, now or later, as this number of this connection.
    Queued(ConnectionId, u64),
    /// It does not leave the process.
    Local(LocalMessage<P>),
    /// It was a ping to an address of this process, which has been answered.
    Answered(P),
}

/// How a message may be sent now.
struct Admitted {
    from: SocketAddr,
    to: SocketAddr,
    tos: u8,
    /// It does not leave the process.
    is_here: bool,
}

/// A message that is not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotSent<P> {
    /// Why.
    pub error: SocketError,
    /// The message.
    pub draft: Draft<P>,
}

/// Addresses of the form `::ffff:10.9.0.1` are IPv4's.
fn plain(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(ip) => (ip, v6.port()).into(),
            None => addr,
        },
        SocketAddr::V4(_) => addr,
    }
}

/// Whether a host can have the address.
fn check(addr: SocketAddr) -> Result<SocketAddr, SocketError> {
    let addr = plain(addr);
    let fits = match addr {
        SocketAddr::V4(v4) => !v4.ip().is_broadcast(),
        // Which link it is on has to be said.
        SocketAddr::V6(v6) => !v6.ip().is_unicast_link_local() || v6.scope_id() != 0,
    };
    if !fits || addr.ip().is_unspecified() || addr.ip().is_multicast() {
        return Err(SocketError::Address(addr));
    }
    Ok(addr)
}

/// Whether one can send to the other.
fn reaches(from: SocketAddr, to: SocketAddr) -> bool {
    match (from, to) {
        (SocketAddr::V4(_), SocketAddr::V4(_)) => true,
        (SocketAddr::V6(from), SocketAddr::V6(to)) => {
            !from.ip().is_unicast_link_local()
                || !to.ip().is_unicast_link_local()
                || from.scope_id() == to.scope_id()
        }
        _ => false,
    }
}

impl<P, B: AsRef<[u8]>> Node<P, B> {
    /// A socket without an address.
    pub fn socket(&mut self) -> SocketId {
        let id = SocketId(self.next_socket);
        self.next_socket += 1;
        self.sockets.insert(id, Socket::new());
        id
    }

    fn get(&self, id: SocketId) -> Result<&Socket<B>, SocketError> {
        self.sockets.get(&id).ok_or(SocketError::Closed)
    }

    fn get_mut(&mut self, id: SocketId) -> Result<&mut Socket<B>, SocketError> {
        self.sockets.get_mut(&id).ok_or(SocketError::Closed)
    }

    /// Gives a socket its address, for good; port 0 stands for any that is free. Returns the
    /// address.
    ///
    /// # Errors
    /// It has one, another socket has that one, or nobody can.
    pub fn bind(&mut self, id: SocketId, addr: SocketAddr) -> Result<SocketAddr, SocketError> {
        if let Some(bound) = self.get(id)?.bound {
            return Err(SocketError::AlreadyBound(bound));
        }
        let bound = self.ports.bind(id, check(addr)?, &mut self.rng)?;
        self.get_mut(id)?.bound = Some(bound);
        Ok(bound)
    }

    /// Whether a socket could be given this address, as far as its own state says; returns the
    /// address in its plain form.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind).
    pub fn can_bind(&self, id: SocketId, addr: SocketAddr) -> Result<SocketAddr, SocketError> {
        if let Some(bound) = self.get(id)?.bound {
            return Err(SocketError::AlreadyBound(bound));
        }
        let addr = check(addr)?;
        match addr.port() {
            RESERVED_PORT => Err(SocketError::Port(RESERVED_PORT)),
            port if self.ports.find(addr.ip(), port).is_some() => Err(SocketError::InUse(addr)),
            _ => Ok(addr),
        }
    }

    /// Says where messages go that do not say it themselves.
    ///
    /// # Errors
    /// Nobody can have that address, or the socket cannot reach it.
    pub fn connect(&mut self, id: SocketId, addr: SocketAddr) -> Result<(), SocketError> {
        let addr = match check(addr) {
            Err(SocketError::Address(addr)) if addr.ip().is_unspecified() => {
                return Err(SocketError::NoDestination(addr));
            }
            checked => checked?,
        };
        let socket = self.get_mut(id)?;
        if socket.bound.is_some_and(|bound| !reaches(bound, addr)) {
            return Err(SocketError::Family(addr));
        }
        socket.peer = Some(addr);
        Ok(())
    }

    /// The address of a socket, and its default destination.
    ///
    /// # Errors
    /// It is closed.
    pub fn names(
        &self,
        id: SocketId,
    ) -> Result<(Option<SocketAddr>, Option<SocketAddr>), SocketError> {
        let socket = self.get(id)?;
        Ok((socket.bound, socket.peer))
    }

    /// Sets the type of service, once, before anything is sent.
    ///
    /// # Errors
    /// It is too late.
    pub fn set_tos(&mut self, id: SocketId, tos: u8) -> Result<(), SocketError> {
        let socket = self.get_mut(id)?;
        if socket.bound.is_none() {
            return Err(SocketError::NotConnected);
        }
        if socket.tos != 0 || socket.has_sent {
            return Err(SocketError::TosInUse(socket.tos));
        }
        socket.tos = tos;
        Ok(())
    }

    /// Sets how many bytes may wait to be acknowledged, and to be received. Where more wait to be
    /// received, peers are asked to stop.
    ///
    /// # Errors
    /// It is closed.
    pub fn set_limits(&mut self, id: SocketId, send: u32, recv: u32) -> Result<(), SocketError> {
        let socket = self.get_mut(id)?;
        socket.send_limit = send;
        socket.recv_limit = recv;
        self.update_congestion(id);
        self.woken.insert(id);
        Ok(())
    }

    /// Sets whether operations that fail are told of even if that was not asked for.
    ///
    /// # Errors
    /// It is closed.
    pub fn set_failures(&mut self, id: SocketId, wanted: bool) -> Result<(), SocketError> {
        self.get_mut(id)?.wants_failures = wanted;
        Ok(())
    }

    /// Sets whether the socket hears when a port is free that it could not send to.
    ///
    /// # Errors
    /// It is closed.
    pub fn set_watch(&mut self, id: SocketId, wanted: bool) -> Result<(), SocketError> {
        self.get_mut(id)?.watch(wanted);
        Ok(())
    }

    /// Sends a message.
    ///
    /// # Errors
    /// It is not sent, and given back. With [`SocketError::Full`] and
    /// [`SocketError::Congested`] it can be tried again when the socket is [woken](Node::woken).
    pub fn send(
        &mut self,
        id: SocketId,
        to: Option<SocketAddr>,
        draft: Draft<P>,
    ) -> Result<Sent<P>, NotSent<P>> {
        if let Some((connection, from, to)) = self.cached_route(id, to, &draft) {
            return self.send_over(connection, id, (from, to), draft);
        }
        let asked = to;
        let Admitted {
            from,
            to,
            tos,
            is_here,
        } = match self.admit(id, to, &draft) {
            Ok(admitted) => admitted,
            Err(error) => return Err(NotSent { error, draft }),
        };
        if is_here {
            return Ok(self.send_local(id, from, to, draft));
        }
        let (local, peer) = (from.ip(), to.ip());
        let route = Route { local, peer, tos };
        let connection = match self.connection_to(route, Origin::Program) {
            Ok(connection) => connection,
            Err(_) => {
                return Err(NotSent {
                    error: SocketError::Connections(self.peers.len()),
                    draft,
                });
            }
        };
        if let Some(asked) = asked
            && let Some(socket) = self.sockets.get_mut(&id)
        {
            socket.cached_route = Some(CachedRoute {
                to: asked,
                plain: to,
                connection,
                changes: self.ports.changes(),
            });
        }
        self.send_over(connection, id, (from.port(), to.port()), draft)
    }

    /// The connection for a message to an address that this socket has just sent to, and the ports, if it may be sent.
    fn cached_route(
        &self,
        id: SocketId,
        to: Option<SocketAddr>,
        draft: &Draft<P>,
    ) -> Option<(ConnectionId, u16, u16)> {
        let socket = self.sockets.get(&id)?;
        let cached = socket.cached_route.as_ref()?;
        let same = Some(cached.to) == to && cached.changes == self.ports.changes();
        let fits = draft.len.max(draft.moved()) <= MAX_MESSAGE && draft.len <= socket.send_limit;
        let may = fits && !socket.is_half_full(draft.len) && socket.may_send();
        let from = socket.bound?.port();
        let there = same && self.peers.get(cached.connection).is_some();
        let free = there && may && !self.is_congested(cached.plain, false);
        free.then_some((cached.connection, from, cached.plain.port()))
    }

    /// Sends a message over a connection.
    fn send_over(
        &mut self,
        connection: ConnectionId,
        id: SocketId,
        (from, to): (u16, u16),
        draft: Draft<P>,
    ) -> Result<Sent<P>, NotSent<P>> {
        let len = draft.len;
        let ask = self
            .sockets
            .get_mut(&id)
            .is_some_and(|socket| socket.queued(len));
        self.mark_urgent(connection);
        self.send_blocked.remove(&id);
        self.counters.sent += 1;
        if let Some(rdma) = &draft.rdma {
            self.counters.operations += 1;
            self.counters.operation_bytes += u64::from(rdma.len);
        }
        let message = Message {
            owner: id,
            from,
            to,
            draft,
        };
        let Some(peer) = self.peers.get_mut(connection) else {
            // The caller has just found it.
            let (error, draft) = (SocketError::Closed, message.draft);
            return Err(NotSent { error, draft });
        };
        match peer.connection.send(message, ask) {
            Ok(sequence) => Ok(Sent::Queued(connection, sequence)),
            Err(refused) => {
                if let Some(socket) = self.sockets.get_mut(&id) {
                    socket.released(len);
                }
                Err(NotSent {
                    error: SocketError::Port(to),
                    draft: refused.draft,
                })
            }
        }
    }

    /// Whether that host is this one: a socket has its address, or every host has.
    pub fn is_here(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.ports.has(ip)
    }

    /// Whether a message of so many bytes can be sent at all, now or later; returns where to.
    ///
    /// # Errors
    /// It cannot.
    pub fn can_send(
        &self,
        id: SocketId,
        to: Option<SocketAddr>,
        len: u32,
    ) -> Result<SocketAddr, SocketError> {
        self.resolve(id, to, len, 0).map(|(_, to)| to)
    }

    /// From where to where a message goes, if it can go at all.
    fn resolve(
        &self,
        id: SocketId,
        to: Option<SocketAddr>,
        len: u32,
        moved: u32,
    ) -> Result<(SocketAddr, SocketAddr), SocketError> {
        let to = to.map(check).transpose()?;
        let socket = self.get(id)?;
        let from = socket.bound.ok_or(SocketError::NotConnected)?;
        let to = to.or(socket.peer).ok_or(SocketError::NotConnected)?;
        if !reaches(from, to) {
            return Err(SocketError::Family(to));
        }
        if to.port() == RESERVED_PORT {
            return Err(SocketError::Port(to.port()));
        }
        let longest = len.max(moved);
        if longest > MAX_MESSAGE || len > socket.send_limit {
            return Err(SocketError::TooLong(longest));
        }
        Ok((from, to))
    }

    /// Whether a message may be sent now, and how.
    fn admit(
        &mut self,
        id: SocketId,
        to: Option<SocketAddr>,
        draft: &Draft<P>,
    ) -> Result<Admitted, SocketError> {
        let (from, to) = self.resolve(id, to, draft.len, draft.moved())?;
        if self.get(id)?.is_half_full(draft.len) {
            // Some of that may be over.
            self.retire_acked();
        }
        let socket = self.get(id)?;
        let tos = socket.tos;
        let may_send = socket.may_send();
        let is_here = self.is_here(to.ip());
        if self.is_congested(to, is_here) {
            self.counters.congested += 1;
            self.get_mut(id)?.blocked(to.port());
            if !is_here {
                let (local, peer) = (from.ip(), to.ip());
                self.want(id, Route { local, peer, tos });
            }
            return Err(SocketError::Congested(to));
        }
        if !may_send {
            self.counters.send_full += 1;
            self.send_blocked.insert(id);
            return Err(SocketError::Full);
        }
        Ok(Admitted {
            from,
            to,
            tos,
            is_here,
        })
    }

    /// Whether a port can take no more, as far as is known.
    fn is_congested(&self, to: SocketAddr, is_here: bool) -> bool {
        let host = to.ip().into();
        let map = if is_here {
            self.maps.get(&host)
        } else {
            self.peer_maps.get(&host)
        };
        map.is_some_and(|map| map.contains(to.port()))
    }

    fn send_local(
        &mut self,
        id: SocketId,
        from: SocketAddr,
        to: SocketAddr,
        draft: Draft<P>,
    ) -> Sent<P> {
        if let Some(rdma) = &draft.rdma {
            self.counters.operations += 1;
            self.counters.operation_bytes += u64::from(rdma.len);
        }
        if let Some(socket) = self.sockets.get_mut(&id) {
            socket.has_sent = true;
            if to.port() == PING_PORT {
                if socket.has_room() {
                    socket.deliver(Delivery {
                        connection: None,
                        sequence: 0,
                        times: None,
                        from: to,
                        len: 0,
                        bodies: Bodies::Many(Vec::new()),
                        cookie: None,
                    });
                    self.woken.insert(id);
                }
                return Sent::Answered(draft.payload);
            }
        }
        Sent::Local(LocalMessage { from, to, draft })
    }

    /// An operation has ended that the caller has done itself, as there is no connection for it.
    pub fn ended(&mut self, notification: Notification) {
        if let Some(socket) = self.sockets.get_mut(&notification.owner) {
            socket.notify(notification);
            self.woken.insert(notification.owner);
        }
    }

    /// Delivers a message from one socket of this process to another; returns which, if there is one.
    pub fn deliver_local(&mut self, to: SocketAddr, delivery: Delivery<B>) -> Option<SocketId> {
        let owner = self.ports.find(to.ip(), to.port());
        let Some(owner) = owner.filter(|id| self.sockets.contains_key(id)) else {
            self.counters.no_socket += 1;
            return None;
        };
        self.deliver(owner, delivery);
        Some(owner)
    }

    /// A socket gets a message.
    #[inline]
    pub(super) fn deliver(&mut self, owner: SocketId, delivery: Delivery<B>) {
        let Some(socket) = self.sockets.get_mut(&owner) else {
            return;
        };
        let (from, len) = (delivery.connection, delivery.len);
        socket.deliver(delivery);
        let congestion = socket.congestion();
        if let Some(peer) = from.and_then(|id| self.peers.get_mut(id)) {
            let cost = Delivery::<B>::cost(len);
            peer.waiting_bytes += cost;
            self.waiting_bytes += cost;
        }
        self.counters.queued += 1;
        self.woken.insert(owner);
        self.tell_congestion(owner, congestion);
    }

    /// What the socket receives next, if there is anything.
    ///
    /// # Errors
    /// It is closed.
    #[inline]
    pub fn receive(&mut self, id: SocketId) -> Result<Option<Event<B>>, SocketError> {
        let socket = self.get_mut(id)?;
        let event = socket.receive();
        if let Some(Event::Message(delivery)) = &event {
            let congestion = socket.congestion();
            self.leave(delivery.connection, delivery.len);
            self.taken(id, congestion);
        }
        Ok(event)
    }

    /// Takes a message that has come by a connection out of what waits in all.
    #[inline]
    fn leave(&mut self, from: Option<ConnectionId>, len: u32) {
        let Some(from) = from else { return };
        let cost = Delivery::<B>::cost(len);
        self.waiting_bytes = self.waiting_bytes.saturating_sub(cost);
        // A peer may have been forgotten meanwhile.
        if let Some(peer) = self.peers.get_mut(from) {
            peer.waiting_bytes = peer.waiting_bytes.saturating_sub(cost);
        }
    }

    /// What there is to be received.
    ///
    /// # Errors
    /// It is closed.
    #[inline]
    pub fn pending(&self, id: SocketId) -> Result<Pending, SocketError> {
        Ok(self.get(id)?.pending())
    }

    /// The next message, if there is one; other events stay.
    ///
    /// # Errors
    /// It is closed.
    #[inline]
    pub fn receive_message(&mut self, id: SocketId) -> Result<Option<Delivery<B>>, SocketError> {
        let socket = self.sockets.get_mut(&id).ok_or(SocketError::Closed)?;
        let Some((from, len)) = socket.leave_message() else {
            return Ok(None);
        };
        self.counters.delivered += 1;
        let congestion = socket.congestion();
        self.leave(from, len);
        self.tell_congestion(id, congestion);
        // It is moved once, to where the caller wants it.
        Ok(self.get_mut(id)?.take_message())
    }

    /// A socket has received a message, so that there is room for others.
    fn taken(&mut self, id: SocketId, congestion: Option<bool>) {
        self.counters.delivered += 1;
        self.tell_congestion(id, congestion);
    }

    /// The next message, which stays; `None` if something else comes first, or there is none.
    ///
    /// # Errors
    /// It is closed.
    pub fn peek(&self, id: SocketId) -> Result<Option<&Delivery<B>>, SocketError> {
        let socket = self.get(id)?;
        Ok(socket.peek().filter(|_| !socket.has_event()))
    }

    /// The bytes of all messages that wait to be received, for a caller that has to keep them
    /// elsewhere.
    pub fn bodies_mut(&mut self) -> impl Iterator<Item = &mut B> {
        self.sockets.values_mut().flat_map(Socket::bodies_mut)
    }

    /// What the socket can do now. That a map has changed is told once.
    ///
    /// # Errors
    /// It is closed.
    pub fn readiness(&mut self, id: SocketId) -> Result<Readiness, SocketError> {
        let all_retired = self.unretired.is_empty();
        let socket = self.get_mut(id)?;
        if socket.may_send() {
            return Ok(socket.readiness());
        }
        if !all_retired {
            self.retire_acked();
        }
        let readiness = self.get_mut(id)?.readiness();
        if !readiness.writable {
            // Who asks may wait for that.
            self.send_blocked.insert(id);
        }
        Ok(readiness)
    }

    /// The bytes that wait to be acknowledged, as far as that is [settled](Node::retire_acked), and to be received.
    ///
    /// # Errors
    /// It is closed.
    pub fn waiting(&self, id: SocketId) -> Result<(u64, u64), SocketError> {
        Ok(self.get(id)?.bytes())
    }

    /// Takes back what the socket has sent to an address, or to all, and nobody has acknowledged.
    ///
    /// # Errors
    /// It has no address.
    pub fn cancel(&mut self, id: SocketId, to: Option<SocketAddr>) -> Result<(), SocketError> {
        let bound = self.get(id)?.bound.ok_or(SocketError::NotConnected)?;
        let to = to.map(plain);
        let mut concerned = Vec::new();
        for (connection, peer) in self.peers.iter_mut() {
            let meant = to.is_none_or(|to| to.ip() == peer.route.peer);
            if peer.route.local == bound.ip() && meant {
                peer.connection.cancel(id, to.map(|to| to.port()));
                concerned.push(connection);
            }
        }
        for connection in concerned {
            self.mark_urgent(connection);
            self.drain(connection);
        }
        Ok(())
    }

    /// Closes a socket: nothing that it has sent and nobody has acknowledged is sent any more, and
    /// what it has not received is gone.
    ///
    /// # Errors
    /// It is closed.
    pub fn close(&mut self, id: SocketId) -> Result<(), SocketError> {
        let socket = self.get(id)?;
        let (bound, congested) = (socket.bound, socket.is_congested());
        if let Some(bound) = bound {
            self.cancel(id, None)?;
            self.ports.unbind(bound);
            if congested {
                self.mark(bound.ip(), bound.port(), false);
            }
        }
        self.wait_no_more(id);
        self.send_blocked.remove(&id);
        if let Some(socket) = self.sockets.remove(&id) {
            for delivery in socket.messages() {
                self.leave(delivery.connection, delivery.len);
            }
        }
        Ok(())
    }
}
