//! Socket calls of programs.

use std::net::{IpAddr, SocketAddr};

use super::{
    ConnectionId, Delivery, Event, Node, Pending, Readiness, Route, SocketError, SocketStats,
    socket::{CachedRoute, SocketState},
};
use crate::{
    SocketId,
    connection::{Bodies, Draft, Message, Notification},
    wire::{MAX_MESSAGE, PING_PORT, RESERVED_PORT},
};

/// A message to a socket of the same process. The caller converts the payload and calls
/// [`deliver_local`](Node::deliver_local).
#[derive(Debug)]
pub struct LocalMessage<P> {
    /// The sender.
    pub from: SocketAddr,
    /// The receiver.
    pub to: SocketAddr,
    /// Content and operations.
    pub draft: Draft<P>,
}

/// Result of a send.
#[derive(Debug)]
pub enum Dispatched<P> {
    /// Queued on this connection, with this sequence number.
    Queued(ConnectionId, u64),
    /// A message to a socket of the same process.
    Local(LocalMessage<P>),
    /// A ping to the local host, answered already.
    Answered(P),
}

/// A message admitted for sending.
struct Admitted {
    from: SocketAddr,
    to: SocketAddr,
    tos: u8,
    /// The destination is on this host.
    is_local: bool,
}

/// A message not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotSent<P> {
    /// The error.
    pub error: SocketError,
    /// The message.
    pub draft: Draft<P>,
}

/// Converts an IPv4-mapped address to IPv4.
fn plain(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(ip) => (ip, v6.port()).into(),
            None => addr,
        },
        SocketAddr::V4(_) => addr,
    }
}

/// Checks for an address of a host.
fn check(addr: SocketAddr) -> Result<SocketAddr, SocketError> {
    let addr = plain(addr);
    let fits = match addr {
        SocketAddr::V4(v4) => !v4.ip().is_broadcast(),
        // A link-local address needs a scope id.
        SocketAddr::V6(v6) => !v6.ip().is_unicast_link_local() || v6.scope_id() != 0,
    };
    if !fits || addr.ip().is_unspecified() || addr.ip().is_multicast() {
        return Err(SocketError::Address(addr));
    }
    Ok(addr)
}

/// Whether the families and scopes of two addresses match.
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
    /// Creates an unbound socket.
    pub fn socket(&mut self) -> SocketId {
        let id = SocketId(self.next_socket);
        self.next_socket += 1;
        self.sockets.insert(id, SocketState::new());
        id
    }

    fn get(&self, id: SocketId) -> Result<&SocketState<B>, SocketError> {
        self.sockets.get(&id).ok_or(SocketError::Closed)
    }

    fn get_mut(&mut self, id: SocketId) -> Result<&mut SocketState<B>, SocketError> {
        self.sockets.get_mut(&id).ok_or(SocketError::Closed)
    }

    /// Binds a socket permanently; port 0 selects a free port. Returns the bound address.
    ///
    /// # Errors
    /// The socket is bound, the address is in use, or not an address of a host.
    pub fn bind(&mut self, id: SocketId, addr: SocketAddr) -> Result<SocketAddr, SocketError> {
        if let Some(bound) = self.get(id)?.bound {
            return Err(SocketError::AlreadyBound(bound));
        }
        let bound = self.ports.bind(id, check(addr)?, &mut self.rng)?;
        self.get_mut(id)?.bound = Some(bound);
        Ok(bound)
    }

    /// Whether [`bind`](Self::bind) would succeed; returns the address with an IPv4-mapped one
    /// converted.
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

    /// Sets the default destination.
    ///
    /// # Errors
    /// Not an address of a host, or not reachable from the socket's address.
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

    /// Local address and default destination of a socket.
    ///
    /// # Errors
    /// The socket is closed.
    pub fn names(
        &self,
        id: SocketId,
    ) -> Result<(Option<SocketAddr>, Option<SocketAddr>), SocketError> {
        let socket = self.get(id)?;
        Ok((socket.bound, socket.peer))
    }

    /// Sets the type of service, once, before the first send.
    ///
    /// # Errors
    /// The type of service is set or used already, or the socket is unbound.
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

    /// Sets the sizes of the send and of the receive buffer in bytes. Above the receive limit, the
    /// port is marked as congested.
    ///
    /// # Errors
    /// The socket is closed.
    pub fn set_limits(&mut self, id: SocketId, send: u32, recv: u32) -> Result<(), SocketError> {
        let socket = self.get_mut(id)?;
        socket.send_limit = send;
        socket.recv_limit = recv;
        self.update_congestion(id);
        self.woken.insert(id);
        Ok(())
    }

    /// Sets whether failed operations are notified without a request.
    ///
    /// # Errors
    /// The socket is closed.
    pub fn set_failures(&mut self, id: SocketId, enabled: bool) -> Result<(), SocketError> {
        self.get_mut(id)?.wants_failures = enabled;
        Ok(())
    }

    /// Sets whether the socket receives an event when a port with a blocked send is released.
    ///
    /// # Errors
    /// The socket is closed.
    pub fn set_watch(&mut self, id: SocketId, enabled: bool) -> Result<(), SocketError> {
        self.get_mut(id)?.watch(enabled);
        Ok(())
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The message is returned. After [`SocketError::Full`] and [`SocketError::Congested`], try
    /// again when the socket is [woken](Node::woken).
    pub fn send(
        &mut self,
        id: SocketId,
        to: Option<SocketAddr>,
        draft: Draft<P>,
    ) -> Result<Dispatched<P>, NotSent<P>> {
        if let Some((connection, from, to)) = self.cached_route(id, to, &draft) {
            return self.send_over(connection, id, (from, to), draft);
        }
        let requested = to;
        let Admitted {
            from,
            to,
            tos,
            is_local,
        } = match self.admit(id, to, &draft) {
            Ok(admitted) => admitted,
            Err(error) => return Err(NotSent { error, draft }),
        };
        if is_local {
            return Ok(self.send_local(id, from, to, draft));
        }
        let (local, peer) = (from.ip(), to.ip());
        let route = Route { local, peer, tos };
        let connection = match self.connection_to(route) {
            Ok(connection) => connection,
            Err(_) => {
                return Err(NotSent {
                    error: SocketError::Connections(self.peers.len()),
                    draft,
                });
            }
        };
        if let Some(requested) = requested
            && let Some(socket) = self.sockets.get_mut(&id)
        {
            socket.cached_route = Some(CachedRoute {
                to: requested,
                plain: to,
                connection,
                changes: self.ports.changes(),
            });
        }
        self.send_over(connection, id, (from.port(), to.port()), draft)
    }

    /// Connection and ports of the cached route, if it applies and the message may be sent.
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
        let is_current = same && self.peers.get(cached.connection).is_some();
        let free = is_current && may && !self.is_congested(cached.plain, false);
        free.then_some((cached.connection, from, cached.plain.port()))
    }

    /// Queues a message on a connection.
    fn send_over(
        &mut self,
        connection: ConnectionId,
        id: SocketId,
        (from, to): (u16, u16),
        draft: Draft<P>,
    ) -> Result<Dispatched<P>, NotSent<P>> {
        let len = draft.len;
        let ask = self
            .sockets
            .get_mut(&id)
            .is_some_and(|socket| socket.queued(len));
        self.busy.insert(connection);
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
            // The caller has looked the connection up just before.
            let (error, draft) = (SocketError::Closed, message.draft);
            return Err(NotSent { error, draft });
        };
        match peer.connection.send(message, ask) {
            Ok(sequence) => Ok(Dispatched::Queued(connection, sequence)),
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

    /// Statistics of a socket.
    ///
    /// # Errors
    /// The socket is closed.
    pub fn socket_stats(&self, id: SocketId) -> Result<SocketStats, SocketError> {
        Ok(self.get(id)?.stats)
    }

    /// Whether the address is local: bound by a socket, or loopback.
    pub fn is_local(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.ports.has(ip)
    }

    /// Whether a message of `len` bytes can be sent now or later; returns the destination.
    ///
    /// # Errors
    /// The message can never be sent.
    pub fn can_send(
        &self,
        id: SocketId,
        to: Option<SocketAddr>,
        len: u32,
    ) -> Result<SocketAddr, SocketError> {
        self.resolve(id, to, len, 0).map(|(_, to)| to)
    }

    /// Source and destination of a message.
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

    /// Admits a message for sending, or explains why it has to wait.
    fn admit(
        &mut self,
        id: SocketId,
        to: Option<SocketAddr>,
        draft: &Draft<P>,
    ) -> Result<Admitted, SocketError> {
        let (from, to) = self.resolve(id, to, draft.len, draft.moved())?;
        if self.get(id)?.is_half_full(draft.len) {
            // Acknowledged messages may be retired.
            self.retire_acked();
        }
        let socket = self.get(id)?;
        let tos = socket.tos;
        let may_send = socket.may_send();
        let is_local = self.is_local(to.ip());
        if self.is_congested(to, is_local) {
            self.counters.congested += 1;
            let socket = self.get_mut(id)?;
            socket.stats.congested += 1;
            socket.blocked(to.port());
            self.congestion_blocked.insert(id);
            if !is_local {
                let (local, peer) = (from.ip(), to.ip());
                self.await_map(id, Route { local, peer, tos });
            }
            return Err(SocketError::Congested(to));
        }
        if !may_send {
            self.counters.send_full += 1;
            self.get_mut(id)?.stats.send_full += 1;
            self.send_blocked.insert(id);
            return Err(SocketError::Full);
        }
        Ok(Admitted {
            from,
            to,
            tos,
            is_local,
        })
    }

    /// Whether the last congestion map marks the port.
    fn is_congested(&self, to: SocketAddr, is_local: bool) -> bool {
        let host = to.ip().into();
        let map = if is_local {
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
    ) -> Dispatched<P> {
        if let Some(rdma) = &draft.rdma {
            self.counters.operations += 1;
            self.counters.operation_bytes += u64::from(rdma.len);
        }
        if let Some(socket) = self.sockets.get_mut(&id) {
            socket.has_sent = true;
            socket.stats.sent(draft.len);
            if to.port() == PING_PORT {
                if socket.has_space() {
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
                return Dispatched::Answered(draft.payload);
            }
        }
        Dispatched::Local(LocalMessage { from, to, draft })
    }

    /// Notifies the end of an operation performed by the caller, between local sockets.
    pub fn ended(&mut self, notification: Notification) {
        if let Some(socket) = self.sockets.get_mut(&notification.owner) {
            socket.notify(notification);
            self.woken.insert(notification.owner);
        }
    }

    /// Delivers a message between sockets of this process. Returns the receiver, if there is one.
    pub fn deliver_local(&mut self, to: SocketAddr, delivery: Delivery<B>) -> Option<SocketId> {
        let owner = self.ports.find(to.ip(), to.port());
        let Some(owner) = owner.filter(|id| self.sockets.contains_key(id)) else {
            self.counters.no_socket += 1;
            return None;
        };
        self.deliver(owner, delivery);
        Some(owner)
    }

    /// Adds a message to a receive queue.
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
        self.set_congestion(owner, congestion);
    }

    /// Takes the next item of the receive queue.
    ///
    /// # Errors
    /// The socket is closed.
    #[inline]
    pub fn receive(&mut self, id: SocketId) -> Result<Option<Event<B>>, SocketError> {
        let socket = self.get_mut(id)?;
        let event = socket.receive();
        if let Some(Event::Message(delivery)) = &event {
            let congestion = socket.congestion();
            self.uncount_waiting(delivery.connection, delivery.len);
            self.delivered(id, congestion);
        }
        Ok(event)
    }

    /// Subtracts a received message from the accounting of its connection.
    #[inline]
    fn uncount_waiting(&mut self, from: Option<ConnectionId>, len: u32) {
        let Some(from) = from else { return };
        let cost = Delivery::<B>::cost(len);
        self.waiting_bytes = self.waiting_bytes.saturating_sub(cost);
        // The peer may have been forgotten.
        if let Some(peer) = self.peers.get_mut(from) {
            peer.waiting_bytes = peer.waiting_bytes.saturating_sub(cost);
        }
    }

    /// Kinds of items in the receive queue.
    ///
    /// # Errors
    /// The socket is closed.
    #[inline]
    pub fn pending(&self, id: SocketId) -> Result<Pending, SocketError> {
        Ok(self.get(id)?.pending())
    }

    /// Takes the next message; other items stay.
    ///
    /// # Errors
    /// The socket is closed.
    #[inline]
    pub fn receive_message(&mut self, id: SocketId) -> Result<Option<Delivery<B>>, SocketError> {
        let socket = self.sockets.get_mut(&id).ok_or(SocketError::Closed)?;
        let Some((from, len)) = socket.leave_message() else {
            return Ok(None);
        };
        self.counters.delivered += 1;
        let congestion = socket.congestion();
        self.uncount_waiting(from, len);
        self.set_congestion(id, congestion);
        // One move, to the caller's place.
        Ok(self.get_mut(id)?.take_message())
    }

    /// Accounts for a received message.
    fn delivered(&mut self, id: SocketId, congestion: Option<bool>) {
        self.counters.delivered += 1;
        self.set_congestion(id, congestion);
    }

    /// The next message, left in the queue. Other items may come first.
    ///
    /// # Errors
    /// The socket is closed.
    pub fn peek(&self, id: SocketId) -> Result<Option<&Delivery<B>>, SocketError> {
        Ok(self.get(id)?.peek())
    }

    /// Bodies of all received messages, for moving them off a removed device.
    pub fn bodies_mut(&mut self) -> impl Iterator<Item = &mut B> {
        self.sockets.values_mut().flat_map(SocketState::bodies_mut)
    }

    /// The readiness of a socket. Clears `map_changed`.
    ///
    /// # Errors
    /// The socket is closed.
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
            // The caller may wait for room.
            self.send_blocked.insert(id);
        }
        Ok(readiness)
    }

    /// Bytes in the send and in the receive buffer. Acknowledged bytes count until
    /// [`retire_acked`](Node::retire_acked).
    ///
    /// # Errors
    /// The socket is closed.
    pub fn waiting(&self, id: SocketId) -> Result<(u64, u64), SocketError> {
        Ok(self.get(id)?.bytes())
    }

    /// Cancels unacknowledged messages to an address, or to all addresses.
    ///
    /// # Errors
    /// The socket is unbound.
    pub fn cancel(&mut self, id: SocketId, to: Option<SocketAddr>) -> Result<(), SocketError> {
        let bound = self.get(id)?.bound.ok_or(SocketError::NotConnected)?;
        let to = to.map(plain);
        let mut concerned = Vec::new();
        for (connection, peer) in self.peers.iter_mut() {
            let is_addressed = to.is_none_or(|to| to.ip() == peer.route.peer);
            if peer.route.local == bound.ip() && is_addressed {
                peer.connection.cancel(id, to.map(|to| to.port()));
                concerned.push(connection);
            }
        }
        for connection in concerned {
            self.busy.insert(connection);
            self.drain(connection);
        }
        Ok(())
    }

    /// Closes a socket. Unsent and unacknowledged messages are cancelled, and received ones
    /// discarded.
    ///
    /// # Errors
    /// The socket is closed already.
    pub fn close(&mut self, id: SocketId) -> Result<(), SocketError> {
        self.retire_acked();
        let socket = self.get(id)?;
        let (bound, congested) = (socket.bound, socket.is_congested());
        // Looking at all peers takes time.
        if socket.was_refused {
            self.wait_no_more(id);
        }
        if let Some(bound) = bound {
            if self.get(id)?.has_unfinished() {
                self.cancel(id, None)?;
            }
            self.ports.unbind(bound);
            if congested {
                self.mark(bound.ip(), bound.port(), false);
            }
        }
        self.send_blocked.remove(&id);
        if let Some(socket) = self.sockets.remove(&id) {
            for delivery in socket.messages() {
                self.uncount_waiting(delivery.connection, delivery.len);
            }
        }
        Ok(())
    }
}
