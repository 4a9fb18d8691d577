//! Asynchronous listeners.

use std::net::SocketAddr;

use ::tokio::task::coop;
use verbs::{Buf, Result};

use super::{EventChannel, First, Task, channel::Watch, endpoint::Endpoint, first};
use crate::{
    dial,
    endpoint::{self, EndpointBuilder, is_of_peer},
    param::PeerParam,
};

/// An asynchronous [listener](crate::Listener), shared by any number of tasks.
#[derive(Debug)]
pub struct Listener<SW = Buf, RW = Buf> {
    listener: endpoint::Listener<SW, RW>,
    watch: Watch,
    handshakes: Watch,
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

impl<SW: 'static, RW: 'static> Listener<SW, RW> {
    /// Listens on `addr`, with the given configuration.
    ///
    /// # Errors
    /// As for [`EndpointBuilder::listen`].
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn bind_with(choices: &EndpointBuilder, addr: SocketAddr) -> Result<Self> {
        let listener = choices.listen_for(addr)?;
        Ok(Self {
            watch: Watch::new(listener.channel())?,
            handshakes: Watch::new(listener.handshakes())?,
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
    pub async fn request(&self) -> Result<Incoming<SW, RW>> {
        loop {
            let event = self.watch.wait(self.listener.channel()).await?;
            if let Some(request) = self.listener.understand(event)? {
                match self.listener.incoming(request) {
                    Err(err) if is_of_peer(&err) => {}
                    other => return Ok(Incoming { incoming: other? }),
                }
            }
        }
    }

    /// Accepts requests, and waits until a connection is established; see
    /// [`Listener::accept`](crate::Listener::accept).
    ///
    /// Cancel safe: the next call returns a connection established in the meantime.
    ///
    /// # Errors
    /// As for [`Listener::accept`](crate::Listener::accept).
    pub async fn accept(&self) -> Result<Endpoint<SW, RW>> {
        // A pending connection counts against the task's budget, too.
        coop::consume_budget().await;
        loop {
            // Clearing affects only readiness from before both calls; later connections are noticed.
            let ready = first(self.watch.readable(), self.handshakes.readable()).await;
            let (First::A(ready) | First::B(ready)) = ready;
            let mut ready = ready?;
            match self.listener.try_accept()? {
                Some(endpoint) => return Endpoint::new(endpoint),
                None => ready.clear_ready(),
            }
        }
    }
}

/// An incoming [request](crate::Incoming). Drop rejects the peer.
#[derive(Debug)]
#[must_use = "accept the connection, or reject it"]
pub struct Incoming<SW = Buf, RW = Buf> {
    incoming: endpoint::Incoming<SW, RW>,
}

impl<SW, RW> Incoming<SW, RW> {
    /// Parameters of the peer's request.
    pub fn param(&self) -> &PeerParam {
        self.incoming.param()
    }

    /// The request, for registering memory and posting receives.
    pub fn get_mut(&mut self) -> &mut endpoint::Incoming<SW, RW> {
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
    /// Outside of a runtime with I/O enabled.
    pub async fn accept(self) -> Result<Endpoint<SW, RW>> {
        let endpoint::Incoming {
            qp,
            request,
            queues,
            channel,
            choices,
        } = self.incoming;
        let channel = EventChannel::new(channel)?;
        let task = Task {
            channel: &channel,
            timeout: None,
        };
        let (connection, peer) = dial::accept(&task, request, qp, choices.conn_param()).await?;
        Endpoint::from_parts(connection, peer, queues.send_cq, queues.recv_cq, channel)
    }

    /// Rejects the peer; see [`ConnectRequest::reject`](crate::ConnectRequest::reject).
    ///
    /// # Errors
    /// As for [`ConnectRequest::reject`](crate::ConnectRequest::reject).
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.incoming.reject(private_data)
    }
}
