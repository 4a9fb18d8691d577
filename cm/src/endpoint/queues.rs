//! The queues of endpoints: private ones, or the program's.

use std::fmt;

use verbs::{
    CompletionQueue, Context, Error, ProtectionDomain, QueuePair, Result,
    cq::CqHandle,
    qp::{Connected, QpKey, Queued},
    srq::SrqHandle,
};

use super::EndpointBuilder;
use crate::{id::CmId, phases::HasDevice};

/// Where the requests of endpoints complete: in queues of each endpoint ([`PrivateQueues`]), or in the program's
/// ([`SharedQueues`]).
pub trait QueueChoice: choice::Choice {}

/// Two completion queues for each endpoint: the default of an [`EndpointBuilder`].
#[derive(Clone, Copy, Debug, Default)]
pub struct PrivateQueues;

/// Completion queues of the program, and a shared receive queue, if any: see [`EndpointBuilder::cqs`].
#[derive(Clone, Debug)]
pub struct SharedQueues {
    pub(super) send_cq: CqHandle,
    pub(super) recv_cq: CqHandle,
    pub(super) srq: Option<SrqHandle>,
    pub(super) key: Option<QpKey>,
}

impl QueueChoice for PrivateQueues {}
impl QueueChoice for SharedQueues {}

pub(crate) mod choice {
    //! The part of a choice that this crate uses.

    use super::{Context, CqHandle, EndpointBuilder, QpKey, Result, SrqHandle, fmt};

    pub trait Choice: Clone + fmt::Debug + Send + Sync + 'static {
        /// The completion queues of one endpoint.
        type Cqs: fmt::Debug + Send + Sync + 'static;

        /// The completion queues, registered with a runtime if they are private.
        #[cfg(feature = "tokio")]
        type Watched: fmt::Debug + Send + Sync + 'static;

        fn create_cqs(choices: &EndpointBuilder<Self>, ctx: &Context) -> Result<Self::Cqs>;

        #[cfg(feature = "tokio")]
        fn watch(cqs: Self::Cqs) -> Result<Self::Watched>;

        /// The queues of sends and receives.
        fn handles(cqs: &Self::Cqs) -> (&CqHandle, &CqHandle);

        fn srq(&self) -> Option<&SrqHandle> {
            None
        }

        fn key(&self) -> Option<QpKey> {
            None
        }
    }
}

/// The private completion queues of an endpoint.
#[derive(Debug)]
pub struct PrivateCqs {
    pub(crate) send: CompletionQueue,
    pub(crate) recv: CompletionQueue,
}

impl choice::Choice for PrivateQueues {
    type Cqs = PrivateCqs;
    #[cfg(feature = "tokio")]
    type Watched = crate::tokio::WatchedCqs;

    fn create_cqs(choices: &EndpointBuilder<Self>, ctx: &Context) -> Result<PrivateCqs> {
        let cq = |entries: u32| {
            ctx.cq_builder(entries.max(1))
                .comp_vector(choices.comp_vector)
                .waitable()
                .create()
        };
        Ok(PrivateCqs {
            send: cq(choices.max_send_wr)?,
            recv: cq(choices.max_recv_wr)?,
        })
    }

    #[cfg(feature = "tokio")]
    fn watch(cqs: PrivateCqs) -> Result<Self::Watched> {
        crate::tokio::WatchedCqs::new(cqs)
    }

    fn handles(cqs: &PrivateCqs) -> (&CqHandle, &CqHandle) {
        (&cqs.send, &cqs.recv)
    }
}

impl choice::Choice for SharedQueues {
    type Cqs = (CqHandle, CqHandle);
    #[cfg(feature = "tokio")]
    type Watched = ();

    fn create_cqs(choices: &EndpointBuilder<Self>, ctx: &Context) -> Result<Self::Cqs> {
        let queues = &choices.queues;
        let cqs = [&queues.send_cq, &queues.recv_cq];
        if let Some(cq) = cqs.into_iter().find(|cq| cq.context() != ctx) {
            let reason = "the connection is on another device than the completion queues; make the queues on a device \
                          of `cm::devices`, and connect or listen with an address of that device";
            let error = Error::refused("ibv_create_qp", std::io::ErrorKind::InvalidInput, reason);
            return Err(error.detail(format!("{} and {}", ctx.name(), cq.context().name())));
        }
        Ok((queues.send_cq.clone(), queues.recv_cq.clone()))
    }

    #[cfg(feature = "tokio")]
    fn watch(_: Self::Cqs) -> Result<()> {
        Ok(())
    }

    fn handles((send, recv): &Self::Cqs) -> (&CqHandle, &CqHandle) {
        (send, recv)
    }

    fn srq(&self) -> Option<&SrqHandle> {
        self.srq.as_ref()
    }

    fn key(&self) -> Option<QpKey> {
        self.key
    }
}

/// Resources of a queue pair.
#[derive(Debug)]
pub(crate) struct Queues<Q: QueueChoice> {
    pub(crate) pd: ProtectionDomain,
    pub(crate) cqs: Q::Cqs,
}

impl<Q: QueueChoice> Queues<Q> {
    pub(super) fn new(ctx: &Context, choices: &EndpointBuilder<Q>) -> Result<Self> {
        let cqs = Q::create_cqs(choices, ctx)?;
        let pd = choices.domain(ctx)?;
        Ok(Self { pd, cqs })
    }

    pub(super) fn create_qp<T: Queued, SW: 'static, RW: 'static>(
        &self,
        choices: &EndpointBuilder<Q>,
    ) -> Result<QueuePair<T, verbs::Reset, SW, RW>> {
        let (send_cq, recv_cq) = Q::handles(&self.cqs);
        let mut builder = self
            .pd
            .qp_builder::<T>(send_cq, recv_cq)
            .max_send_wr(choices.max_send_wr)
            .max_recv_wr(choices.max_recv_wr)
            .max_send_sge(choices.max_send_sge)
            .max_recv_sge(choices.max_recv_sge)
            .max_inline_data(choices.max_inline_data);
        if let Some(srq) = choices.queues.srq() {
            builder = builder.srq(srq);
        }
        if let Some(key) = choices.queues.key() {
            builder = builder.key(key);
        }
        builder.create_for()
    }

    /// Creates a queue pair on the queues, ready for receives.
    pub(super) fn with_qp<T: Connected, P: HasDevice, SW: 'static, RW: 'static>(
        id: &CmId<P>,
        choices: &EndpointBuilder<Q>,
    ) -> Result<(Self, QueuePair<T, verbs::Init, SW, RW>)> {
        let queues = Self::new(&id.context()?, choices)?;
        let qp = id.init_qp(queues.create_qp(choices)?)?;
        Ok((queues, qp))
    }
}
