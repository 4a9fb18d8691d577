//! The active side before connecting.

use std::net::SocketAddr;

use verbs::{
    Buf, Init, ProtectionDomain, QueuePair, RemoteAccess, RemoteRegion, Result,
    qp::{QpId, QpKey},
    work::Scatter,
};

use super::{
    Queues,
    builder::EndpointBuilder,
    connected::Endpoint,
    queues::{PrivateQueues, QueueChoice, SharedQueues},
    receiving, registration,
};
use crate::{
    channel::EventChannel,
    dial::{self, Deadline, Events, Thread, block},
    id::CmId,
    param::ConnParam,
    phases::RouteResolved,
    port_space::PortSpace,
};

/// A prepared connection on the active side: the route is resolved, and receives can be posted.
///
/// # Examples
/// ```
/// # let _server = doctest::server();
/// use cm::EndpointBuilder;
/// let mut outgoing = EndpointBuilder::new().prepare("10.9.0.1:7471")?;
/// outgoing.post_recv(outgoing.reg_msgs([0; 64])?)?;
/// let mut endpoint = outgoing.connect()?;
/// # Ok::<(), verbs::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "connect it"]
pub struct Outgoing<SW = Buf, RW = Buf, Q: QueueChoice = PrivateQueues> {
    // Dropped before the identifier.
    qp: QueuePair<verbs::Rc, Init, SW, RW>,
    id: CmId<RouteResolved>,
    queues: Queues<Q>,
    channel: EventChannel,
    choices: EndpointBuilder<Q>,
}

impl<SW: 'static, RW: 'static, Q: QueueChoice> Outgoing<SW, RW, Q> {
    pub(super) fn resolve(choices: &EndpointBuilder<Q>, addr: SocketAddr) -> Result<Self> {
        let channel = choices.channel()?;
        let deadline = Deadline::after(choices.timeout);
        let thread = Thread {
            channel: &channel,
            deadline,
        };
        let id = block(Self::resolve_route(&thread, choices, addr))?;
        Self::new(channel, id, choices)
    }

    pub(crate) async fn resolve_route(
        events: &impl Events,
        choices: &EndpointBuilder<Q>,
        addr: SocketAddr,
    ) -> Result<CmId<RouteResolved>> {
        let end = dial::LocalEnd {
            space: PortSpace::Tcp,
            source: choices.source,
            tos: choices.tos,
        };
        dial::resolve(events, end, addr).await
    }

    pub(crate) fn new(
        channel: EventChannel,
        id: CmId<RouteResolved>,
        choices: &EndpointBuilder<Q>,
    ) -> Result<Self> {
        let (queues, qp) = Queues::with_qp(&id, choices)?;
        Ok(Self {
            qp,
            id,
            queues,
            channel,
            choices: choices.clone(),
        })
    }

    #[cfg(feature = "tokio")]
    #[expect(clippy::type_complexity, reason = "everything that it has")]
    pub(crate) fn dismantle(
        self,
    ) -> (
        CmId<RouteResolved>,
        QueuePair<verbs::Rc, Init, SW, RW>,
        Queues<Q>,
        EndpointBuilder<Q>,
        EventChannel,
    ) {
        (self.id, self.qp, self.queues, self.choices, self.channel)
    }

    registration!();
    receiving!(qp);

    /// The identifier, with addresses, device and route.
    pub fn id(&self) -> &CmId<RouteResolved> {
        &self.id
    }

    /// Mutable parameters of the request.
    pub fn param_mut(&mut self) -> &mut ConnParam {
        &mut self.choices.param
    }

    /// `rdma_connect`—Connects, and blocks until the connection is established.
    ///
    /// # Errors
    /// As for [`EndpointBuilder::connect`]. All posted receives are dropped.
    #[doc(alias = "rdma_connect")]
    pub fn connect(self) -> Result<Endpoint<SW, RW, Q>> {
        let Self {
            qp,
            id,
            queues,
            channel,
            choices,
        } = self;
        let thread = Thread {
            channel: &channel,
            deadline: Deadline::after(Some(choices.connect_timeout())),
        };
        let (connection, peer) = block(dial::connect(&thread, id, qp, &choices.conn_param()))?;
        Ok(Endpoint::new(
            connection,
            peer,
            queues,
            channel,
            choices.timeout,
        ))
    }
}

impl<SW: 'static, RW: 'static> Outgoing<SW, RW, SharedQueues> {
    /// The identity of the queue pair in completions.
    pub fn qp_id(&self) -> QpId {
        self.qp.id()
    }

    /// Sets the program's key of the endpoint, before the peer's first message; see [`Endpoint::set_key`].
    pub fn set_key(&mut self, key: QpKey) {
        self.qp.set_key(key);
    }
}
