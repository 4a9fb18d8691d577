//! One reliable connection to a peer: queue pair, completion queue and connection manager
//! identifier.

use std::{sync::Arc, time::Duration};

use cm::{CmId, ConnParam, Connection, EventChannel, Key, phases::HasDevice};
use verbs::{
    CompletionQueue, Error, Init, QueuePair, RemoteRegion, Rtr, Rts,
    cq::{CqKey, Notify},
    mr::PoolBuf,
    qp::{Attributes, RnrTimer},
    work::With,
};

use crate::{
    device::Device,
    engine::Reaper,
    outbound::Payload,
    proto::{
        connection::{Completion, Tag},
        link::Attempt,
    },
    slots::FRAME_SIZE,
    trace::ConnectionSpan,
};

/// Work of a send queue entry: the slot of a frame, or the local memory of an RDMA or atomic
/// operation.
pub(crate) type SendWork = With<(Option<PoolBuf>, Vec<RemoteRegion>), Posted>;
/// Work of a receive queue entry: one slot.
pub(crate) type RecvWork = PoolBuf;

pub(crate) type Pair<S> = QueuePair<verbs::Rc, S, SendWork, RecvWork>;

/// Context of a send queue entry.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) tag: Tag,
    /// The message of the slot, and the offset of the frame in the message.
    pub(crate) message: Option<(Payload, u32)>,
    /// Set on every request of an RDMA operation but the last.
    pub(crate) partial: bool,
}

impl Posted {
    /// Context of a request without a message: acknowledgement, map, probe or operation.
    pub(crate) fn alone(tag: Tag) -> Self {
        Self {
            tag,
            message: None,
            partial: false,
        }
    }
}

impl Posted {
    /// Returns the slot to its message. Returns the tag, and whether the request was the last of
    /// its operation.
    pub(crate) fn give_back(work: SendWork) -> (Tag, bool) {
        let With {
            work: (slot, _),
            context:
                Self {
                    tag,
                    message,
                    partial,
                },
        } = work;
        if let Some(((mut message, at), slot)) = message.zip(slot) {
            // A payload with a single owner is finished; its slot goes back to the pool.
            if Arc::get_mut(&mut message).is_none() {
                message.give_back(at, slot);
            }
        }
        (tag, !partial)
    }
}

/// Maximum number of completions per `ibv_poll_cq` call.
pub(crate) const POLL_BATCH: usize = 64;

/// Send queue entries kept free for one acknowledgement and one probe.
pub(crate) const RESERVED_SENDS: u32 = 2;

/// RNR NAK timer, code 10: the sender retries 320 µs after a receiver-not-ready NAK. The value
/// suggested by the connection manager is 655 ms.
const RNR_TIMER: u8 = 10;

/// How long to wait for the RTU after the first data of an accepted connection.
///
/// After the timeout, `rdma_notify` makes the connection manager do without the RTU. The delay
/// is long on purpose: if the connection ends before Linux 6.1 has processed the notification, the
/// kernel retransmits its REP for more than a minute, and `rdma_destroy_id` blocks for as long.
const RTU_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a closing connection waits for its completions before the queue pair is destroyed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// One connection attempt and the resulting connection.
#[derive(Debug)]
pub(crate) struct IbConnection {
    pub(crate) attempt: Attempt,
    /// The identifier, once created.
    pub(crate) key: Option<Key>,
    pub(crate) span: ConnectionSpan,
    pub(crate) stage: Stage,
    /// Time at which the connection began to close.
    pub(crate) closing: Option<Duration>,
    /// The disconnect of a closing connection was requested.
    pub(crate) is_disconnected: bool,
    /// Failed `ibv_destroy_qp` attempts.
    pub(crate) destroy_attempts: u32,
    /// The armed notification, `None` after an event.
    pub(crate) armed: Option<Armed>,
    /// Tag and first error of a partially failed RDMA operation.
    pub(crate) broken: Option<(Tag, Completion)>,
    /// Receive buffers to repost. Reposting in batches is cheaper than one doorbell per message.
    pub(crate) repost_queue: Vec<RecvWork>,
    /// Key of the completion queue.
    pub(crate) queue: Option<usize>,
    /// Polling the completion queue has failed; the queue is not polled again.
    pub(crate) cq_failed: bool,
    rtu: Rtu,
}

/// State of the peer's RTU (ready to use), the last message of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rtu {
    /// No data received yet.
    NoData,
    /// Data arrived at this time, without an RTU.
    Awaited(Duration),
    /// The wait has timed out, and `rdma_notify` was called.
    Lost,
}

/// Notifications requested from the completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Armed {
    /// Solicited receives (last frames and acknowledgements) and errors.
    Solicited,
    /// Every completion.
    All,
}

/// Progress of a connection attempt.
#[derive(Debug)]
pub(crate) enum Stage {
    /// The engine thread makes calls into the kernel, without the lock, with the resources.
    Busy,
    /// Address or route resolution is in progress.
    Resolving,
    /// The REQ is sent, the peer has not replied.
    Asked(Box<QpResources<Pair<Init>>>),
    /// The peer's REQ is accepted, the RTU is outstanding.
    Accepted(Box<QpResources<Pair<Rts>>>),
    /// Both sides are ready.
    Up(Box<QpResources<Connection<SendWork, RecvWork>>>),
    /// All resources are destroyed.
    Gone,
}

/// A queue pair with its completion queue and device.
#[derive(Debug)]
pub(crate) struct QpResources<Q> {
    pub(crate) qp: Q,
    pub(crate) cq: CompletionQueue,
    pub(crate) device: Arc<Device>,
}

impl<Q> QpResources<Q> {
    /// Converts the queue pair, keeping the other resources.
    pub(crate) fn map<R>(
        self,
        next: impl FnOnce(Q) -> verbs::Result<R>,
    ) -> verbs::Result<Box<QpResources<R>>> {
        let Self { qp, cq, device } = self;
        Ok(Box::new(QpResources {
            qp: next(qp)?,
            cq,
            device,
        }))
    }
}

impl QpResources<Pair<Init>> {
    /// Creates a queue pair for `id` with a full receive queue.
    pub(crate) fn new<P: HasDevice>(
        id: &CmId<P>,
        device: &Arc<Device>,
        name: usize,
    ) -> verbs::Result<Self> {
        let (sends, receives) = (device.sends, device.receives);
        let cq = device
            .pd
            .context()
            .cq_builder(sends + receives)
            .channel(&device.channel, CqKey(name))
            .batch(POLL_BATCH)
            .create()?;
        let qp = device
            .pd
            .qp_builder::<verbs::Rc>(&cq, &cq)
            .max_send_wr(sends)
            .max_recv_wr(receives)
            .max_send_sge(device.elements)
            .max_recv_sge(1)
            .create_for()?;
        let mut qp = id.init_qp(qp).map_err(Error::from)?;
        for _ in 0..receives {
            let slot = device.slot(FRAME_SIZE)?;
            qp.post_recv(slot).map_err(Error::from)?;
        }
        Ok(Self {
            qp,
            cq,
            device: Arc::clone(device),
        })
    }
}

/// Moves a queue pair from INIT to RTS with the attributes negotiated by `id`.
pub(crate) fn bring_up<P: HasDevice>(id: &CmId<P>, mut qp: Pair<Init>) -> verbs::Result<Pair<Rts>> {
    // The port may have become known after the transition to INIT.
    qp.modify(&id.attributes()?)?;
    let mut to_rtr: Attributes<verbs::Rc, Rtr> = id.attributes()?;
    if !qp.pd().context().is_iwarp() {
        to_rtr = to_rtr.min_rnr_timer(RnrTimer::new(RNR_TIMER)?);
    }
    let qp = qp.to_rtr(&to_rtr)?;
    Ok(qp.to_rts(&id.attributes()?)?)
}

/// Connection parameters for `rdma_connect` and `rdma_accept`: unlimited RNR retries.
pub(crate) fn conn_param(data: Vec<u8>, retries: u8) -> ConnParam {
    ConnParam::new()
        .private_data(data)
        .retry_count(retries)
        .rnr_retry_count(7)
}

impl Stage {
    /// Queue pair, completion queue and device of a connection that can carry data.
    pub(crate) fn queues(
        &mut self,
    ) -> Option<(&mut Pair<Rts>, &mut CompletionQueue, &Arc<Device>)> {
        match self {
            Self::Accepted(resources) => {
                let QpResources { qp, cq, device } = &mut **resources;
                Some((qp, cq, device))
            }
            Self::Up(resources) => {
                let QpResources { qp, cq, device } = &mut **resources;
                Some((qp.qp_mut(), cq, device))
            }
            Self::Busy | Self::Resolving | Self::Asked(_) | Self::Gone => None,
        }
    }

    /// Ends the traffic, so that every request completes. Enters the kernel. An identifier with an
    /// outstanding event is canceled.
    pub(crate) fn disconnect(
        self,
        reaper: &mut Reaper,
        channel: &Arc<EventChannel>,
        key: Option<Key>,
    ) -> Self {
        let ended = match self {
            Self::Up(mut resources) => {
                // Fails if the peer has disconnected first.
                drop(resources.qp.disconnect());
                return Self::Up(resources);
            }
            Self::Accepted(mut resources) => {
                drop(resources.qp.to_error());
                Self::Accepted(resources)
            }
            Self::Resolving | Self::Asked(_) => Self::Gone,
            Self::Busy | Self::Gone => return self,
        };
        if let Some(key) = key {
            reaper.cancel(channel, key);
        }
        ended
    }

    /// Destroys the queue pair, and returns its send work. Enters the kernel. The identifier is
    /// destroyed by a thread of the reaper, since `rdma_destroy_id` can block.
    ///
    /// # Errors
    /// `ibv_destroy_qp` fails. The stage is returned.
    pub(crate) fn destroy(self, reaper: &mut Reaper) -> Result<Vec<SendWork>, (Self, Error)> {
        let (resources, id) = match self {
            Self::Accepted(resources) => (*resources, None),
            Self::Up(resources) => {
                let QpResources { qp, cq, device } = *resources;
                let (qp, id) = qp.into_parts();
                (QpResources { qp, cq, device }, Some(id))
            }
            Self::Busy | Self::Resolving | Self::Asked(_) | Self::Gone => return Ok(Vec::new()),
        };
        let QpResources { qp, cq, device } = resources;
        let destroyed = qp.destroy();
        if let Some(id) = id {
            reaper.destroy(id);
        }
        match destroyed {
            Ok(leftover) => Ok(leftover.send),
            Err(refused) => {
                let qp = refused.value;
                let stage = Self::Accepted(Box::new(QpResources { qp, cq, device }));
                Err((stage, refused.error))
            }
        }
    }
}

impl IbConnection {
    /// An attempt, while the engine thread makes its first calls into the kernel.
    pub(crate) fn new(attempt: Attempt, key: Option<Key>, span: ConnectionSpan) -> Self {
        Self {
            attempt,
            key,
            span,
            stage: Stage::Busy,
            closing: None,
            is_disconnected: false,
            destroy_attempts: 0,
            armed: None,
            broken: None,
            repost_queue: Vec::new(),
            queue: None,
            cq_failed: false,
            rtu: Rtu::NoData,
        }
    }

    /// Starts the wait for the RTU at the first data.
    pub(crate) fn data_received(&mut self, now: Duration) {
        if self.rtu == Rtu::NoData {
            self.rtu = Rtu::Awaited(now);
        }
    }

    /// Time at which the wait for the RTU ends.
    pub(crate) fn rtu_deadline(&self) -> Option<Duration> {
        match (&self.stage, self.closing, self.rtu) {
            (Stage::Accepted(_), None, Rtu::Awaited(since)) => Some(since + RTU_TIMEOUT),
            _ => None,
        }
    }

    /// Whether the wait for the RTU has timed out. Returns `true` once.
    pub(crate) fn take_rtu_timeout(&mut self, now: Duration) -> bool {
        let timed_out = self.rtu_deadline().is_some_and(|at| at <= now);
        if timed_out {
            self.rtu = Rtu::Lost;
        }
        timed_out
    }

    /// The device, between creation and destruction of the queue pair.
    pub(crate) fn device(&self) -> Option<&Arc<Device>> {
        match &self.stage {
            Stage::Asked(resources) => Some(&resources.device),
            Stage::Accepted(resources) => Some(&resources.device),
            Stage::Up(resources) => Some(&resources.device),
            Stage::Busy | Stage::Resolving | Stage::Gone => None,
        }
    }

    fn queues(&mut self) -> Option<(&mut Pair<Rts>, &mut CompletionQueue, &Arc<Device>)> {
        self.stage.queues()
    }

    /// Requests a notification for the next completion of this kind.
    pub(crate) fn arm(&mut self, wanted: Armed) -> verbs::Result<()> {
        if self.armed >= Some(wanted) {
            return Ok(());
        }
        let notify = match wanted {
            Armed::Solicited => Notify::Solicited,
            Armed::All => Notify::Next,
        };
        let cq_failed = self.cq_failed;
        if let Some((_, cq, _)) = self.queues() {
            if !cq_failed {
                cq.req_notify(notify)?;
            }
            self.armed = Some(wanted);
        }
        Ok(())
    }

    /// Time at which a closing connection no longer waits for its completions.
    pub(crate) fn drain_deadline(&self) -> Option<Duration> {
        let since = self.closing.filter(|_| !self.is_busy())?;
        Some(since + DRAIN_TIMEOUT)
    }

    /// Whether calls into the kernel are in progress.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.stage, Stage::Busy)
    }

    /// Whether every signaled request has completed, or completions can no longer be polled.
    pub(crate) fn is_drained(&mut self) -> bool {
        let drained = self.queues().is_none_or(|(qp, _, _)| {
            qp.receive_queue().in_flight() == 0
                && qp.send_queue().in_flight() <= qp.send_queue().unsignaled()
        });
        drained || self.cq_failed
    }

    /// Whether frames acknowledged by the device may be lost in unpolled receives.
    pub(crate) fn may_have_lost_rx(&mut self) -> bool {
        self.queues()
            .is_some_and(|(qp, _, _)| qp.receive_queue().in_flight() > 0)
    }
}
