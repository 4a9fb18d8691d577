//! Asynchronous listeners.

use std::{
    future::poll_fn,
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use ::tokio::task::coop;
use verbs::{Buf, Result};

use super::{First, at_most, channel::Watch, endpoint::Endpoint, first, in_time};
use crate::{
    endpoint::{self, EndpointBuilder, Handshakes, PrivateQueues, QueueChoice, Refusals},
    param::PeerParam,
};

/// An asynchronous [listener](crate::Listener), shared by any number of tasks.
#[derive(Debug)]
pub struct Listener<SW = Buf, RW = Buf, Q: QueueChoice = PrivateQueues> {
    listener: endpoint::Listener<SW, RW, Q>,
    watch: Watch,
    handshakes: Watch,
    /// Of the handshakes of [`Incoming::accept`], registered for the first request.
    awaited: OnceLock<Arc<Watch>>,
}

impl Listener {
    /// Listens on `addr`, with the defaults of [`EndpointBuilder`].
    ///
    /// # Errors
    /// As for [`EndpointBuilder::listen`].
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn bind(addr: SocketAddr) -> Result<Self> {
        Self::bind_with(&EndpointBuilder::new(), addr)
    }
}

impl<SW: 'static, RW: 'static, Q: QueueChoice> Listener<SW, RW, Q> {
    /// Listens on `addr`, with the given configuration.
    ///
    /// # Errors
    /// As for [`EndpointBuilder::listen`].
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn bind_with(choices: &EndpointBuilder<Q>, addr: SocketAddr) -> Result<Self> {
        let listener = choices.listen_for(addr)?;
        Ok(Self {
            watch: Watch::new(listener.channel())?,
            handshakes: Watch::new(listener.handshakes())?,
            awaited: OnceLock::new(),
            listener,
        })
    }

    /// Local address of the listener.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits for the next request. Requests withdrawn by the peer in the meantime are skipped.
    ///
    /// Cancel safe: no request is lost.
    ///
    /// # Errors
    /// As for [`Listener::request`](crate::Listener::request).
    pub async fn request(&self) -> Result<Incoming<SW, RW, Q>> {
        loop {
            let event = self.watch.wait(self.listener.channel()).await?;
            if let Some(request) = self.listener.understand(event)?
                && let Some(incoming) = self.listener.incoming(request)?
            {
                let watch = self.awaited(&incoming.handshakes)?;
                return Ok(Incoming { incoming, watch });
            }
        }
    }

    fn awaited(&self, handshakes: &Handshakes<SW, RW, Q>) -> Result<Arc<Watch>> {
        if let Some(awaited) = self.awaited.get() {
            return Ok(Arc::clone(awaited));
        }
        let created = Arc::new(Watch::new(handshakes.channel())?);
        Ok(Arc::clone(self.awaited.get_or_init(|| created)))
    }

    /// Counts of requests that did not become connections.
    pub fn refusals(&self) -> Refusals {
        self.listener.refusals()
    }

    /// Accepts requests, and waits until a connection is established; see
    /// [`Listener::accept`](crate::Listener::accept).
    ///
    /// Cancel safe: the next call returns a connection established in the meantime.
    ///
    /// # Errors
    /// As for [`Listener::accept`](crate::Listener::accept).
    ///
    /// # Panics
    /// Outside of a runtime with time enabled, if a handshake is incomplete.
    pub async fn accept(&self) -> Result<Endpoint<SW, RW, Q>> {
        // A pending connection counts against the task's budget, too.
        coop::consume_budget().await;
        loop {
            // Clearing affects only readiness from before both calls; later connections are noticed.
            let ready = first(self.watch.readable(), self.handshakes.readable());
            let expiry = self.listener.next_expiry();
            let mut ready = match at_most(expiry, ready).await {
                Some(First::A(ready) | First::B(ready)) => Some(ready?),
                None => None,
            };
            match (self.listener.try_accept()?, &mut ready) {
                (Some(endpoint), _) => return Endpoint::new(endpoint),
                (None, Some(ready)) => ready.clear_ready(),
                (None, None) => {}
            }
        }
    }
}

/// An incoming [request](crate::Incoming). Drop rejects the peer.
#[derive(Debug)]
#[must_use = "accept the connection, or reject it"]
pub struct Incoming<SW = Buf, RW = Buf, Q: QueueChoice = PrivateQueues> {
    incoming: endpoint::Incoming<SW, RW, Q>,
    watch: Arc<Watch>,
}

impl<SW: 'static, RW: 'static, Q: QueueChoice> Incoming<SW, RW, Q> {
    /// Parameters of the peer's request.
    pub fn param(&self) -> &PeerParam {
        self.incoming.param()
    }

    /// The request, for registering memory and posting receives.
    pub fn get_mut(&mut self) -> &mut endpoint::Incoming<SW, RW, Q> {
        &mut self.incoming
    }

    /// Accepts, and waits until the connection is established.
    ///
    /// Cancel safe: a dropped future ends the connection.
    ///
    /// # Errors
    /// As for [`Incoming::accept`](crate::Incoming::accept).
    ///
    /// # Panics
    /// Outside of a runtime with I/O and time enabled.
    pub async fn accept(self) -> Result<Endpoint<SW, RW, Q>> {
        let Self { incoming, watch } = self;
        let timeout = incoming.choices.accept_timeout();
        let handshake = incoming.begin()?;
        let established = async {
            loop {
                handshake.process()?;
                let outcome = poll_fn(|task| handshake.poll(task));
                match first(outcome, watch.readable()).await {
                    First::A(outcome) => return outcome,
                    First::B(ready) => {
                        let mut ready = ready?;
                        handshake.process()?;
                        ready.clear_ready();
                    }
                }
            }
        };
        Endpoint::new(in_time("rdma_accept", timeout, established).await?)
    }

    /// Rejects the peer; see [`ConnectRequest::reject`](crate::ConnectRequest::reject).
    ///
    /// # Errors
    /// As for [`ConnectRequest::reject`](crate::ConnectRequest::reject).
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.incoming.reject(private_data)
    }
}
