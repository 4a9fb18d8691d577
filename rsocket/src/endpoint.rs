//! What a connection works with, before it is connected.

use std::io;

use cm::{CmId, ConnParam, phases::HasDevice};
use verbs::{
    Attributes, CompletionChannel, CompletionQueue, CqKey, Init, QueuePair, Rc, RemoteRegion,
    RetryCount, RnrTimer, Rtr, Rts, State, With,
};

use crate::{
    device::{Devices, ProtectionGroup},
    memory::Exposed,
    proto::{
        ConnectData,
        stream::{Framing, SPARE_RECEIVES, Settings, Stream, Tag},
    },
};

/// What a request of the send queue owns: the ranges it is sent from, and what it is.
pub(crate) type SendWork = With<Option<(RemoteRegion, Option<RemoteRegion>)>, Tag>;
/// What a receive owns: its place, where messages are separate. Elsewhere, hundreds of them wait with
/// nothing, and are small.
pub(crate) type RecvWork = Option<Box<RemoteRegion>>;

pub(crate) type Pair<S> = QueuePair<Rc, S, SendWork, RecvWork>;

/// Bytes of a message that is sent on its own: the least that a request must carry inline there.
const MESSAGE_BYTES: u32 = 4;

/// How long a peer waits that meets an empty receive queue: code 6, 80 µs.
const RNR_TIMER: u8 = 6;

/// How often the device sends again what is not acknowledged. Soft-RoCE takes 7, which peers agree on,
/// for no limit.
const RETRIES: u8 = 6;

/// The names of the two completion queues.
///
/// They are two so that who waits to read sleeps on when something has been sent: in an exchange of
/// messages, that saves half of the times that a thread is woken.
const SENDS: CqKey = CqKey(0);
pub(crate) const RECEIVES: CqKey = CqKey(1);

/// How many completions of what is sent are fetched at once: every connection has room for them.
const SENT_AT_ONCE: usize = 4;

/// A queue pair in state `S`, its queues, and the memory that its peer is told of.
///
/// A [`Connection`](crate::connection::Connection) is made of it when the peer has completed the handshake, and
/// takes the send buffer only then.
#[derive(Debug)]
pub(crate) struct Endpoint<S: State> {
    pub(crate) qp: Pair<S>,
    /// Where what is sent completes.
    pub(crate) sends: CompletionQueue,
    /// Where what arrives completes.
    pub(crate) receives: CompletionQueue,
    /// Tells of both.
    pub(crate) channel: CompletionChannel,
    pub(crate) exposed: Exposed,
    pub(crate) settings: Settings,
}

impl Endpoint<Init> {
    /// Makes an endpoint for the connection of `id`, with every receive posted. Without a group it has a protection
    /// domain of its own.
    pub(crate) fn new<P: HasDevice>(
        id: &CmId<P>,
        devices: &Devices,
        group: Option<&ProtectionGroup>,
        settings: Settings,
    ) -> io::Result<Self> {
        let device = devices.of(&id.context()?)?;
        let pd = devices.domain(&device, group)?;
        let ctx = pd.context();
        let mut settings = settings.clamped(device.max_qp_wr.min(device.max_cqe));
        if ctx.is_iwarp() {
            settings.framing = Framing::Separate;
            settings.inline = settings.inline.max(MESSAGE_BYTES);
        }
        let recv_depth = u32::from(settings.recv_depth + SPARE_RECEIVES);
        let channel = ctx.create_comp_channel()?;
        let cq = |len, key| ctx.cq_builder(len).channel(&channel, key);
        let sends = cq(settings.send_depth.into(), SENDS);
        let sends = sends.batch(SENT_AT_ONCE).create()?;
        let receives = cq(recv_depth, RECEIVES).create()?;
        let qp = pd
            .qp_builder::<Rc>(&sends, &receives)
            .max_send_wr(settings.send_depth.into())
            .max_recv_wr(recv_depth)
            .max_send_sge(2)
            .max_recv_sge(1)
            .max_inline_data(settings.inline)
            .create_for()?;
        let mut qp = id.init_qp(qp).map_err(verbs::Error::from)?;
        let exposed = Exposed::new(&pd, &settings)?;
        for index in 0..settings.recv_depth + SPARE_RECEIVES {
            let place = exposed.message_slot(index).map(Box::new);
            qp.post_recv(place).map_err(verbs::Error::from)?;
        }
        Ok(Self {
            qp,
            sends,
            receives,
            channel,
            exposed,
            settings,
        })
    }

    /// Returns the parameters to connect or accept with.
    pub(crate) fn conn_param(&self) -> ConnParam {
        let data = Stream::connect_data(&self.settings, &self.exposed.local());
        // Some makers of iWARP read something while they connect.
        let reads = u8::from(self.settings.framing == Framing::Separate);
        ConnParam::zeroed()
            .private_data(data.encode())
            .initiator_depth(reads)
            .flow_control(true)
            .retry_count(7)
            .rnr_retry_count(7)
    }

    /// Brings the queue pair up by `up`.
    pub(crate) fn bring_up(
        self,
        up: impl FnOnce(Pair<Init>) -> io::Result<Pair<Rts>>,
    ) -> io::Result<Endpoint<Rts>> {
        Ok(Endpoint {
            qp: up(self.qp)?,
            sends: self.sends,
            receives: self.receives,
            channel: self.channel,
            exposed: self.exposed,
            settings: self.settings,
        })
    }
}

impl<S: State> Endpoint<S> {
    /// Returns the stream of this endpoint, connected to the peer that sent `peer`.
    pub(crate) fn stream(&self, peer: &ConnectData) -> Stream {
        Stream::new(self.settings, &self.exposed.local(), peer)
    }
}

/// Brings a queue pair up, for the connection that `id` is asked for or has asked for.
///
/// The connection manager would let a peer that meets an empty receive queue wait for two thirds of
/// a second. Control messages need no credit, so that happens. And the device would have as many
/// retries as the peers have agreed on.
pub(crate) fn bring_up<P: HasDevice>(id: &CmId<P>, mut qp: Pair<Init>) -> verbs::Result<Pair<Rts>> {
    // The port may have become known since the queue pair was initialised.
    qp.modify(&id.attributes()?)?;
    let iwarp = qp.pd().context().is_iwarp();
    let mut to_rtr: Attributes<Rc, Rtr> = id.attributes()?;
    if !iwarp {
        to_rtr = to_rtr.min_rnr_timer(RnrTimer::new(RNR_TIMER)?);
    }
    let qp = qp.to_rtr(&to_rtr)?;
    let mut to_rts: Attributes<Rc, Rts> = id.attributes()?;
    if !iwarp {
        to_rts = to_rts.retry_count(RetryCount::new(RETRIES)?);
    }
    Ok(qp.to_rts(&to_rts)?)
}
