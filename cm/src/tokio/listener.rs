//! Listening in a task.

use std::net::SocketAddr;

use verbs::{Buf, Result};

use super::{EventChannel, Task, channel::Watch, endpoint::Endpoint};
use crate::{
    dial,
    endpoint::{self, EndpointBuilder, is_of_peer},
    param::PeerParam,
};

/// A [listener](crate::Listener) whose connections can be awaited. Any number of tasks can.
#[derive(Debug)]
pub struct Listener<SW = Buf, RW = Buf> {
    listener: endpoint::Listener<SW, RW>,
    watch: Watch,
}

impl Listener {
    /// Listens at `addr`, with the defaults of [`EndpointBuilder`].
    ///
    /// # Errors
    /// As for [`EndpointBuilder::listen`].
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn bind(addr: SocketAddr) -> Result<Self> {
        Self::with(&EndpointBuilder::new(), addr)
    }
}

impl<SW: 'static, RW: 'static> Listener<SW, RW> {
    /// Listens at `addr`, with choices.
    ///
    /// # Errors
    /// As for [`EndpointBuilder::listen`].
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn with(choices: &EndpointBuilder, addr: SocketAddr) -> Result<Self> {
        let listener = choices.listen_for(addr)?;
        let watch = Watch::new(listener.channel())?;
        Ok(Self { listener, watch })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits for the next request. One that its peer has taken back meanwhile is passed over.
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

    /// Waits for the next request, and accepts it. One whose peer goes away before the connection is
    /// established is passed over.
    ///
    /// Cancel safe: a connection that was being accepted ends, and no other is lost.
    ///
    /// # Errors
    /// As for [`Listener::accept`](crate::Listener::accept).
    pub async fn accept(&self) -> Result<Endpoint<SW, RW>> {
        loop {
            match self.request().await?.accept().await {
                Err(err) if is_of_peer(&err) => {}
                other => return other,
            }
        }
    }
}

/// A [request](crate::Incoming) that can be accepted. Dropping this rejects the peer.
#[derive(Debug)]
#[must_use = "accept the connection, or reject it"]
pub struct Incoming<SW = Buf, RW = Buf> {
    incoming: endpoint::Incoming<SW, RW>,
}

impl<SW, RW> Incoming<SW, RW> {
    /// What the peer has said.
    pub fn param(&self) -> &PeerParam {
        self.incoming.param()
    }

    /// The request, to register memory and to post receives.
    pub fn get_mut(&mut self) -> &mut endpoint::Incoming<SW, RW> {
        &mut self.incoming
    }

    /// Accepts, and waits until the connection is established.
    ///
    /// Cancel safe: the connection ends.
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
