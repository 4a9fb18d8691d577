//! An event loop: one thread runs a [`Protocol`] over any number of reliable connections.
//!
//! The loop makes the connections and their queue pairs, waits for events and completions, and calls the protocol for
//! each. A protocol has no thread, no lock and no blocking call: a method posts requests and returns.
//!
//! ```
//! use std::error::Error;
//!
//! use cm::event_loop::{EventLoop, InitQp, Next, Protocol, Qp};
//! use verbs::{Buf, Completed, ProtectionDomain, op};
//!
//! /// Sends a greeting, and disconnects after the answer.
//! struct Greeter(Vec<u8>);
//!
//! impl Protocol for Greeter {
//!     type Send = Buf;
//!     type Receive = Buf;
//!     type State = ProtectionDomain;
//!     type Error = Box<dyn Error + Send + Sync>;
//!
//!     fn open(&mut self, pd: &ProtectionDomain, qp: &mut InitQp<Self>) -> Result<Self::State, Self::Error> {
//!         qp.post_recv(pd.alloc_buf(64)?)?; // for the answer
//!         Ok(pd.clone())
//!     }
//!
//!     fn established(&mut self, pd: &mut Self::State, qp: &mut Qp<Self>) -> Result<(), Self::Error> {
//!         Ok(qp.post(op::Send::new(pd.register_buf(*b"hello")?))?)
//!     }
//!
//!     fn completed(
//!         &mut self,
//!         _: &mut Self::State,
//!         _: &mut Qp<Self>,
//!         done: Completed<'_, Buf, Buf>,
//!     ) -> Result<Next, Self::Error> {
//!         match done {
//!             Completed::Send(_) => Ok(Next::Wait),
//!             Completed::Receive(answer) => {
//!                 self.0 = answer.received()?.to_vec();
//!                 Ok(Next::Disconnect)
//!             }
//!         }
//!     }
//! }
//!
//! # let _server = doctest::server();
//! let greeter = EventLoop::connect(Greeter(Vec::new()), None, "10.9.0.1:7471".parse()?)?.run()?;
//! assert_eq!(greeter.0, b"hello");
//! # Ok::<(), Box<dyn Error + Send + Sync>>(())
//! ```
//!
//! The passive side is [`EventLoop::listen`]. Each connection has a [`Protocol::State`]; the failure of a connection is
//! passed to [`Protocol::connection_failed`], and the others continue. [`Handle::wake`] hands work in from another thread,
//! and [`Handle::stop`] ends the loop.
//!
//! # Limits
//!
//! Any peer of the network can connect, and hold a connection without using it. So the number of connections is limited, in
//! total ([`max_connections`](EventLoop::max_connections)) and for each address
//! ([`max_per_address`](EventLoop::max_per_address)), and each stage has a time-out: the handshake, idleness if requested, and
//! the end.
//!
//! - An address with its maximum of connections gets no more: its oldest half-open connection gives way, or the request is
//!   rejected with [`Failure::AddressLimit`].
//! - At the maximum of all connections, or when memory, descriptors or objects of the device are used up (an error of
//!   [`Protocol::open`] counts), a connection of the address with the most connections gives way, the one idle for longest, if
//!   that address still has as many as the newcomer's; otherwise one idle for 30 s or longer; otherwise, for an address without a
//!   connection, the one idle for longest of the youngest eighth, at least 8, and for other addresses a half-open one of an address with as many. If there is none, the
//!   request is rejected. Connections that gave way fail with [`Failure::Displaced`].
//! - At most [`max_half_open`](EventLoop::max_half_open) connections are half-open: accepted, without the peer's end of the
//!   handshake. One more request displaces the oldest of the address with the most of them.
//!
//! Besides:
//!
//! - A loop has one device. It has as many completion queues as its connections need.
//! - [`Protocol`] is called for the next completion once the last call has returned. Work of milliseconds belongs in another
//!   thread, which wakes the loop by its [`Handle`].
//! - A silent peer is detected only while a request to it is in flight. Send pings where this is too late, at each
//!   [tick](EventLoop::tick), or set an [idle time-out](EventLoop::idle_timeout).

mod connections;
mod device;
mod displacement;
mod failure;
mod handle;
mod peer;
mod protocol;
mod settings;

use std::{
    fmt,
    net::SocketAddr,
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use verbs::{ProtectionDomain, QueuePair, Reset, fd::wait_any_readable, qp::QpId};

pub use self::{
    connections::Connections,
    failure::Failure,
    handle::Handle,
    protocol::{InitQp, Next, Protocol, Qp, Step},
};
use self::{connections::Peers, device::Device, peer::Peer, settings::Settings};
use crate::{
    CmId, ConnectFailure, ConnectRequest, Event, EventChannel, Key, Reaper,
    by_address::{PeerIp, peer_ip},
    half_open::HalfOpen,
    phases::{HasDevice, Listening},
};

/// Timeout for resolving the address and the route.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of connections that give way to one request without resources: one frees about as much as the next needs,
/// but an error of the protocol may have another reason.
const MAX_DISPLACED: u32 = 4;

/// Maximum time at the end of a loop for the destruction of its identifiers. Afterwards threads destroy the rest.
const REAPER_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of pending connection requests.
const BACKLOG: u32 = 128;

/// The connections of a protocol, and the thread's wait for them.
pub struct EventLoop<P: Protocol> {
    // Fields are dropped in this order.
    peers: Peers<P>,
    /// Accepted `peers` whose handshake is incomplete.
    half_open: HalfOpen<QpId>,
    /// Connection of the active side before establishment.
    making: Option<(InitQp<P>, P::State)>,
    device: Option<Device>,
    listener: Option<CmId<Listening>>,
    channel: EventChannel,
    /// Destroys the identifiers, so that a peer's end delays no other peer.
    reaper: Reaper,
    protocol: P,
    handle: Handle,
    settings: Settings,
    /// Number of connections ended, and the limit.
    ended: u32,
    limit: Option<u32>,
    /// Outcome of the last connection.
    last: Result<(), P::Error>,
}

/// The descriptors to read. The loop reads no others: each read is a system call.
struct Readable {
    channel: bool,
    completions: bool,
}

impl Readable {
    const ALL: Self = Self {
        channel: true,
        completions: true,
    };
}

impl<P: Protocol> EventLoop<P> {
    /// `rdma_resolve_addr(id, from, to, 2000)`—Begins to connect to `to`, from `from` if given. [`run`](Self::run) ends
    /// with the connection. Does not block.
    ///
    /// # Errors
    /// No connection manager, no device for the address, or too many open files.
    pub fn connect(protocol: P, from: Option<SocketAddr>, to: SocketAddr) -> Result<Self, Failure> {
        let this = Self::new(protocol, Some(1))?;
        let id = this.channel.create_id()?;
        id.resolve_addr(from, to, TIMEOUT)?;
        Ok(this)
    }

    /// `rdma_bind_addr`, `rdma_listen(id, 128)`—Listens on `addr`; with port 0, on a free port. [`run`](Self::run) ends after
    /// [`limit`](Self::limit) connections, or by [`Handle::stop`].
    ///
    /// # Errors
    /// No connection manager, no device with the address, a port in use, or too many open files.
    pub fn listen(protocol: P, addr: SocketAddr) -> Result<Self, Failure> {
        let mut this = Self::new(protocol, None)?;
        let mut id = this.channel.create_id()?;
        id.bind(addr)?;
        this.listener = Some(id.listen(BACKLOG)?);
        Ok(this)
    }

    fn new(protocol: P, limit: Option<u32>) -> Result<Self, Failure> {
        let reaper = Reaper::default();
        let channel = EventChannel::with_reaper(Some(&reaper))?;
        Ok(Self {
            peers: Peers::new(),
            half_open: HalfOpen::new(),
            making: None,
            device: None,
            listener: None,
            channel,
            reaper,
            protocol,
            handle: Handle::new()?,
            settings: Settings::new(),
            ended: 0,
            limit,
            last: Ok(()),
        })
    }

    /// Ends the loop after this number of connections; without limit by default.
    #[must_use]
    pub fn limit(mut self, connections: u32) -> Self {
        self.limit = Some(connections);
        self
    }

    /// Sets the maximum number of connections, half-open ones included; the default is 4096. See [Limits](self#limits).
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.settings.max_connections = connections.max(1);
        self
    }

    /// Sets the maximum number of connections of one address; the default is a quarter of
    /// [`max_connections`](Self::max_connections).
    #[must_use]
    pub fn max_per_address(mut self, connections: usize) -> Self {
        self.settings.max_per_address = Some(connections);
        self
    }

    /// Sets the maximum number of half-open connections; the default is 128.
    #[must_use]
    pub fn max_half_open(mut self, connections: usize) -> Self {
        self.settings.max_half_open = connections.max(1);
        self
    }

    /// Sets the maximum time of a handshake; the default is 10 s from accepting a request to the peer's end of the handshake, and
    /// on the active side 120 s from the call of [`run`](Self::run) to the peer's answer. The connection fails with
    /// [`Failure::HandshakeTimeout`].
    #[must_use]
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.settings.handshake_timeout = Some(timeout);
        self
    }

    /// Sets the maximum time of an established connection without a completion; by default there is no limit. The connection
    /// fails with [`Failure::IdleTimeout`].
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.settings.idle_timeout = Some(timeout);
        self
    }

    /// Sets the maximum time for the peer's answer to a disconnect request; the default is 10 s. The connection fails with
    /// [`Failure::DisconnectTimeout`].
    #[must_use]
    pub fn disconnect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.disconnect_timeout = timeout;
        self
    }

    /// Sets the interval between calls of [`Protocol::tick`]; by default there are none. A late call delays the next ones.
    #[must_use]
    pub fn tick(mut self, interval: Duration) -> Self {
        self.settings.tick = Some(interval);
        self
    }

    /// The address of the listener, with the port; `None` on the active side.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listener.as_ref()?.local_addr()
    }

    /// Returns a handle that wakes and stops the loop, from any thread.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// `poll(2)`—Runs the protocol over all connections. Blocks until the end of the connection to a server, until the limit
    /// of ended connections, or until [`Handle::stop`] and the end of the connections then open, for which a stop waits at most 10
    /// s. Returns the protocol.
    ///
    /// # Errors
    /// - Without the call of [`Handle::stop`]: the error of the last connection. Errors of earlier ones are passed to
    ///   [`Protocol::connection_failed`].
    /// - The connection to a server has not been made, or the device has been removed.
    /// - An error of [`Protocol::woken`] or [`Protocol::tick`].
    pub fn run(self) -> Result<P, P::Error> {
        let reaper = self.reaper.clone();
        let outcome = self.run_to_end();
        reaper.wait(REAPER_TIMEOUT);
        outcome
    }

    fn run_to_end(mut self) -> Result<P, P::Error> {
        let start = Instant::now();
        let is_active = self.listener.is_none();
        // Of the active side's handshake; of a stop; of the next tick.
        let mut connect_by = is_active.then(|| start.checked_add(self.settings.connect_timeout()));
        let mut stop_by = None;
        let mut tick_at = self.next_tick(start);
        self.protocol.started(self.handle.clone());
        let mut readable = Readable::ALL;
        loop {
            if readable.completions {
                self.take_events()?;
            }
            self.take_completions()?;
            while readable.channel
                && let Some(event) = self.channel.try_next().map_err(Failure::from)?
            {
                self.on_event(event)?;
                // An ended connection counts until its last request has completed, and the next request may need its slot.
                self.take_events()?;
                self.take_completions()?;
            }
            if self.peers.len() > 0 {
                connect_by = None;
            }
            let now = Instant::now();
            if self.handle.take_woken() {
                self.call(P::woken)?;
            }
            if tick_at.is_some_and(|at| at <= now) {
                self.call(P::tick)?;
                tick_at = self.next_tick(now);
            }
            self.expire(now);
            if self.handle.is_stopped() && stop_by.is_none() {
                stop_by = Some(now + settings::DISCONNECT_TIMEOUT);
                self.stop();
            }
            if stop_by.is_some_and(|by| by <= now) {
                self.abandon_all();
            }
            self.forget_ended();
            if stop_by.is_some() && self.peers.len() == 0 {
                return Ok(self.protocol);
            }
            if self.is_done() {
                return self.last.map(|()| self.protocol);
            }
            let connect_by = connect_by.flatten();
            if connect_by.is_some_and(|by| by <= now) {
                return Err(Failure::HandshakeTimeout.into());
            }
            let timers = [stop_by, tick_at, connect_by, self.peers.next_timer()];
            readable = self.wait(timers.into_iter().flatten().min())?;
        }
    }

    fn next_tick(&self, now: Instant) -> Option<Instant> {
        now.checked_add(self.settings.tick?)
    }

    /// Calls the protocol with access to all connections.
    fn call(
        &mut self,
        callback: impl FnOnce(&mut P, &mut Connections<'_, P>) -> Result<(), P::Error>,
    ) -> Result<(), P::Error> {
        let mut connections = Connections {
            peers: &mut self.peers,
            settings: &self.settings,
        };
        callback(&mut self.protocol, &mut connections)
    }

    /// Ends connections whose stage has taken too long.
    fn expire(&mut self, now: Instant) {
        while let Some(id) = self.peers.expired(&self.settings, now) {
            let Some(peer) = self.peers.get_mut(id) else {
                continue;
            };
            let failure = peer.expiry();
            if let Failure::IdleTimeout = failure {
                peer.end(Err(failure.into()));
                self.peers.changed(id, &self.settings);
            } else {
                self.abandon(id, Err(failure.into()));
            }
        }
    }

    fn is_done(&self) -> bool {
        self.limit.is_some_and(|limit| self.ended >= limit)
    }

    /// Closes the listener, abandons connection attempts of either side, and disconnects.
    fn stop(&mut self) {
        self.listener = None;
        self.making = None;
        while let Some((_, id)) = self.half_open.oldest() {
            self.abandon(id, Ok(()));
        }
        for id in self.peers.ids() {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.stop();
                self.peers.changed(id, &self.settings);
            }
        }
    }

    /// Drops a connection at once: its peer may never answer.
    fn abandon(&mut self, id: QpId, outcome: Result<(), P::Error>) {
        let Some(mut peer) = self.peers.remove(id) else {
            return;
        };
        let key = peer.key;
        peer.abandon(outcome);
        if let Err(err) = peer.outcome(&mut self.protocol) {
            self.protocol.connection_failed(err);
        }
        self.half_open.remove(key);
        // After its queue pair. Without effect for an established connection.
        self.channel.cancel(key);
    }

    /// Drops connections whose peers have not answered a stop in time.
    fn abandon_all(&mut self) {
        for id in self.peers.ids() {
            let status = -libc::ETIMEDOUT;
            let silent = Failure::Connect(ConnectFailure::Unreachable { status });
            self.abandon(id, Err(silent.into()));
        }
    }

    /// Blocks until an event or a completion is ready, the loop is woken or stopped, or until `deadline`.
    fn wait(&self, deadline: Option<Instant>) -> Result<Readable, Failure> {
        let channel = self.channel.as_fd();
        let events = self.device.as_ref().map(Device::events);
        let fds = [channel, self.handle.event_fd(), events.unwrap_or(channel)];
        let remaining = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let [channel, woken, completions] = wait_any_readable("poll", fds, remaining)?;
        if woken {
            self.handle.event().drain();
        }
        Ok(Readable {
            channel,
            completions,
        })
    }

    fn take_events(&mut self) -> Result<(), Failure> {
        match &mut self.device {
            Some(device) => device.take_events(),
            None => Ok(()),
        }
    }

    fn take_completions(&mut self) -> Result<(), Failure> {
        // Over iWARP the peer's first message may complete before the event of the active side's connection is handled:
        // it stays in the queue until then.
        let (Some(device), None) = (&mut self.device, &self.making) else {
            return Ok(());
        };
        let (peers, protocol, settings) = (&mut self.peers, &mut self.protocol, &self.settings);
        let now = Instant::now();
        device.take(|wc| {
            let id = wc.qp_id();
            // Otherwise the queue pair is gone, because accepting a request failed.
            if let Some(peer) = peers.get_mut(id) {
                peer.complete(wc, protocol, now);
                peers.changed(id, settings);
            }
        })?;
        self.forget_ended();
        Ok(())
    }

    fn on_event(&mut self, event: Event) -> Result<(), P::Error> {
        match event {
            Event::AddrResolved(id) if !self.handle.is_stopped() => {
                self.protocol.report_step(Step::AddrResolved);
                self.making = Some(self.open(&id)?);
                id.resolve_route(TIMEOUT).map_err(Failure::from)?;
            }
            Event::RouteResolved(id) => {
                self.protocol.report_step(Step::RouteResolved);
                if let Some((qp, _)) = &self.making {
                    id.connect(qp, &self.protocol.param())
                        .map_err(Failure::from)?;
                }
            }
            Event::ConnectResponse(response) => {
                if let Some((qp, state)) = self.making.take() {
                    let connection = response.establish(qp).map_err(Failure::from)?;
                    self.begin(Peer::established(connection, state));
                }
            }
            // A later one is dropped, and so rejected.
            Event::ConnectRequest(request) if !self.handle.is_stopped() => {
                self.protocol.report_step(Step::Requested);
                if let Err(err) = self.accept(request) {
                    self.protocol.connection_failed(err);
                }
            }
            Event::Established(id) => {
                let qp_id = self.half_open.remove(id.key());
                // Otherwise the protocol has already failed.
                if let Some(peer) = qp_id.and_then(|qp_id| self.peers.remove(qp_id)) {
                    match peer.join(id) {
                        Ok(peer) => self.begin(peer),
                        Err(err) => self.protocol.connection_failed(err.into()),
                    }
                }
            }
            Event::Disconnected { key, cause } => {
                self.protocol.report_step(Step::Disconnected);
                self.end(key, cause);
            }
            Event::ConnectFailed { failure, .. } if self.making.is_some() => {
                return Err(Failure::from(failure).into());
            }
            Event::ConnectFailed { id, failure } => {
                self.half_open.remove(id.key());
                self.end(id.key(), Some(failure));
            }
            Event::AddrError { error, .. } | Event::RouteError { error, .. } => {
                return Err(Failure::from(error).into());
            }
            Event::DeviceRemoval(_) => return Err(Failure::DeviceRemoved.into()),
            // The end of the timewait state, and events of datagrams, which a loop has not.
            _ => {}
        }
        Ok(())
    }

    fn accept(&mut self, request: ConnectRequest) -> Result<(), P::Error> {
        let (key, addr) = (request.id().key(), peer_ip(request.id()));
        self.admit(addr)?;
        let mut displaced = 0;
        let (qp, state) = loop {
            match self.open(request.id()) {
                // The device, the process or its memory is at a limit.
                Err(_) if displaced < MAX_DISPLACED && self.displace_for(addr)? => displaced += 1,
                opened => break opened?,
            }
        };
        let qp = request
            .accept(qp, &self.protocol.param())
            .map_err(Failure::from)?;
        let peer = Peer::accepted((key, addr), qp, state);
        let id = self.peers.insert(peer, &self.settings);
        self.half_open.add(key, addr, id);
        if self.half_open.len() > self.settings.max_half_open
            && let Some((_, id)) = self.half_open.displace()
        {
            self.displace(id)?;
        }
        Ok(())
    }

    /// Checks the limits for a request from an address. Another connection may give way.
    fn admit(&mut self, addr: PeerIp) -> Result<(), Failure> {
        if self.reaper.is_overloaded() {
            return Err(Failure::ConnectionLimit);
        }
        if self.peers.count(addr) >= self.settings.per_address() {
            let (_, id) = self
                .half_open
                .displace_of(addr)
                .ok_or(Failure::AddressLimit)?;
            self.displace(id)?;
        }
        if self.peers.len() >= self.settings.max_connections && !self.displace_for(addr)? {
            return Err(Failure::ConnectionLimit);
        }
        Ok(())
    }

    /// Lets a connection give way to one from `addr`. Returns false if there is none to do so.
    fn displace_for(&mut self, addr: PeerIp) -> Result<bool, Failure> {
        let found = self.peers.displaced_for(addr, Instant::now());
        let found = found.or_else(|| {
            let (key, other) = self.half_open.next_displaced()?;
            // An address with more connections ends none of another one.
            let is_fair = self.peers.count(other) >= self.peers.count(addr);
            is_fair.then(|| self.half_open.remove(key)).flatten()
        });
        match found {
            Some(id) => self.displace(id).map(|()| true),
            None => Ok(false),
        }
    }

    fn displace(&mut self, id: QpId) -> Result<(), Failure> {
        self.abandon(id, Err(Failure::Displaced.into()));
        if let Some(device) = &mut self.device {
            device.poll_all();
        }
        self.take_completions()
    }

    /// Entries of a completion queue for one connection.
    const DEPTH: u32 = {
        let depth = P::SEND_DEPTH.saturating_add(P::RECEIVE_DEPTH);
        if depth == 0 { 1 } else { depth }
    };

    /// Creates a queue pair, and calls the protocol's `open`.
    fn open<Phase: HasDevice>(
        &mut self,
        id: &CmId<Phase>,
    ) -> Result<(InitQp<P>, P::State), P::Error> {
        let (pd, mut qp) = self.create_qp(id)?;
        let state = self.protocol.open(&pd, &mut qp)?;
        Ok((qp, state))
    }

    fn create_qp<Phase: HasDevice>(
        &mut self,
        id: &CmId<Phase>,
    ) -> Result<(ProtectionDomain, InitQp<P>), Failure> {
        let context = id.context()?;
        let device = match &mut self.device {
            Some(device) => device,
            none => none.insert(Device::new(context.clone())?),
        };
        if device.context != context {
            return Err(Failure::OtherDevice);
        }
        if device.cq_with(Self::DEPTH).is_none() {
            device.add_cq(Self::DEPTH)?;
        }
        let pd = device.pd.clone();
        let cq = device
            .cq_with(Self::DEPTH)
            .ok_or(Failure::ConnectionLimit)?;
        let qp: QueuePair<verbs::Rc, Reset, P::Send, P::Receive> = pd
            .qp_builder(cq, cq)
            .max_send_wr(P::SEND_DEPTH)
            .max_recv_wr(P::RECEIVE_DEPTH)
            .create_for()?;
        Ok((pd, id.init_qp(qp)?))
    }

    fn begin(&mut self, mut peer: Peer<P>) {
        self.protocol.report_step(Step::Established);
        peer.begin(&mut self.protocol);
        self.peers.insert(peer, &self.settings);
    }

    /// Ends a connection by an event: because of `cause`, unless either side has disconnected.
    fn end(&mut self, key: Key, cause: Option<ConnectFailure>) {
        if let Some(id) = self.peers.find(key)
            && let Some(peer) = self.peers.get_mut(id)
        {
            peer.end_by_event(cause, &self.protocol);
            self.peers.changed(id, &self.settings);
        }
    }

    /// Removes ended connections without requests in flight.
    fn forget_ended(&mut self) {
        while let Some(peer) = self.peers.take_gone() {
            let key = peer.key;
            let outcome = peer.outcome(&mut self.protocol);
            if self.half_open.remove(key).is_some() {
                // The peer may never complete the handshake.
                self.channel.cancel(key);
            }
            self.ended += 1;
            match outcome {
                Err(err) if self.handle.is_stopped() || !self.is_done() => {
                    self.protocol.connection_failed(err);
                }
                last => self.last = last,
            }
        }
    }
}

impl<P: Protocol> fmt::Debug for EventLoop<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLoop")
            .field("listener", &self.listener)
            .field("connections", &self.peers.len())
            .field("ended", &self.ended)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
