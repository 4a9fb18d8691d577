//! The passive side: listeners and incoming requests.

use std::{
    fmt,
    marker::PhantomData,
    net::{SocketAddr, ToSocketAddrs},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use verbs::{
    Buf, Error, Init, ProtectionDomain, QueuePair, RemoteAccess, RemoteRegion, Result,
    error::Refused, fd::wait_any_readable, work::Scatter,
};

use super::{
    Queues, builder::EndpointBuilder, connected::Endpoint, handshakes::Handshakes, receiving,
    registration,
};
use crate::{
    accept::ConnectRequest,
    channel::EventChannel,
    dial::{self, Deadline, Thread, block},
    event::{ConnectFailure, Event},
    id::CmId,
    param::{ConnParam, PeerParam},
    phases::{Listening, Requested},
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
pub struct Listener<SW = Buf, RW = Buf> {
    id: CmId<Listening>,
    channel: EventChannel,
    handshakes: Handshakes<SW, RW>,
    choices: Mutex<EndpointBuilder>,
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

impl<SW: 'static, RW: 'static> Listener<SW, RW> {
    pub(super) fn new(choices: &EndpointBuilder, addr: SocketAddr) -> Result<Self> {
        let channel = choices.channel()?;
        let mut id = channel.create_id()?;
        id.bind(addr)?;
        Ok(Self {
            id: id.listen(choices.backlog)?,
            channel,
            handshakes: Handshakes::new()?,
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

    /// `rdma_get_request`—Blocks until the next request. The request has a queue pair, so that receives can be
    /// posted before accepting. Skips requests withdrawn by their peers.
    ///
    /// # Errors
    /// - `TimedOut`: no request within the builder's timeout.
    /// - `NetworkDown`: the device is being removed.
    /// - Any error of creating the queue pair. The peer is rejected then.
    #[doc(alias = "rdma_get_request")]
    pub fn request(&self) -> Result<Incoming<SW, RW>> {
        let deadline = self.deadline();
        let incoming = self.next_incoming(deadline)?;
        incoming.ok_or_else(|| deadline.missed("rdma_get_request"))
    }

    /// `rdma_get_request`—Blocks until the next request, at most for `timeout`; then the result is `None`.
    ///
    /// # Errors
    /// As for [`request`](Self::request).
    #[doc(alias = "rdma_get_request")]
    pub fn request_timeout(&self, timeout: Duration) -> Result<Option<Incoming<SW, RW>>> {
        self.next_incoming(Deadline::after(Some(timeout)))
    }

    fn next_incoming(&self, deadline: Deadline) -> Result<Option<Incoming<SW, RW>>> {
        while let Some(request) = self.next_request(deadline)? {
            match self.incoming(request) {
                Err(err) if is_of_peer(&err) => {}
                other => return other.map(Some),
            }
        }
        Ok(None)
    }

    /// Accepts requests, and blocks until a connection is established. Skips peers that disappear during the
    /// handshake. A peer that does not complete its handshake delays no other: at most
    /// [`backlog`](EndpointBuilder::backlog) connections are half-open, and stay so for the next call.
    ///
    /// If the peer's first message arrives before a receive is posted, the device retransmits the message. To
    /// post receives before accepting, use [`request`](Self::request).
    ///
    /// # Errors
    /// As for [`request`](Self::request), and the local errors of [`Incoming::accept`].
    pub fn accept(&self) -> Result<Endpoint<SW, RW>> {
        const CALL: &str = "rdma_accept";
        let deadline = self.deadline();
        loop {
            if let Some(endpoint) = self.try_accept()? {
                return Ok(endpoint);
            }
            let channels = [&self.channel, self.handshakes.channel()];
            let fds = channels.map(|channel| channel.handle().event_fd());
            if !wait_any_readable(CALL, fds, deadline.left())? {
                // Once more: both may have come at the same time.
                return self.try_accept()?.ok_or_else(|| deadline.missed(CALL));
            }
        }
    }

    /// Takes the next connection, if there is one, and begins to accept every request that has come before it. Never
    /// blocks.
    pub(crate) fn try_accept(&self) -> Result<Option<Endpoint<SW, RW>>> {
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
            let choices = self.choices_for(&request)?;
            match self.handshakes.begin(request, &choices) {
                Err(err) if is_of_peer(&err) => {}
                other => other?,
            }
        }
    }

    /// Iterator over all connections, without end.
    pub fn incoming_connections(&self) -> impl Iterator<Item = Result<Endpoint<SW, RW>>> {
        std::iter::repeat_with(|| self.accept())
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.choices().timeout)
    }

    fn choices(&self) -> std::sync::MutexGuard<'_, EndpointBuilder> {
        self.choices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_request(&self, deadline: Deadline) -> Result<Option<ConnectRequest>> {
        loop {
            let event = match deadline.left() {
                None => Some(self.channel.wait()?),
                Some(left) => self.channel.wait_timeout(left)?,
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

    /// Extracts the request from an event, if any.
    pub(crate) fn understand(&self, event: Event) -> Result<Option<ConnectRequest>> {
        match event {
            Event::ConnectRequest(request) => Ok(Some(request)),
            Event::DeviceRemoval(key) if key == self.id.key() => {
                Err(ConnectFailure::DeviceRemoved.into_error("rdma_get_request"))
            }
            _ => Ok(None),
        }
    }

    /// The choices for a connection on the device of a request, with the domain that those of the listener share.
    fn choices_for(&self, request: &ConnectRequest) -> Result<EndpointBuilder> {
        let mut choices = self.choices();
        let ctx = request.id().context()?;
        if !choices.domains.iter().any(|pd| *pd.context() == ctx) {
            choices.domains.push(ctx.alloc_pd()?);
        }
        Ok(choices.clone())
    }

    /// Gives a request a channel and a queue pair of its own.
    pub(crate) fn incoming(&self, mut request: ConnectRequest) -> Result<Incoming<SW, RW>> {
        let choices = self.choices_for(&request)?;
        let channel = choices.channel()?;
        request.migrate(&channel)?;
        let (queues, qp) = Queues::with_qp(request.id(), &choices)?;
        Ok(Incoming {
            qp,
            request,
            queues,
            channel,
            choices,
        })
    }
}

impl<SW, RW> fmt::Debug for Listener<SW, RW> {
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
pub struct Incoming<SW = Buf, RW = Buf> {
    // Dropped before the identifier.
    pub(crate) qp: QueuePair<verbs::Rc, Init, SW, RW>,
    pub(crate) request: ConnectRequest,
    pub(crate) queues: Queues,
    pub(crate) channel: EventChannel,
    pub(crate) choices: EndpointBuilder,
}

impl<SW, RW> Incoming<SW, RW> {
    registration!();
    receiving!(qp);

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

    /// `rdma_accept`—Accepts, and blocks until the connection is established.
    ///
    /// # Errors
    /// - `ConnectionReset`, `ConnectionAborted`, `HostUnreachable`: the peer has disappeared.
    /// - `TimedOut`: the builder's timeout has elapsed.
    /// - As for [`ConnectRequest::accept`].
    #[doc(alias = "rdma_accept")]
    pub fn accept(self) -> Result<Endpoint<SW, RW>> {
        let deadline = Deadline::after(self.choices.timeout);
        let Self {
            qp,
            request,
            queues,
            channel,
            choices,
        } = self;
        let thread = Thread {
            channel: &channel,
            deadline,
        };
        let (connection, peer) = block(dial::accept(&thread, request, qp, &choices.param))?;
        Ok(Endpoint::new(
            connection,
            peer,
            queues,
            channel,
            choices.timeout,
        ))
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
