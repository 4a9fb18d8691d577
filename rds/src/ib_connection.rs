//! One reliable connection between two hosts, from the first step to the last.

use std::{sync::Arc, time::Duration};

use cm::{CmId, ConnParam, Connection, Key, phases::HasDevice};
use verbs::{
    Attributes, CompletionQueue, CqKey, Init, Notify, PoolBuf, QueuePair, Rc, RemoteRegion,
    RnrTimer, Rtr, Rts, With,
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
};

/// What a request of the send queue owns: the slot of a frame, or memory of an operation.
pub(crate) type SendWork = With<(Option<PoolBuf>, Vec<RemoteRegion>), Posted>;
/// What a receive owns.
pub(crate) type RecvWork = PoolBuf;

type Pair<S> = QueuePair<Rc, S, SendWork, RecvWork>;

/// Which request has completed.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) tag: Tag,
    /// The message that the slot belongs to, and where in it.
    pub(crate) message: Option<(Payload, u32)>,
    /// It is one of several of an operation, and not the last.
    pub(crate) partial: bool,
}

impl Posted {
    /// A request without memory of a message.
    pub(crate) fn alone(tag: Tag) -> Self {
        Self {
            tag,
            message: None,
            partial: false,
        }
    }
}

impl Posted {
    /// Gives the memory of a request back to its message. Returns what has completed, and whether
    /// all of it has.
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
            // One that nobody else has any more is over.
            if Arc::get_mut(&mut message).is_none() {
                message.give_back(at, slot);
            }
        }
        (tag, !partial)
    }
}

/// So many completions are fetched at once.
pub(crate) const POLL_BATCH: usize = 64;

/// Requests for which room is kept: an acknowledgement, and a probe.
pub(crate) const RESERVED_SENDS: u32 = 2;

/// How long a peer waits that meets an empty receive queue: code 10, 320 µs. The connection manager
/// would say two thirds of a second.
const RNR_TIMER: u8 = 10;

/// So long a peer that was accepted may talk before it says that the handshake is over; then that is lost.
///
/// The connection manager had better be told of that late, if at all: if the connection ends before Linux 6.1
/// has got round to it, the kernel repeats the answer to the peer's request for more than a minute, and lets
/// nobody destroy the identifier before.
const RTU_TIMEOUT: Duration = Duration::from_millis(500);

/// One attempt to connect, and what comes of it.
#[derive(Debug)]
pub(crate) struct IbConnection {
    pub(crate) attempt: Attempt,
    pub(crate) key: Key,
    pub(crate) stage: Stage,
    /// It is being ended, since then.
    pub(crate) closing: Option<Duration>,
    /// How often the device has not let go of it.
    pub(crate) destroy_attempts: u32,
    /// Which completions are announced next, if any.
    pub(crate) armed: Option<Armed>,
    /// An operation of which a part has failed, and how.
    pub(crate) broken: Option<(Tag, Completion)>,
    pub(crate) repost_queue: RepostQueue,
    /// Its completion queue has failed, and is not looked at any more.
    pub(crate) cq_failed: bool,
    rtu: Rtu,
}

/// Whether a peer that was accepted says that the handshake is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rtu {
    /// It has not begun to talk.
    NoData,
    /// It has, then.
    Awaited(Duration),
    /// It is lost, and the connection manager has been told so.
    Lost,
}

/// Which completions are announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Armed {
    /// Whole messages and acknowledgements, and the end of the connection.
    Solicited,
    /// All.
    All,
}

/// How far it is.
#[derive(Debug)]
pub(crate) enum Stage {
    /// The identifier waits for an event, and there is nothing else.
    Resolving,
    /// The peer has been asked.
    Asked(Box<QpResources<Pair<Init>>>),
    /// The peer has been accepted.
    Accepted(Box<QpResources<Pair<Rts>>>),
    /// Both know.
    Up(Box<QpResources<Connection<SendWork, RecvWork>>>),
    /// Nothing is left.
    Gone,
}

/// A queue pair, and what belongs to it.
#[derive(Debug)]
pub(crate) struct QpResources<Q> {
    pub(crate) qp: Q,
    pub(crate) cq: CompletionQueue,
    pub(crate) device: Arc<Device>,
}

impl<Q> QpResources<Q> {
    /// The same with another form of the queue pair.
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
    /// Makes what a connection of `id` needs, with every receive posted.
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
            .qp_builder::<Rc>(&cq, &cq)
            .max_send_wr(sends)
            .max_recv_wr(receives)
            .max_send_sge(device.elements)
            .max_recv_sge(1)
            .create_for()?;
        let mut qp = id.init_qp(qp).map_err(verbs::Error::from)?;
        for _ in 0..receives {
            let slot = device.slot(FRAME_SIZE)?;
            qp.post_recv(slot).map_err(verbs::Error::from)?;
        }
        Ok(Self {
            qp,
            cq,
            device: Arc::clone(device),
        })
    }
}

/// Brings a queue pair up, for the connection that `id` is asked for or has asked for.
pub(crate) fn bring_up<P: HasDevice>(id: &CmId<P>, mut qp: Pair<Init>) -> verbs::Result<Pair<Rts>> {
    // The port may have become known since the queue pair was initialised.
    qp.modify(&id.attributes()?)?;
    let mut to_rtr: Attributes<Rc, Rtr> = id.attributes()?;
    if !qp.pd().context().is_iwarp() {
        to_rtr = to_rtr.min_rnr_timer(RnrTimer::new(RNR_TIMER)?);
    }
    let qp = qp.to_rtr(&to_rtr)?;
    Ok(qp.to_rts(&id.attributes()?)?)
}

/// What to dial or accept with.
pub(crate) fn conn_param(data: Vec<u8>, retries: u8) -> ConnParam {
    ConnParam::new()
        .private_data(data)
        .retry_count(retries)
        .rnr_retry_count(7)
}

/// What is to be received into again, when there are some: to post many takes less than to post one many times, and others are
/// posted meanwhile.
#[derive(Debug, Default)]
pub(crate) struct RepostQueue {
    slots: Vec<RecvWork>,
    /// So many are with messages, and others take their places.
    held_by_app: usize,
}

impl RepostQueue {
    /// How many receives are not posted.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() + self.held_by_app
    }

    pub(crate) fn add(&mut self, slot: RecvWork) {
        self.slots.push(slot);
    }

    /// Whether another can be lent: not while programs keep those that were.
    pub(crate) fn can_hand_out(&self, device: &Device) -> bool {
        self.held_by_app < device.max_reposts()
    }

    /// One more is with a message.
    pub(crate) fn hand_out(&mut self) {
        self.held_by_app += 1;
    }

    /// Posts them all. Where no slot is free for one that is lent, that is tried again the next time.
    pub(crate) fn post(&mut self, qp: &mut Pair<Rts>, device: &Device) -> verbs::Result<()> {
        while self.held_by_app > 0
            && let Some(slot) = device.slots.take_free()
        {
            self.held_by_app -= 1;
            self.slots.push(slot);
        }
        let mut slots = self.slots.drain(..);
        slots.try_for_each(|slot| qp.post_recv(slot).map_err(verbs::Error::from))
    }
}

impl Stage {
    /// The queues, where there are any.
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
            Self::Resolving | Self::Asked(_) | Self::Gone => None,
        }
    }
}

impl IbConnection {
    pub(crate) fn new(attempt: Attempt, key: Key, stage: Stage) -> Self {
        Self {
            attempt,
            key,
            stage,
            closing: None,
            destroy_attempts: 0,
            armed: None,
            broken: None,
            repost_queue: RepostQueue::default(),
            cq_failed: false,
            rtu: Rtu::NoData,
        }
    }

    /// The peer has said something.
    pub(crate) fn data_received(&mut self, now: Duration) {
        if self.rtu == Rtu::NoData {
            self.rtu = Rtu::Awaited(now);
        }
    }

    /// When the connection manager has to be told that the peer's last word is lost, if that does not come.
    pub(crate) fn rtu_deadline(&self) -> Option<Duration> {
        match (&self.stage, self.closing, self.rtu) {
            (Stage::Accepted(_), None, Rtu::Awaited(since)) => Some(since + RTU_TIMEOUT),
            _ => None,
        }
    }

    /// Whether it is time to do without the last word of a peer that was accepted and talks: once.
    pub(crate) fn take_rtu_timeout(&mut self, now: Duration) -> bool {
        let timed_out = self.rtu_deadline().is_some_and(|at| at <= now);
        if timed_out {
            self.rtu = Rtu::Lost;
        }
        timed_out
    }

    /// The device, once it is known, and until it has let go.
    pub(crate) fn device(&self) -> Option<&Arc<Device>> {
        match &self.stage {
            Stage::Asked(resources) => Some(&resources.device),
            Stage::Accepted(resources) => Some(&resources.device),
            Stage::Up(resources) => Some(&resources.device),
            Stage::Resolving | Stage::Gone => None,
        }
    }

    fn queues(&mut self) -> Option<(&mut Pair<Rts>, &mut CompletionQueue, &Arc<Device>)> {
        self.stage.queues()
    }

    /// Has the next of these completions announced.
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

    /// Whether the device has let go of everything that it completes, or nobody hears of it.
    pub(crate) fn is_drained(&mut self) -> bool {
        let drained = self.queues().is_none_or(|(qp, _, _)| {
            qp.receive_queue().in_flight() == 0
                && qp.send_queue().in_flight() <= qp.send_queue().unsignaled()
        });
        drained || self.cq_failed
    }

    /// Whether the device may have taken frames that nobody has seen.
    pub(crate) fn may_have_lost_rx(&mut self) -> bool {
        self.queues()
            .is_some_and(|(qp, _, _)| qp.receive_queue().in_flight() > 0)
    }

    /// QpResources it. Returns whether its identifier still waits for an event, and has to be cancelled.
    pub(crate) fn close(&mut self, now: Duration) -> bool {
        self.closing = Some(now);
        match &mut self.stage {
            Stage::Up(resources) => {
                // It fails if the peer was first.
                drop(resources.qp.disconnect());
                false
            }
            Stage::Accepted(resources) => {
                drop(resources.qp.to_error());
                true
            }
            Stage::Resolving | Stage::Asked(_) => {
                self.stage = Stage::Gone;
                true
            }
            Stage::Gone => false,
        }
    }

    /// Takes everything back from the device; `false` if it does not let go. The identifier may be slow to end.
    pub(crate) fn destroy(&mut self, reaper: &mut Reaper) -> bool {
        let stage = std::mem::replace(&mut self.stage, Stage::Gone);
        let (resources, id) = match stage {
            Stage::Accepted(resources) => (*resources, None),
            Stage::Up(resources) => {
                let QpResources { qp, cq, device } = *resources;
                let (qp, id) = qp.into_parts();
                (QpResources { qp, cq, device }, Some(id))
            }
            Stage::Resolving | Stage::Asked(_) | Stage::Gone => return true,
        };
        let QpResources { qp, cq, device } = resources;
        let destroyed = qp.destroy();
        if let Some(id) = id {
            reaper.destroy(id);
        }
        match destroyed {
            Ok(leftover) => {
                for work in leftover.send {
                    Posted::give_back(work);
                }
                true
            }
            Err(refused) => {
                let qp = refused.value;
                self.stage = Stage::Accepted(Box::new(QpResources { qp, cq, device }));
                false
            }
        }
    }
}
