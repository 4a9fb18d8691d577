//! Configuration of endpoints and listeners.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    time::Duration,
};

use verbs::{Buf, Context, ProtectionDomain, Result};

use super::{
    connected::Endpoint, datagram::DatagramEndpoint, each_addr, incoming::Listener,
    outgoing::Outgoing,
};
use crate::{
    channel::EventChannel,
    half_open::{ACCEPT_TIMEOUT, CONNECT_TIMEOUT},
    param::ConnParam,
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
pub struct EndpointBuilder {
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

    /// Connects, trying each address resolved from `addr`.
    ///
    /// # Errors
    /// - `ConnectionRefused`: no listener at the address, or rejected by the peer;
    ///   [`ConnectFailure::of`](crate::ConnectFailure::of) the error has the private data.
    /// - `HostUnreachable`, `TimedOut`: no answer, or the timeout has elapsed.
    /// - `ENODEV`, `ENETUNREACH`: no route, or a route through a device without RDMA.
    pub fn connect(&self, addr: impl ToSocketAddrs) -> Result<Endpoint> {
        self.connect_for(addr)
    }

    /// Like [`connect`](Self::connect), with payload types chosen by the caller.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub fn connect_for<SW: 'static, RW: 'static>(
        &self,
        addr: impl ToSocketAddrs,
    ) -> Result<Endpoint<SW, RW>> {
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
    pub fn prepare(&self, addr: impl ToSocketAddrs) -> Result<Outgoing<Buf, Buf>> {
        self.prepare_for(addr)
    }

    /// Like [`prepare`](Self::prepare), with payload types chosen by the caller.
    ///
    /// # Errors
    /// As for [`prepare`](Self::prepare).
    pub fn prepare_for<SW: 'static, RW: 'static>(
        &self,
        addr: impl ToSocketAddrs,
    ) -> Result<Outgoing<SW, RW>> {
        each_addr("rdma_create_ep", addr, |addr| Outgoing::resolve(self, addr))
    }

    /// `rdma_create_ep` with `RAI_PASSIVE`, `rdma_listen`—Listens on `addr`. Port 0 selects a free port, and
    /// an unspecified address all devices.
    ///
    /// # Errors
    /// The errors of [`bind`](crate::CmId::bind) and [`listen`](crate::CmId::listen).
    #[doc(alias = "rdma_create_ep")]
    pub fn listen(&self, addr: impl ToSocketAddrs) -> Result<Listener> {
        self.listen_for(addr)
    }

    /// Like [`listen`](Self::listen), with payload types chosen by the caller.
    ///
    /// # Errors
    /// As for [`listen`](Self::listen).
    pub fn listen_for<SW: 'static, RW: 'static>(
        &self,
        addr: impl ToSocketAddrs,
    ) -> Result<Listener<SW, RW>> {
        each_addr("rdma_listen", addr, |addr| Listener::new(self, addr))
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

    /// Protection domain for this device.
    pub(super) fn domain(&self, ctx: &Context) -> Result<ProtectionDomain> {
        match self.domains.iter().find(|pd| pd.context() == ctx) {
            Some(pd) => Ok(pd.clone()),
            None => ctx.alloc_pd(),
        }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn timeout_of_steps(&self) -> Option<Duration> {
        self.timeout
    }

    pub(super) fn channel(&self) -> Result<EventChannel> {
        EventChannel::new()
    }
}
