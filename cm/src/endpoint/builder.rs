//! Configuration of endpoints and listeners.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    time::Duration,
};

use verbs::{Buf, Context, ProtectionDomain, Result, cq::CqHandle, qp::QpKey, srq::SrqHandle};

use super::{
    connected::Endpoint,
    datagram::DatagramEndpoint,
    each_addr,
    incoming::Listener,
    outgoing::Outgoing,
    queues::{PrivateQueues, QueueChoice, SharedQueues},
};
use crate::{
    channel::EventChannel,
    half_open::{ACCEPT_TIMEOUT, CONNECT_TIMEOUT},
    param::ConnParam,
    reaper::Reaper,
};

/// Connects to a listener, with the defaults of [`EndpointBuilder`].
///
/// If the peer's first message arrives before a receive is posted, the device retransmits the message. To
/// post receives before connecting, use [`EndpointBuilder::prepare`].
///
/// # Errors
/// As for [`EndpointBuilder::connect`].
///
/// # Examples
/// ```
/// # let _server = doctest::server();
/// let mut endpoint = cm::connect("10.9.0.1:7471")?;
/// let hello = endpoint.reg_msgs(*b"hello")?;
/// endpoint.post_recv(endpoint.reg_msgs([0; 64])?)?;
/// endpoint.post_send(hello)?;
/// println!("sent {:?}", endpoint.send_comp()?.into_work()?);
/// println!("received {:?}", endpoint.recv_comp()?.received()?);
/// # Ok::<(), verbs::Error>(())
/// ```
pub fn connect(addr: impl ToSocketAddrs) -> Result<Endpoint> {
    EndpointBuilder::new().connect(addr)
}

/// Configures and creates an [`Endpoint`] or a [`Listener`].
///
/// # Examples
/// ```
/// # let _server = doctest::server();
/// use std::time::Duration;
/// use cm::{ConnParam, EndpointBuilder};
///
/// let endpoint = EndpointBuilder::new()
///     .max_recv_wr(64)
///     .param(ConnParam::new().private_data(*b"version 1"))
///     .timeout(Duration::from_secs(5));
/// let mut endpoint = endpoint.connect("10.9.0.1:7471")?;
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias = "rdma_create_ep")]
#[derive(Clone, Debug)]
#[must_use = "it makes endpoints"]
pub struct EndpointBuilder<Q = PrivateQueues> {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
    pub(super) comp_vector: u32,
    pub(super) backlog: u32,
    pub(crate) param: ConnParam,
    pub(super) source: Option<SocketAddr>,
    pub(super) tos: Option<u8>,
    pub(super) timeout: Option<Duration>,
    pub(super) handshake_timeout: Option<Duration>,
    pub(super) domains: Vec<ProtectionDomain>,
    pub(super) reaper: Option<Reaper>,
    pub(super) queues: Q,
}

impl Default for EndpointBuilder {
    fn default() -> Self {
        Self {
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
            comp_vector: 0,
            backlog: 128,
            param: ConnParam::new(),
            source: None,
            tos: None,
            timeout: None,
            handshake_timeout: None,
            domains: Vec::new(),
            reaper: None,
            queues: PrivateQueues,
        }
    }
}

impl EndpointBuilder {
    /// Creates the default configuration: 16 sends and 16 receives in flight, each with one buffer and
    /// without inline data; completion vector 0; [`ConnParam::new`]; and no timeout, except of
    /// [handshakes](Self::handshake_timeout).
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the sends of all endpoints complete in `send_cq`, and receives in `recv_cq`: completion queues of the program,
    /// on a device of [`devices`](crate::devices). They may be the same queue. One thread polls for any number of endpoints, and
    /// hands each completion to its endpoint ([`Endpoint::complete`]), found by the program's [key](QpKey) without a hash.
    ///
    /// An endpoint uses [`max_send_wr`](Self::max_send_wr) and [`max_recv_wr`](Self::max_recv_wr) entries of the queues; with a
    /// [shared receive queue](EndpointBuilder::srq), its receives use as many entries as the shared queue has. An endpoint
    /// beyond the entries is refused with `InvalidInput`, and a request for one by the listener.
    ///
    /// # Examples
    /// One thread with one completion queue and one shared receive queue serves all connections:
    /// ```
    /// # let _fabric = doctest::lasting_host();
    /// use cm::EndpointBuilder;
    /// use verbs::{Completed, op, qp::{QpId, QpKey}};
    ///
    /// let device = cm::devices()?.remove(0);
    /// let pd = device.alloc_pd()?;
    /// let mut cq = device.cq_builder(64).waitable().create()?;
    /// let mut srq = pd.create_srq(8, 1)?;
    /// for _ in 0..8 {
    ///     srq.post(pd.alloc_buf(64)?)?;
    /// }
    /// let builder = EndpointBuilder::new().cqs(&cq, &cq).srq(&srq);
    /// let listener = builder.listen("10.9.0.1:7471")?;
    /// # let clients: Vec<_> = (0..3).map(|_| std::thread::spawn(|| -> verbs::Result<()> {
    /// #     let mut client = cm::connect("10.9.0.1:7471")?;
    /// #     client.post_recv(client.reg_msgs([0; 64])?)?;
    /// #     client.post_send(client.reg_msgs(*b"hello")?)?;
    /// #     client.send_comp()?.ok()?;
    /// #     assert_eq!(client.recv_comp()?.received()?, b"hello");
    /// #     client.disconnect()
    /// # })).collect();
    /// let mut endpoints = Vec::new();
    /// for key in 0..3 {
    ///     let mut incoming = listener.request()?;
    ///     incoming.set_key(QpKey(key)); // before the peer's first message
    ///     endpoints.push(incoming.accept()?);
    /// }
    /// let mut answered = 0;
    /// while answered < 3 {
    ///     for wc in cq.wait(None)? {
    ///         let Some(QpKey(key)) = srq.receiver(&wc).and_then(QpId::key) else { continue };
    ///         let endpoint = &mut endpoints[key as usize];
    ///         match srq.complete(wc) {
    ///             Ok(message) => {
    ///                 let answer = endpoint.reg_msgs(message.received()?)?;
    ///                 srq.post(message.into_work()?)?; // for the next message of any client
    ///                 endpoint.post(op::Send::new(answer))?;
    ///             }
    ///             Err(wc) => match endpoint.complete(wc) {
    ///                 Ok(Completed::Send(sent)) => {
    ///                     sent.into_work()?;
    ///                     answered += 1;
    ///                 }
    ///                 other => panic!("{other:?}"),
    ///             },
    ///         }
    ///     }
    /// }
    /// for endpoint in &mut endpoints {
    ///     endpoint.wait_disconnected()?;
    ///     assert!(endpoint.end_cause().is_none(), "the client has disconnected");
    /// }
    /// # clients.into_iter().for_each(|client| client.join().expect("no panic").expect("no error"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cqs(self, send_cq: &CqHandle, recv_cq: &CqHandle) -> EndpointBuilder<SharedQueues> {
        let queues = SharedQueues {
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            srq: None,
            key: None,
        };
        EndpointBuilder {
            max_send_wr: self.max_send_wr,
            max_recv_wr: self.max_recv_wr,
            max_send_sge: self.max_send_sge,
            max_recv_sge: self.max_recv_sge,
            max_inline_data: self.max_inline_data,
            comp_vector: self.comp_vector,
            backlog: self.backlog,
            param: self.param,
            source: self.source,
            tos: self.tos,
            timeout: self.timeout,
            handshake_timeout: self.handshake_timeout,
            domains: self.domains,
            reaper: self.reaper,
            queues,
        }
    }

    /// Creates a datagram queue pair on the device of the local address `addr`, and answers address requests
    /// of peers there. Port 0 selects a free port.
    ///
    /// # Errors
    /// - `InvalidInput`: an unspecified address, which belongs to no device.
    /// - The errors of [`bind`](crate::CmId::bind) and [`listen`](crate::CmId::listen).
    pub fn bind(&self, addr: impl ToSocketAddrs) -> Result<DatagramEndpoint> {
        self.bind_for(addr)
    }

    /// Like [`bind`](Self::bind), with payload types chosen by the caller.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind).
    pub fn bind_for<SW: 'static, RW: 'static>(
        &self,
        addr: impl ToSocketAddrs,
    ) -> Result<DatagramEndpoint<SW, RW>> {
        each_addr("rdma_listen", addr, |addr| {
            DatagramEndpoint::new(self, addr)
        })
    }
}

impl EndpointBuilder<SharedQueues> {
    /// Lets all endpoints use the receives of a shared queue, in place of their own. The peers are notified of it
    /// ([`ConnParam::srq`]). Endpoints are then in the protection domain of the shared queue.
    pub fn srq(mut self, srq: &SrqHandle) -> Self {
        self.queues.srq = Some(srq.clone());
        self
    }

    /// Sets the program's key of each endpoint of this builder; see [`Endpoint::set_key`]. Endpoints of a listener get keys of
    /// their own by [`Incoming::set_key`](crate::Incoming::set_key).
    pub fn key(mut self, key: QpKey) -> Self {
        self.queues.key = Some(key);
        self
    }
}

impl<Q: QueueChoice> EndpointBuilder<Q> {
    /// Sets the maximum number of requests in flight; the send completion queue has the same length.
    pub fn max_send_wr(mut self, requests: u32) -> Self {
        self.max_send_wr = requests;
        self
    }

    /// Sets the maximum number of receives in flight; the receive completion queue has the same length.
    pub fn max_recv_wr(mut self, receives: u32) -> Self {
        self.max_recv_wr = receives;
        self
    }

    /// Sets the maximum number of buffers in a request.
    pub fn max_send_sge(mut self, elements: u32) -> Self {
        self.max_send_sge = elements;
        self
    }

    /// Sets the maximum number of buffers in a receive.
    pub fn max_recv_sge(mut self, elements: u32) -> Self {
        self.max_recv_sge = elements;
        self
    }

    /// Sets the maximum number of bytes sent [inline](verbs::op::Send::inline).
    pub fn max_inline_data(mut self, bytes: u32) -> Self {
        self.max_inline_data = bytes;
        self
    }

    /// Sets the completion vector (interrupt) for completion events.
    pub fn comp_vector(mut self, vector: u32) -> Self {
        self.comp_vector = vector;
        self
    }

    /// Sets the maximum number of pending requests, and of half-open connections, on a listener; the default is 128. One more
    /// half-open connection displaces the oldest of the address with the most of them.
    pub fn backlog(mut self, backlog: u32) -> Self {
        self.backlog = backlog;
        self
    }

    /// Sets the parameters for connecting and accepting.
    pub fn param(mut self, param: ConnParam) -> Self {
        self.param = param;
        self
    }

    /// Sets the local address to connect from.
    pub fn source(mut self, source: SocketAddr) -> Self {
        self.source = Some(source);
        self
    }

    /// Sets the [type of service](crate::CmId::set_tos): the traffic class of the packets. The connecting side chooses for
    /// both sides.
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    pub fn tos(mut self, tos: u8) -> Self {
        self.tos = Some(tos);
        self
    }

    /// Sets the timeout of each blocking call, from start to end: connecting, accepting, waiting for a
    /// request or a completion, disconnecting.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the maximum time of a handshake: from accepting a request to the peer's end of the handshake, by default 10 s, and from
    /// requesting a connection to the peer's answer, by default 120 s. A shorter [timeout](Self::timeout) counts as well.
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = Some(timeout);
        self
    }

    /// Adds a protection domain for endpoints on its device, for sharing memory. May be called for several
    /// devices. Without a domain, each endpoint creates one; the endpoints of a listener share one.
    pub fn pd(mut self, pd: &ProtectionDomain) -> Self {
        self.domains.push(pd.clone());
        self
    }

    /// Lets threads of `reaper` destroy the identifiers of endpoints and of their failed attempts, so that dropping them does not
    /// block a thread that polls for others.
    pub fn reaper(mut self, reaper: &Reaper) -> Self {
        self.reaper = Some(reaper.clone());
        self
    }

    /// Connects, trying each address resolved from `addr`.
    ///
    /// # Errors
    /// - `ConnectionRefused`: no listener at the address, or rejected by the peer;
    ///   [`ConnectFailure::of`](crate::ConnectFailure::of) the error has the private data.
    /// - `HostUnreachable`, `TimedOut`: no answer, or the timeout has elapsed.
    /// - `ENODEV`, `ENETUNREACH`: no route, or a route through a device without RDMA.
    pub fn connect(&self, addr: impl ToSocketAddrs) -> Result<Endpoint<Buf, Buf, Q>> {
        self.connect_for(addr)
    }

    /// Like [`connect`](Self::connect), with payload types chosen by the caller.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub fn connect_for<SW: 'static, RW: 'static>(
        &self,
        addr: impl ToSocketAddrs,
    ) -> Result<Endpoint<SW, RW, Q>> {
        each_addr("rdma_connect", addr, |addr| {
            Outgoing::resolve(self, addr)?.connect()
        })
    }

    /// `rdma_create_ep`—Resolves the device and the route to `addr`, and creates the queue pair, so that the
    /// program can register memory and post receives before connecting.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect), up to the route.
    #[doc(alias = "rdma_create_ep")]
    pub fn prepare(&self, addr: impl ToSocketAddrs) -> Result<Outgoing<Buf, Buf, Q>> {
        self.prepare_for(addr)
    }

    /// Like [`prepare`](Self::prepare), with payload types chosen by the caller.
    ///
    /// # Errors
    /// As for [`prepare`](Self::prepare).
    pub fn prepare_for<SW: 'static, RW: 'static>(
        &self,
        addr: impl ToSocketAddrs,
    ) -> Result<Outgoing<SW, RW, Q>> {
        each_addr("rdma_create_ep", addr, |addr| Outgoing::resolve(self, addr))
    }

    /// `rdma_create_ep` with `RAI_PASSIVE`, `rdma_listen`—Listens on `addr`. Port 0 selects a free port, and
    /// an unspecified address all devices.
    ///
    /// # Errors
    /// The errors of [`bind`](crate::CmId::bind) and [`listen`](crate::CmId::listen).
    #[doc(alias = "rdma_create_ep")]
    pub fn listen(&self, addr: impl ToSocketAddrs) -> Result<Listener<Buf, Buf, Q>> {
        self.listen_for(addr)
    }

    /// Like [`listen`](Self::listen), with payload types chosen by the caller.
    ///
    /// # Errors
    /// As for [`listen`](Self::listen).
    pub fn listen_for<SW: 'static, RW: 'static>(
        &self,
        addr: impl ToSocketAddrs,
    ) -> Result<Listener<SW, RW, Q>> {
        each_addr("rdma_listen", addr, |addr| Listener::new(self, addr))
    }

    /// Maximum time of a handshake on the passive side.
    pub(crate) fn accept_timeout(&self) -> Duration {
        let timeout = self.handshake_timeout.unwrap_or(ACCEPT_TIMEOUT);
        self.timeout.map_or(timeout, |of_call| of_call.min(timeout))
    }

    /// Maximum time of a handshake on the active side.
    pub(crate) fn connect_timeout(&self) -> Duration {
        let timeout = self.handshake_timeout.unwrap_or(CONNECT_TIMEOUT);
        self.timeout.map_or(timeout, |of_call| of_call.min(timeout))
    }

    /// Protection domain chosen for this device, if any: that of the shared receive queue, or an added one.
    pub(super) fn chosen_domain(&self, ctx: &Context) -> Option<&ProtectionDomain> {
        let of_srq = self.queues.srq().map(SrqHandle::pd);
        let mut domains = of_srq.into_iter().chain(&self.domains);
        domains.find(|pd| pd.context() == ctx)
    }

    /// Protection domain for this device.
    pub(super) fn domain(&self, ctx: &Context) -> Result<ProtectionDomain> {
        match self.chosen_domain(ctx) {
            Some(pd) => Ok(pd.clone()),
            None => ctx.alloc_pd(),
        }
    }

    /// Parameters of a connection, with the use of a shared receive queue.
    pub(crate) fn conn_param(&self) -> ConnParam {
        match self.queues.srq() {
            Some(_) => self.param.clone().srq(true),
            None => self.param.clone(),
        }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn timeout_of_steps(&self) -> Option<Duration> {
        self.timeout
    }

    /// A channel whose identifiers the reaper destroys, if any.
    pub(crate) fn channel(&self) -> Result<EventChannel> {
        EventChannel::with_reaper(self.reaper.as_ref())
    }
}
