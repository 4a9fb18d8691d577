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
//! passed to [`Protocol::connection_failed`], and the others continue. [`Stopper::stop`] ends the loop from another thread.
//!
//! # Limits
//!
//! - One device, with one completion queue of 4096 entries for all connections: a connection that does not fit is refused.
//! - [`Protocol`] is called for the next completion once the last call has returned. Work of milliseconds belongs in another
//!   thread.
//! - A silent peer is detected only while a request to it is in flight. Send pings where this is too late.
//! - Half of the completion queue, and at most 128 connections, may be half-open: accepted, without the peer's end of the
//!   handshake. One more request displaces the oldest, which fails with [`Failure::Displaced`].

mod failure;
mod peer;
mod protocol;
mod stopper;

use std::{
    collections::HashMap,
    fmt,
    net::SocketAddr,
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use verbs::{
    CompletionQueue, Context, ProtectionDomain, QueuePair, Reset,
    cq::{CompletionChannel, CqKey, Notify},
    fd::wait_any_readable,
    qp::QpId,
};

use self::peer::Peer;
pub use self::{
    failure::Failure,
    protocol::{InitQp, Next, Protocol, Qp, Step},
    stopper::Stopper,
};
use crate::{
    CmId, ConnectFailure, ConnectRequest, Event, EventChannel, Key,
    half_open::HalfOpen,
    phases::{HasDevice, Listening},
};

/// Timeout for resolving the address and the route.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of pending connection requests.
const BACKLOG: u32 = 10;

/// Entries of the completion queue: sends and receives in flight, over all connections.
const CQ_ENTRIES: u32 = 4096;

/// Maximum number of half-open connections: far more than an honest peer's handshake of milliseconds lets come, and few enough
/// for their queue pairs and receives. Half of the completion queue if that is less, so that they never fill it.
const HALF_OPEN: u32 = 128;

/// Maximum time of a stop, for the peers' answers to disconnect requests. The connection manager retries for a time chosen by
/// the peer, of up to many hours.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The connections of a protocol, and the thread's wait for them.
pub struct EventLoop<P: Protocol> {
    // Fields are dropped in this order.
    peers: HashMap<QpId, Peer<P>>,
    /// Keys of accepted `peers` whose handshake is incomplete.
    half_open: HalfOpen<QpId>,
    /// Connection of the active side before establishment.
    making: Option<(InitQp<P>, P::State)>,
    device: Option<Device>,
    listener: Option<CmId<Listening>>,
    channel: EventChannel,
    protocol: P,
    stopper: Stopper,
    /// Number of connections ended, and the limit.
    ended: u32,
    limit: Option<u32>,
    /// Outcome of the last connection.
    last: Result<(), P::Error>,
}

/// Resources shared by all connections, created once the device is known.
struct Device {
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    events: CompletionChannel,
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

    /// `rdma_bind_addr`, `rdma_listen(id, 10)`—Listens on `addr`; with port 0, on a free port. [`run`](Self::run) ends after
    /// [`limit`](Self::limit) connections, or by [`Stopper::stop`].
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
        Ok(Self {
            peers: HashMap::new(),
            half_open: HalfOpen::new(),
            making: None,
            device: None,
            listener: None,
            channel: EventChannel::new()?,
            protocol,
            stopper: Stopper::new()?,
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

    /// The address of the listener, with the port; `None` on the active side.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listener.as_ref()?.local_addr()
    }

    /// Returns a handle that stops the loop, from any thread.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// `poll(2)`—Runs the protocol over all connections. Blocks until the end of the connection to a server, until the limit
    /// of ended connections, or until [`Stopper::stop`] and the end of the connections then open, for which a stop waits at most 10
    /// s. Returns the protocol.
    ///
    /// # Errors
    /// - Without the call of [`Stopper::stop`]: the error of the last connection. Errors of earlier ones are passed to
    ///   [`Protocol::connection_failed`].
    /// - The connection to a server has not been made, or the device has been removed.
    pub fn run(mut self) -> Result<P, P::Error> {
        let mut stop_by = None;
        loop {
            // Armed before the poll, so that no completion is missed.
            if let Some(device) = &self.device {
                device.arm()?;
            }
            self.take_completions()?;
            while let Some(event) = self.channel.try_next().map_err(Failure::from)? {
                self.on_event(event)?;
                self.take_completions()?;
            }
            if self.stopper.is_stopped() && stop_by.is_none() {
                stop_by = Some(Instant::now() + STOP_TIMEOUT);
                self.stop();
            }
            let left = stop_by.map(|by| by.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                self.abandon_all();
            }
            if left.is_some() && self.peers.is_empty() {
                return Ok(self.protocol);
            }
            if self.is_done() {
                return self.last.map(|()| self.protocol);
            }
            self.wait(left)?;
        }
    }

    fn is_done(&self) -> bool {
        self.limit.is_some_and(|limit| self.ended >= limit)
    }

    /// Closes the listener, abandons connection attempts of either side, and disconnects.
    fn stop(&mut self) {
        self.listener = None;
        self.making = None;
        while let Some(half_open) = self.half_open.oldest() {
            self.abandon(half_open, Ok(()));
        }
        for peer in self.peers.values_mut() {
            peer.stop();
        }
    }

    /// Drops a half-open connection at once: its peer may never answer.
    fn abandon(&mut self, (key, qp_id): (Key, QpId), outcome: Result<(), P::Error>) {
        if let Some(mut peer) = self.peers.remove(&qp_id) {
            peer.abandon(outcome);
            if let Err(err) = peer.outcome(&mut self.protocol) {
                self.protocol.connection_failed(err);
            }
        }
        // After its queue pair.
        self.channel.cancel(key);
    }

    /// Drops connections whose peers have not answered a stop in time.
    fn abandon_all(&mut self) {
        let peers: Vec<_> = self
            .peers
            .values()
            .map(|peer| (peer.key, peer.qp().id()))
            .collect();
        for peer in peers {
            let status = -libc::ETIMEDOUT;
            let silent = Failure::Connect(ConnectFailure::Unreachable { status });
            self.abandon(peer, Err(silent.into()));
        }
    }

    /// Blocks until an event or a completion is ready, the loop is stopped, or the time `left` of a stop is over.
    fn wait(&self, left: Option<Duration>) -> Result<(), Failure> {
        let channel = self.channel.as_fd();
        // Once stopped, the stopper stays readable.
        let stop = if left.is_some() {
            channel
        } else {
            self.stopper.event_fd()
        };
        let events = self.device.as_ref().map(|device| device.events.as_fd());
        wait_any_readable("poll", [channel, stop, events.unwrap_or(channel)], left)?;
        Ok(())
    }

    fn take_completions(&mut self) -> Result<(), Failure> {
        // Over iWARP the peer's first message may complete before the event of the active side's connection is handled:
        // it stays in the queue until then.
        while let (Some(device), None) = (&mut self.device, &self.making) {
            let completions = device.cq.poll()?;
            if completions.len() == 0 {
                break;
            }
            for wc in completions {
                // Otherwise the queue pair is gone, because accepting a request failed.
                if let Some(peer) = self.peers.get_mut(&wc.qp_id()) {
                    peer.complete(wc, &mut self.protocol);
                }
            }
        }
        self.forget_ended();
        Ok(())
    }

    fn on_event(&mut self, event: Event) -> Result<(), P::Error> {
        match event {
            Event::AddrResolved(id) if !self.stopper.is_stopped() => {
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
            Event::ConnectRequest(request) if !self.stopper.is_stopped() => {
                self.protocol.report_step(Step::Requested);
                if let Err(err) = self.accept(request) {
                    self.protocol.connection_failed(err);
                }
            }
            Event::Established(id) => {
                let qp_id = self.half_open.remove(id.key());
                // Otherwise the protocol has already failed.
                if let Some(peer) = qp_id.and_then(|qp_id| self.peers.remove(&qp_id)) {
                    match peer.join(id) {
                        Ok(peer) => self.begin(peer),
                        Err(err) => self.protocol.connection_failed(err.into()),
                    }
                }
            }
            Event::Disconnected { key, .. } => {
                self.protocol.report_step(Step::Disconnected);
                self.end(key, Ok(()));
            }
            Event::ConnectFailed { failure, .. } if self.making.is_some() => {
                return Err(Failure::from(failure).into());
            }
            Event::ConnectFailed { id, failure } => {
                self.half_open.remove(id.key());
                self.end(id.key(), Err(Failure::from(failure).into()));
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
        let key = request.id().key();
        if !self.has_room()
            && let Some(oldest) = self.half_open.oldest()
        {
            self.displace(oldest)?;
        }
        let (qp, state) = self.open(request.id())?;
        let qp = request
            .accept(qp, &self.protocol.param())
            .map_err(Failure::from)?;
        let peer = Peer::accepted(key, qp, state);
        self.half_open.add(key, peer.qp().id());
        self.peers.insert(peer.qp().id(), peer);
        let limit = (CQ_ENTRIES / 2 / Self::DEPTH).clamp(1, HALF_OPEN);
        if let Some(oldest) = self.half_open.displaced(limit as usize) {
            self.displace(oldest)?;
        }
        Ok(())
    }

    /// Entries of the completion queue for one connection.
    const DEPTH: u32 = {
        let depth = P::SEND_DEPTH.saturating_add(P::RECEIVE_DEPTH);
        if depth == 0 { 1 } else { depth }
    };

    /// Whether the completion queue has room for one more connection.
    fn has_room(&self) -> bool {
        let device = self.device.as_ref();
        device.is_none_or(|device| device.cq.available() >= Self::DEPTH)
    }

    fn displace(&mut self, half_open: (Key, QpId)) -> Result<(), Failure> {
        self.abandon(half_open, Err(Failure::Displaced.into()));
        // Entries of a dropped queue pair are free once the completion queue has been found empty.
        self.take_completions()
    }

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
        let qp: QueuePair<verbs::Rc, Reset, P::Send, P::Receive> = device
            .pd
            .qp_builder(&device.cq, &device.cq)
            .max_send_wr(P::SEND_DEPTH)
            .max_recv_wr(P::RECEIVE_DEPTH)
            .create_for()?;
        Ok((device.pd.clone(), id.init_qp(qp)?))
    }

    fn begin(&mut self, mut peer: Peer<P>) {
        self.protocol.report_step(Step::Established);
        peer.begin(&mut self.protocol);
        self.peers.insert(peer.qp().id(), peer);
    }

    fn find(&self, key: Key) -> Option<QpId> {
        let mut peers = self.peers.iter();
        peers
            .find(|(_, peer)| peer.key == key)
            .map(|(&qp_id, _)| qp_id)
    }

    fn end(&mut self, key: Key, outcome: Result<(), P::Error>) {
        let qp_id = self.find(key);
        if let Some(peer) = qp_id.and_then(|qp_id| self.peers.get_mut(&qp_id)) {
            peer.end(outcome);
        }
    }

    /// Removes ended connections without requests in flight.
    fn forget_ended(&mut self) {
        let gone = |(&qp_id, peer): (&QpId, &Peer<P>)| peer.is_gone().then_some(qp_id);
        let gone: Vec<QpId> = self.peers.iter().filter_map(gone).collect();
        for qp_id in gone {
            let Some(peer) = self.peers.remove(&qp_id) else {
                continue;
            };
            let key = peer.key;
            let outcome = peer.outcome(&mut self.protocol);
            if self.half_open.remove(key).is_some() {
                // The peer may never complete the handshake.
                self.channel.cancel(key);
            }
            self.ended += 1;
            match outcome {
                Err(err) if self.stopper.is_stopped() || !self.is_done() => {
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

impl Device {
    fn new(context: Context) -> Result<Self, Failure> {
        let pd = context.alloc_pd()?;
        let events = context.create_comp_channel()?;
        let cq = context
            .cq_builder(CQ_ENTRIES)
            .channel(&events, CqKey::default())
            .create()?;
        let device = Self {
            context,
            pd,
            cq,
            events,
        };
        device.arm()?;
        Ok(device)
    }

    /// Arms the completion queue for the next completion.
    fn arm(&self) -> Result<(), Failure> {
        while self.events.try_next()?.is_some() {}
        Ok(self.cq.req_notify(Notify::Next)?)
    }
}
