//! The passive side: listeners and incoming requests.

use std::{
    fmt,
    marker::PhantomData,
    net::{SocketAddr, ToSocketAddrs},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use verbs::{
    Buf, Error, Init, ProtectionDomain, QueuePair, RemoteAccess, RemoteRegion, Result,
    fd::wait_any_readable,
    qp::{QpId, QpKey},
    work::Scatter,
};

use super::{
    Queues,
    builder::EndpointBuilder,
    connected::Endpoint,
    handshakes::{Awaited, Handshakes, is_exhausted},
    queues::{PrivateQueues, QueueChoice, SharedQueues},
    receiving,
};
use crate::{
    accept::ConnectRequest,
    channel::EventChannel,
    dial::Deadline,
    event::{ConnectFailure, Event},
    id::CmId,
    param::{ConnParam, PeerParam},
    phases::{Listening, Requested},
    reaper::Reaper,
};

/// Listens for connection requests, similar to [`TcpListener`](std::net::TcpListener).
///
/// Threads can share a listener; each accepts connections of its own.
///
/// # Examples
/// ```
/// # let _fabric = doctest::lasting_host();
/// let listener = cm::Listener::bind("10.9.0.1:7471")?;
/// # let client = std::thread::spawn(|| -> verbs::Result<()> {
/// #     let mut server = cm::connect("10.9.0.1:7471")?;
/// #     server.post_send(server.reg_msgs(*b"hello")?)?;
/// #     server.send_comp()?.ok()?;
/// #     server.disconnect()
/// # });
/// loop {
///     let mut endpoint = listener.accept()?;
///     std::thread::spawn(move || {
///         endpoint.post_recv(endpoint.reg_msgs([0; 64])?)?;
///         println!("received {:?}", endpoint.recv_comp()?.received()?);
///         endpoint.disconnect()
///     });
/// #   break;
/// }
/// # client.join().expect("the client has not panicked")?;
/// # Ok::<(), verbs::Error>(())
/// ```
pub struct Listener<SW = Buf, RW = Buf, Q: QueueChoice = PrivateQueues> {
    id: CmId<Listening>,
    channel: EventChannel,
    /// Half-open connections of [`accept`](Self::accept).
    handshakes: Handshakes<SW, RW, Q>,
    /// Half-open connections of [`Incoming::accept`], created for the first request.
    awaited: OnceLock<Arc<Handshakes<SW, RW, Q>>>,
    /// Number of requests rejected for lack of resources.
    exhausted: AtomicU64,
    choices: Mutex<EndpointBuilder<Q>>,
    work: PhantomData<fn(SW, RW)>,
}

impl Listener {
    /// Listens on `addr`, with the defaults of [`EndpointBuilder`].
    ///
    /// # Errors
    /// As for [`EndpointBuilder::listen`].
    pub fn bind(addr: impl ToSocketAddrs) -> Result<Self> {
        EndpointBuilder::new().listen(addr)
    }
}

impl<SW: 'static, RW: 'static, Q: QueueChoice> Listener<SW, RW, Q> {
    pub(super) fn new(choices: &EndpointBuilder<Q>, addr: SocketAddr) -> Result<Self> {
        let channel = choices.channel()?;
        let mut id = channel.create_id()?;
        id.bind(addr)?;
        Ok(Self {
            id: id.listen(choices.backlog)?,
            channel,
            handshakes: Handshakes::new(choices, false)?,
            awaited: OnceLock::new(),
            exhausted: AtomicU64::new(0),
            choices: Mutex::new(choices.clone()),
            work: PhantomData,
        })
    }

    /// Local address of the listener.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.local_addr()
    }

    /// The identifier.
    pub fn id(&self) -> &CmId<Listening> {
        &self.id
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn channel(&self) -> &EventChannel {
        &self.channel
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn handshakes(&self) -> &EventChannel {
        self.handshakes.channel()
    }

    /// Time until a half-open connection of [`accept`](Self::accept) has taken too long.
    #[cfg(feature = "tokio")]
    pub(crate) fn next_expiry(&self) -> Option<Duration> {
        self.handshakes.next_expiry()
    }

    /// `rdma_get_request`—Blocks until the next request. The request has a queue pair, so that receives can be
    /// posted before accepting. Skips requests withdrawn by their peers.
    ///
    /// Any peer can request connections. If the process or the device is at a limit (`EMFILE`, `ENOMEM`), a half-open
    /// connection gives way, of this call and of [`accept`](Self::accept); if there is none, the peer is rejected, and counted in
    /// [`refusals`](Self::refusals).
    ///
    /// # Errors
    /// - `TimedOut`: no request within the builder's timeout.
    /// - `NetworkDown`: the device is being removed.
    /// - Any other error of creating the queue pair. The peer is rejected then.
    #[doc(alias = "rdma_get_request")]
    pub fn request(&self) -> Result<Incoming<SW, RW, Q>> {
        let deadline = self.deadline();
        let incoming = self.next_incoming(deadline)?;
        incoming.ok_or_else(|| deadline.missed("rdma_get_request"))
    }

    /// `rdma_get_request`—Blocks until the next request, at most for `timeout`; then the result is `None`.
    ///
    /// # Errors
    /// As for [`request`](Self::request).
    #[doc(alias = "rdma_get_request")]
    pub fn request_timeout(&self, timeout: Duration) -> Result<Option<Incoming<SW, RW, Q>>> {
        self.next_incoming(Deadline::after(Some(timeout)))
    }

    fn next_incoming(&self, deadline: Deadline) -> Result<Option<Incoming<SW, RW, Q>>> {
        while let Some(request) = self.next_request(deadline)? {
            if let Some(incoming) = self.incoming(request)? {
                return Ok(Some(incoming));
            }
        }
        Ok(None)
    }

    /// Accepts requests, and blocks until a connection is established. Skips peers that disappear during the
    /// handshake. A peer that does not complete its handshake delays no other: at most
    /// [`backlog`](EndpointBuilder::backlog) connections are half-open, each at most for the
    /// [handshake timeout](EndpointBuilder::handshake_timeout), and stay so for the next call. Lack of resources is handled as by
    /// [`request`](Self::request).
    ///
    /// If the peer's first message arrives before a receive is posted, the device retransmits the message. To
    /// post receives before accepting, use [`request`](Self::request).
    ///
    /// # Errors
    /// As for [`request`](Self::request), and the local errors of [`Incoming::accept`].
    pub fn accept(&self) -> Result<Endpoint<SW, RW, Q>> {
        const CALL: &str = "rdma_accept";
        let deadline = self.deadline();
        loop {
            if let Some(endpoint) = self.try_accept()? {
                return Ok(endpoint);
            }
            let channels = [&self.channel, self.handshakes.channel()];
            let fds = channels.map(|channel| channel.handle().event_fd());
            let expiry = self.handshakes.next_expiry();
            let wait = expiry.into_iter().chain(deadline.remaining()).min();
            wait_any_readable(CALL, fds, wait)?;
            if deadline
                .remaining()
                .is_some_and(|remaining| remaining.is_zero())
            {
                // Once more: both may have come at the same time.
                return self.try_accept()?.ok_or_else(|| deadline.missed(CALL));
            }
        }
    }

    /// Takes the next connection, if there is one, and begins to accept every request that has come before it. Never
    /// blocks.
    pub(crate) fn try_accept(&self) -> Result<Option<Endpoint<SW, RW, Q>>> {
        loop {
            if let Some(endpoint) = self.handshakes.try_next()? {
                return Ok(Some(endpoint));
            }
            let Some(event) = self.channel.try_next()? else {
                return Ok(None);
            };
            let Some(request) = self.understand(event)? else {
                continue;
            };
            let begun = self.resources(&request).and_then(|(choices, resources)| {
                self.handshakes.begin(request, resources, &choices)
            });
            self.unless_of_peer(begun)?;
        }
    }

    /// Iterator over all connections, without end.
    pub fn incoming_connections(&self) -> impl Iterator<Item = Result<Endpoint<SW, RW, Q>>> {
        std::iter::repeat_with(|| self.accept())
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.choices().timeout)
    }

    fn choices(&self) -> std::sync::MutexGuard<'_, EndpointBuilder<Q>> {
        self.choices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_request(&self, deadline: Deadline) -> Result<Option<ConnectRequest>> {
        loop {
            let event = match deadline.remaining() {
                None => Some(self.channel.wait()?),
                Some(remaining) => self.channel.wait_timeout(remaining)?,
            };
            match event {
                None => return Ok(None),
                Some(event) => {
                    if let Some(request) = self.understand(event)? {
                        return Ok(Some(request));
                    }
                }
            }
        }
    }

    /// Extracts the request from an event, if any. While the reaper has too many identifiers, requests are rejected.
    pub(crate) fn understand(&self, event: Event) -> Result<Option<ConnectRequest>> {
        let reaper = self.channel.handle().reaper();
        match event {
            Event::ConnectRequest(_) if reaper.is_some_and(Reaper::is_overloaded) => {
                self.exhausted.fetch_add(1, Ordering::Relaxed);
                Ok(None)
            }
            Event::ConnectRequest(request) => Ok(Some(request)),
            Event::DeviceRemoval(key) if key == self.id.key() => {
                Err(ConnectFailure::DeviceRemoved.into_error("rdma_get_request"))
            }
            _ => Ok(None),
        }
    }

    /// The choices for a connection on the device of a request, with the domain that those of the listener share.
    fn choices_for(&self, request: &ConnectRequest) -> Result<EndpointBuilder<Q>> {
        let mut choices = self.choices();
        let ctx = request.id().context()?;
        if choices.chosen_domain(&ctx).is_none() {
            choices.domains.push(ctx.alloc_pd()?);
        }
        Ok(choices.clone())
    }

    /// Creates the queues and the queue pair of a request. At a limit of the process or the device, half-open connections
    /// give way.
    fn resources(
        &self,
        request: &ConnectRequest,
    ) -> Result<(EndpointBuilder<Q>, Resources<SW, RW, Q>)> {
        loop {
            let created = self.choices_for(request).and_then(|choices| {
                let resources = Queues::with_qp(request.id(), &choices)?;
                Ok((choices, resources))
            });
            match created {
                Err(err) if is_exhausted(&err) && self.displace() => {}
                other => return other,
            }
        }
    }

    /// Ends a half-open connection. Returns false if there is none.
    fn displace(&self) -> bool {
        let awaited = self.awaited.get();
        self.handshakes.displace() || awaited.is_some_and(|awaited| awaited.displace())
    }

    /// Ignores the failure of a request that is its peer's, or for lack of resources: any peer can cause it.
    fn unless_of_peer<T>(&self, outcome: Result<T>) -> Result<Option<T>> {
        match outcome {
            Err(err) if is_exhausted(&err) => {
                #[cfg(feature = "tracing")]
                tracing::warn!(target: "cm", error = %err, "rejecting a peer");
                self.exhausted.fetch_add(1, Ordering::Relaxed);
                Ok(None)
            }
            Err(err) if is_of_peer(&err) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Gives a request a queue pair. `None` if the peer is rejected.
    pub(crate) fn incoming(&self, request: ConnectRequest) -> Result<Option<Incoming<SW, RW, Q>>> {
        let prepared = self
            .resources(&request)
            .and_then(|(choices, resources)| Ok((choices, resources, self.awaited()?)));
        let prepared = self.unless_of_peer(prepared)?;
        Ok(
            prepared.map(|(choices, (queues, qp), handshakes)| Incoming {
                qp,
                request,
                queues,
                handshakes,
                choices,
            }),
        )
    }

    fn awaited(&self) -> Result<Arc<Handshakes<SW, RW, Q>>> {
        if let Some(awaited) = self.awaited.get() {
            return Ok(Arc::clone(awaited));
        }
        let created = Arc::new(Handshakes::new(&self.choices(), true)?);
        Ok(Arc::clone(self.awaited.get_or_init(|| created)))
    }

    /// Counts of requests that did not become connections.
    pub fn refusals(&self) -> Refusals {
        let mut sum = self.handshakes.refusals();
        if let Some(awaited) = self.awaited.get() {
            let of_requests = awaited.refusals();
            sum.displaced += of_requests.displaced;
            sum.timed_out += of_requests.timed_out;
            sum.failed += of_requests.failed;
        }
        sum.exhausted = self.exhausted.load(Ordering::Relaxed);
        sum
    }
}

/// Counts of connection requests that a [`Listener`] has not turned into connections.
///
/// Peers are not authenticated: a count growing on a healthy network indicates a flood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusals {
    /// Half-open connections ended in favor of a newer request.
    pub displaced: u64,
    /// Half-open connections ended after the [handshake timeout](EndpointBuilder::handshake_timeout).
    pub timed_out: u64,
    /// Handshakes ended by the peer, and established connections without a descriptor free for their events.
    pub failed: u64,
    /// Requests rejected for lack of memory, descriptors or objects of the device, or of entries of the program's
    /// [completion queues](EndpointBuilder::cqs), with no half-open connection to displace, and requests beyond the limit of a
    /// [reaper](EndpointBuilder::reaper). If all requests are, raise the limits of the process (`RLIMIT_MEMLOCK`,
    /// `RLIMIT_NOFILE`).
    pub exhausted: u64,
}

type Resources<SW, RW, Q> = (Queues<Q>, QueuePair<verbs::Rc, Init, SW, RW>);

impl<SW, RW, Q: QueueChoice> fmt::Debug for Listener<SW, RW, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Whether the error is only the end of a peer, and not of the listener.
pub(crate) fn is_of_peer(error: &Error) -> bool {
    ConnectFailure::of(error).is_some_and(|failure| *failure != ConnectFailure::DeviceRemoved)
}

/// A connection request with a queue pair for posting receives. Drop rejects the peer.
#[derive(Debug)]
#[must_use = "accept the connection, or reject it"]
pub struct Incoming<SW = Buf, RW = Buf, Q: QueueChoice = PrivateQueues> {
    // Dropped before the identifier.
    pub(crate) qp: QueuePair<verbs::Rc, Init, SW, RW>,
    pub(crate) request: ConnectRequest,
    pub(crate) queues: Queues<Q>,
    pub(crate) handshakes: Arc<Handshakes<SW, RW, Q>>,
    pub(crate) choices: EndpointBuilder<Q>,
}

impl<SW: 'static, RW: 'static, Q: QueueChoice> Incoming<SW, RW, Q> {
    receiving!(qp);

    /// Protection domain of memory and queue pair. For memory before the handshake, call [`reg_msgs`](Self::reg_msgs) and the
    /// functions beside it: at a limit of the process or the device, half-open connections give way to them.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.queues.pd
    }

    /// `rdma_reg_msgs`—Registers memory for sending and receiving messages. At a limit of the process or the device, half-open
    /// connections of [`Listener::request`] give way.
    ///
    /// Drop is `rdma_dereg_mr`. Enters the kernel. Copies the bytes.
    ///
    /// # Errors
    /// As for [`alloc_buf`](ProtectionDomain::alloc_buf).
    #[doc(alias = "rdma_reg_msgs")]
    #[doc(alias = "rdma_dereg_mr")]
    pub fn reg_msgs(&self, memory: impl Into<Box<[u8]>>) -> Result<Buf> {
        let memory = memory.into();
        if memory.is_empty() {
            return self.queues.pd.register_buf(memory);
        }
        let mut buf = self.registered(|pd| pd.alloc_buf(memory.len()))?;
        buf.set_len(memory.len());
        buf.copy_from_slice(&memory);
        Ok(buf)
    }

    /// `rdma_reg_read`—Allocates memory readable by the peer, given the [token](RemoteRegion::token). At a limit, as for
    /// [`reg_msgs`](Self::reg_msgs).
    ///
    /// # Errors
    /// As for [`alloc_remote`](ProtectionDomain::alloc_remote).
    #[doc(alias = "rdma_reg_read")]
    pub fn reg_read(&self, len: usize) -> Result<RemoteRegion> {
        self.registered(|pd| pd.alloc_remote(len, RemoteAccess::READ))
    }

    /// `rdma_reg_write`—Allocates memory writable by the peer, given the [token](RemoteRegion::token). At a limit, as for
    /// [`reg_msgs`](Self::reg_msgs).
    ///
    /// # Errors
    /// As for [`alloc_remote`](ProtectionDomain::alloc_remote).
    #[doc(alias = "rdma_reg_write")]
    pub fn reg_write(&self, len: usize) -> Result<RemoteRegion> {
        self.registered(|pd| pd.alloc_remote(len, RemoteAccess::WRITE))
    }

    /// Registers memory. At a limit, half-open connections give way: without memory for its messages, a connection is of no use.
    fn registered<T>(&self, register: impl Fn(&ProtectionDomain) -> Result<T>) -> Result<T> {
        loop {
            match register(&self.queues.pd) {
                Err(err) if is_exhausted(&err) && self.handshakes.displace() => {}
                other => return other,
            }
        }
    }

    /// The identifier, with addresses and device.
    pub fn id(&self) -> &CmId<Requested> {
        self.request.id()
    }

    /// Parameters of the peer's request.
    pub fn param(&self) -> &PeerParam {
        self.request.param()
    }

    /// Mutable parameters of the answer.
    pub fn param_mut(&mut self) -> &mut ConnParam {
        &mut self.choices.param
    }

    /// `rdma_accept`—Accepts, and blocks until the connection is established. The handshake is one of the listener's half-open
    /// connections: a newer request may displace it.
    ///
    /// # Errors
    /// - `ConnectionReset`, `ConnectionAborted`, `HostUnreachable`: the peer has disappeared, or was displaced.
    /// - `TimedOut`: the [handshake timeout](EndpointBuilder::handshake_timeout) or the builder's timeout has elapsed.
    /// - As for [`ConnectRequest::accept`].
    #[doc(alias = "rdma_accept")]
    pub fn accept(self) -> Result<Endpoint<SW, RW, Q>> {
        let deadline = Deadline::after(Some(self.choices.accept_timeout()));
        self.begin()?.wait(deadline)
    }

    /// Accepts. The result is the handshake.
    pub(crate) fn begin(self) -> Result<Awaited<SW, RW, Q>> {
        let Self {
            qp,
            request,
            queues,
            handshakes,
            choices,
        } = self;
        let key = handshakes.begin(request, (queues, qp), &choices)?;
        Ok(Awaited::new(handshakes, key))
    }

    /// `rdma_reject`—Rejects the peer; see [`ConnectRequest::reject`].
    ///
    /// # Errors
    /// As for [`ConnectRequest::reject`].
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.request.reject(private_data)
    }
}

impl<SW: 'static, RW: 'static> Incoming<SW, RW, SharedQueues> {
    /// The identity of the queue pair in completions.
    pub fn qp_id(&self) -> QpId {
        self.qp.id()
    }

    /// Sets the program's key of the endpoint, before the peer's first message; see [`Endpoint::set_key`].
    pub fn set_key(&mut self, key: QpKey) {
        self.qp.set_key(key);
    }
}
