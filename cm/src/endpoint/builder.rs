//! The choices that an endpoint is made with.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    time::Duration,
};

use verbs::{Buf, Context, ProtectionDomain, Result};

use super::{
    connected::Endpoint, datagram::DatagramEndpoint, each_addr, incoming::Listener,
    outgoing::Outgoing,
};
use crate::{channel::EventChannel, param::ConnParam};

/// Connects to a listener, with the defaults of [`EndpointBuilder`].
///
/// The peer's first message may arrive before a receive is posted, and is sent again then. To post
/// some first, use [`EndpointBuilder::prepare`].
///
/// # Errors
/// As for [`EndpointBuilder::connect`].
///
/// # Examples
/// ```no_run
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

/// Makes an [`Endpoint`], or a [`Listener`] that makes them.
///
/// # Examples
/// ```no_run
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
    pub(super) param: ConnParam,
    pub(super) source: Option<SocketAddr>,
    pub(super) timeout: Option<Duration>,
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
            timeout: None,
            domains: Vec::new(),
        }
    }
}

impl EndpointBuilder {
    /// The defaults: 16 sends and 16 receives in flight, each of one buffer, none of them inline;
    /// completion vector 0; [`ConnParam::new`]; and no deadline.
    pub fn new() -> Self {
        Self::default()
    }

    /// The most requests in flight; the completion queue of the sends is as long.
    pub fn max_send_wr(mut self, requests: u32) -> Self {
        self.max_send_wr = requests;
        self
    }

    /// The most receives in flight; the completion queue of the receives is as long.
    pub fn max_recv_wr(mut self, receives: u32) -> Self {
        self.max_recv_wr = receives;
        self
    }

    /// The most buffers of one request.
    pub fn max_send_sge(mut self, elements: u32) -> Self {
        self.max_send_sge = elements;
        self
    }

    /// The most buffers of one receive.
    pub fn max_recv_sge(mut self, elements: u32) -> Self {
        self.max_recv_sge = elements;
        self
    }

    /// The most bytes that can be sent [inline](verbs::op::Send::inline).
    pub fn max_inline_data(mut self, bytes: u32) -> Self {
        self.max_inline_data = bytes;
        self
    }

    /// Which of the device's completion vectors (interrupts) signals completions.
    pub fn comp_vector(mut self, vector: u32) -> Self {
        self.comp_vector = vector;
        self
    }

    /// How many requests can wait for a listener; 128 if not set.
    pub fn backlog(mut self, backlog: u32) -> Self {
        self.backlog = backlog;
        self
    }

    /// What is asked for when connecting or accepting.
    pub fn param(mut self, param: ConnParam) -> Self {
        self.param = param;
        self
    }

    /// The local address to connect from.
    pub fn source(mut self, source: SocketAddr) -> Self {
        self.source = Some(source);
        self
    }

    /// How long each call that waits may take, from its beginning to its end: connecting, accepting,
    /// waiting for a request or a completion, disconnecting.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// A domain for endpoints on its device, so that they can use the same memory. May be called
    /// for several devices. Without one, each endpoint has a domain of its own; those of a listener
    /// share one.
    pub fn pd(mut self, pd: &ProtectionDomain) -> Self {
        self.domains.push(pd.clone());
        self
    }

    /// Connects, trying each of the addresses that `addr` stands for.
    ///
    /// # Errors
    /// - `ConnectionRefused`: nobody listens there, or the peer has rejected:
    ///   [`ConnectFailure::of`](crate::ConnectFailure::of) the error says what it said.
    /// - `HostUnreachable`, `TimedOut`: no answer; or not done within the timeout.
    /// - `ENODEV`, `ENETUNREACH`: the way there is through no RDMA device, or there is none.
    pub fn connect(&self, addr: impl ToSocketAddrs) -> Result<Endpoint> {
        self.connect_for(addr)
    }

    /// As [`connect`](Self::connect), for work of the caller's own types.
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

    /// `rdma_create_ep`—Finds the device and the way to `addr`, and makes the queue pair, so that
    /// memory can be registered and receives be posted before the connection is made.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect), as far as it comes.
    #[doc(alias = "rdma_create_ep")]
    pub fn prepare(&self, addr: impl ToSocketAddrs) -> Result<Outgoing<Buf, Buf>> {
        self.prepare_for(addr)
    }

    /// As [`prepare`](Self::prepare), for work of the caller's own types.
    ///
    /// # Errors
    /// As for [`prepare`](Self::prepare).
    pub fn prepare_for<SW: 'static, RW: 'static>(
        &self,
        addr: impl ToSocketAddrs,
    ) -> Result<Outgoing<SW, RW>> {
        each_addr("rdma_create_ep", addr, |addr| Outgoing::resolve(self, addr))
    }

    /// `rdma_create_ep` with `RAI_PASSIVE`, `rdma_listen`—Listens at `addr`. Port 0 takes a free
    /// one, and an unspecified address every device.
    ///
    /// # Errors
    /// Those of [`bind`](crate::CmId::bind) and [`listen`](crate::CmId::listen).
    #[doc(alias = "rdma_create_ep")]
    pub fn listen(&self, addr: impl ToSocketAddrs) -> Result<Listener> {
        self.listen_for(addr)
    }

    /// As [`listen`](Self::listen), for work of the caller's own types.
    ///
    /// # Errors
    /// As for [`listen`](Self::listen).
    pub fn listen_for<SW: 'static, RW: 'static>(
        &self,
        addr: impl ToSocketAddrs,
    ) -> Result<Listener<SW, RW>> {
        each_addr("rdma_listen", addr, |addr| Listener::new(self, addr))
    }

    /// Makes a queue pair for datagrams on the device of the local address `addr`, and answers peers
    /// that ask there where to send them. Port 0 takes a free one.
    ///
    /// # Errors
    /// - `InvalidInput`: an unspecified address, which is of no device.
    /// - Those of [`bind`](crate::CmId::bind) and [`listen`](crate::CmId::listen).
    pub fn datagrams(&self, addr: impl ToSocketAddrs) -> Result<DatagramEndpoint> {
        self.datagrams_for(addr)
    }

    /// As [`datagrams`](Self::datagrams), for work of the caller's own types.
    ///
    /// # Errors
    /// As for [`datagrams`](Self::datagrams).
    pub fn datagrams_for<SW: 'static, RW: 'static>(
        &self,
        addr: impl ToSocketAddrs,
    ) -> Result<DatagramEndpoint<SW, RW>> {
        each_addr("rdma_listen", addr, |addr| {
            DatagramEndpoint::new(self, addr)
        })
    }

    /// A domain on this device.
    pub(super) fn domain(&self, ctx: &Context) -> Result<ProtectionDomain> {
        match self.domains.iter().find(|pd| pd.context() == ctx) {
            Some(pd) => Ok(pd.clone()),
            None => ctx.alloc_pd(),
        }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn conn_param(&self) -> &ConnParam {
        &self.param
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn timeout_of_steps(&self) -> Option<Duration> {
        self.timeout
    }

    pub(super) fn channel(&self) -> Result<EventChannel> {
        EventChannel::new()
    }
}
