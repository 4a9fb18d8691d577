//! One reliable connection to a peer: queue pair and connection manager identifier.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use cm::{
    CmId, ConnParam, EventChannel, Key, Reaper,
    phases::{Connected, HasDevice},
};
use verbs::{
    Error, Init, QueuePair, RemoteRegion, Rtr, Rts,
    mr::PoolBuf,
    qp::{Attributes, QpHandle, QpId, RnrTimer, State},
    work::With,
};

use crate::{
    device::{Device, SharedCq},
    outbound::Payload,
    proto::{
        connection::{Completion, Tag},
        link::Attempt,
        wire::{FRAGMENT, MAX_MESSAGE},
    },
    slots::SpareSlot,
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
    pub(crate) fn bare(tag: Tag) -> Self {
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
    pub(crate) fn release(work: SendWork) -> (Tag, bool) {
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
                message.return_slot(at, slot);
            }
        }
        (tag, !partial)
    }
}

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
    pub(crate) stage: ConnectStage,
    /// Time at which the connection began to close.
    pub(crate) closing: Option<Duration>,
    /// The disconnect of a closing connection was requested.
    pub(crate) is_disconnected: bool,
    /// Tag and first error of a partially failed RDMA operation.
    pub(crate) broken: Option<(Tag, Completion)>,
    /// The peer has violated the protocol, so that no receives are reposted.
    pub(crate) has_violation: bool,
    /// Receive buffers to repost. Reposting in batches is cheaper than one doorbell per message.
    pub(crate) repost_queue: Vec<RecvWork>,
    pub(crate) spare: SpareSlot,
    /// No slot was free, and the engine thread was asked to register more.
    pub(crate) is_starved: bool,
    /// Time of the next attempt to post more than the initial receives; `None` once all are posted.
    pub(crate) grow_at: Option<Duration>,
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

/// Progress of a connection attempt.
#[derive(Debug)]
pub(crate) enum ConnectStage {
    /// The engine thread makes calls into the kernel, without the lock, with the resources.
    Busy,
    /// Address or route resolution is in progress.
    Resolving,
    /// The REQ is sent, the peer has not replied.
    Requested(Box<QpResources<Pair<Init>>>),
    /// The queue pair is in the state RTS, the RTU is outstanding.
    Ready(Box<QpResources<Pair<Rts>>>),
    /// Both sides are ready.
    Up(Box<QpResources<Pair<Rts>>>, Arc<CmId<Connected>>),
    /// All resources are destroyed.
    Gone,
}

/// A queue pair with its device.
#[derive(Debug)]
pub(crate) struct QpResources<Q> {
    pub(crate) qp: Q,
    pub(crate) device: Arc<Device>,
    /// The completion queue, if it is not shared and not polled yet.
    pub(crate) own_cq: Option<SharedCq>,
    /// Number of posted receives.
    pub(crate) receives: u32,
    /// Polling the completion queue has failed.
    pub(crate) cq_failed: Arc<AtomicBool>,
}

impl QpResources<Pair<Init>> {
    /// Creates a queue pair for `id` with the initial receives.
    pub(crate) fn new<P: HasDevice>(id: &CmId<P>, device: &Arc<Device>) -> verbs::Result<Self> {
        let (cq, cq_failed, own_cq) = device.cq()?;
        let qp = device.create_qp(&cq)?;
        let mut qp = id.init_qp(qp).map_err(Error::from)?;
        for _ in 0..device.initial_receives {
            let slot = device.slot(FRAGMENT as usize)?;
            qp.post_recv(slot).map_err(Error::from)?;
        }
        // One is free for the first frame.
        drop(device.slot(FRAGMENT as usize)?);
        Ok(Self {
            qp,
            device: Arc::clone(device),
            own_cq,
            receives: device.initial_receives,
            cq_failed,
        })
    }

    /// Moves the queue pair to RTS with the attributes negotiated by `id`.
    pub(crate) fn bring_up<P: HasDevice>(self, id: &CmId<P>) -> verbs::Result<ConnectStage> {
        Ok(ConnectStage::Ready(Box::new(QpResources {
            qp: bring_up(id, self.qp)?,
            device: self.device,
            own_cq: self.own_cq,
            receives: self.receives,
            cq_failed: self.cq_failed,
        })))
    }
}

/// Moves a queue pair from INIT to RTS with the attributes negotiated by `id`.
fn bring_up<P: HasDevice>(id: &CmId<P>, mut qp: Pair<Init>) -> verbs::Result<Pair<Rts>> {
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

/// The end of a connection's traffic, by calls into the kernel without the engine's lock.
#[derive(Debug)]
pub(crate) struct Ending {
    qp: Option<(QpHandle<verbs::Rc>, bool)>,
    id: Option<Arc<CmId<Connected>>>,
}

impl Ending {
    /// Ends the traffic, so that every request completes. Without an established identifier,
    /// cancels the identifier `key` with an outstanding event.
    pub(crate) fn run(self, reaper: &Reaper, channel: &Arc<EventChannel>, key: Option<Key>) {
        // On iWARP, the kernel closes the connection through the queue pair.
        if let Some((qp, iwarp)) = self.qp
            && !(iwarp && self.id.is_some())
        {
            drop(qp.to_error());
        }
        match (self.id, key) {
            // Fails if the peer has disconnected first.
            (Some(id), _) => drop(id.disconnect()),
            (None, Some(key)) => {
                let channel = Arc::clone(channel);
                // If the event arrives first, its handler destroys the identifier.
                reaper.run(move || {
                    channel.cancel(key);
                });
            }
            (None, None) => {}
        }
    }
}

impl ConnectStage {
    /// The resources of a connection that can carry data.
    pub(crate) fn resources(&mut self) -> Option<&mut QpResources<Pair<Rts>>> {
        match self {
            Self::Ready(resources) | Self::Up(resources, _) => Some(resources),
            Self::Busy | Self::Resolving | Self::Requested(_) | Self::Gone => None,
        }
    }

    /// The device, between creation and destruction of the queue pair.
    pub(crate) fn device(&self) -> Option<&Arc<Device>> {
        match self {
            Self::Requested(resources) => Some(&resources.device),
            Self::Ready(resources) | Self::Up(resources, _) => Some(&resources.device),
            Self::Busy | Self::Resolving | Self::Gone => None,
        }
    }

    /// Begins the end. The resources remain.
    pub(crate) fn begin_end(&mut self) -> Ending {
        let qp = self.resources().map(|resources| {
            let iwarp = resources.device.iwarp;
            (resources.qp.handle(), iwarp)
        });
        let id = match self {
            Self::Up(_, id) => Some(Arc::clone(id)),
            _ => None,
        };
        Ending { qp, id }
    }

    /// Destroys the queue pair, and returns its send work. Enters the kernel. The identifier is
    /// destroyed by a thread of the reaper, since `rdma_destroy_id` can block.
    ///
    /// # Errors
    /// `ibv_destroy_qp` fails. The queue pair and its buffers are leaked.
    pub(crate) fn destroy(self, reaper: &Reaper) -> verbs::Result<Vec<SendWork>> {
        match self {
            Self::Requested(resources) => resources.destroy(),
            Self::Ready(resources) => resources.destroy(),
            Self::Up(resources, id) => {
                let destroyed = resources.destroy();
                reaper.destroy(id);
                destroyed
            }
            Self::Busy | Self::Resolving | Self::Gone => Ok(Vec::new()),
        }
    }
}

impl<S: State> QpResources<Pair<S>> {
    /// Number of receives at which a batch is reposted.
    pub(crate) fn max_reposts(&self) -> usize {
        (self.receives as usize / 16).min(16)
    }

    /// Whether a message, of which only the last frame is solicited, may need more receives than are
    /// posted. Then each frame has to cause a notification, or none would.
    pub(crate) fn has_few_receives(&self) -> bool {
        let posted = (self.receives as usize).saturating_sub(self.max_reposts());
        posted < (MAX_MESSAGE / FRAGMENT) as usize
    }

    fn destroy(self) -> verbs::Result<Vec<SendWork>> {
        let leftover = self.qp.destroy().map_err(|refused| refused.error)?;
        self.device.release_cqs();
        Ok(leftover.send)
    }
}

impl IbConnection {
    /// An attempt, while the engine thread makes its first calls into the kernel.
    pub(crate) fn new(attempt: Attempt, key: Option<Key>, span: ConnectionSpan) -> Self {
        Self {
            attempt,
            key,
            span,
            stage: ConnectStage::Busy,
            closing: None,
            is_disconnected: false,
            broken: None,
            has_violation: false,
            repost_queue: Vec::new(),
            spare: SpareSlot::default(),
            is_starved: false,
            grow_at: Some(Duration::ZERO),
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
            (ConnectStage::Ready(_), None, Rtu::Awaited(since)) => Some(since + RTU_TIMEOUT),
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

    /// Time at which a closing connection no longer waits for its completions.
    pub(crate) fn drain_deadline(&self) -> Option<Duration> {
        let since = self.closing.filter(|_| !self.is_busy())?;
        Some(since + DRAIN_TIMEOUT)
    }

    /// Whether calls into the kernel are in progress.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.stage, ConnectStage::Busy)
    }

    /// The name of a queue pair that gets completions.
    pub(crate) fn qp_id(&mut self) -> Option<QpId> {
        Some(self.stage.resources()?.qp.id())
    }

    /// Whether every signaled request has completed, or completions can no longer be polled.
    pub(crate) fn is_drained(&mut self) -> bool {
        self.stage.resources().is_none_or(|resources| {
            let qp = &resources.qp;
            let drained = qp.receive_queue().in_flight() == 0
                && qp.send_queue().in_flight() <= qp.send_queue().unsignaled();
            drained || resources.cq_failed.load(Relaxed)
        })
    }

    /// Whether polling the completion queue has failed.
    pub(crate) fn has_failed_cq(&mut self) -> bool {
        let resources = self.stage.resources();
        resources.is_some_and(|resources| resources.cq_failed.load(Relaxed))
    }

    /// Whether frames acknowledged by the device may be lost in unpolled receives.
    pub(crate) fn may_have_lost_rx(&mut self) -> bool {
        let resources = self.stage.resources();
        resources.is_some_and(|resources| resources.qp.receive_queue().in_flight() > 0)
    }
}
