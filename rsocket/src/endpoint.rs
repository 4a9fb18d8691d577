//! Resources of a connection before it is established.

use std::io;

use cm::{CmId, ConnParam, phases::HasDevice};
use verbs::{
    CompletionQueue, Init, QueuePair, RemoteRegion, Rtr, Rts,
    cq::{CompletionChannel, CqKey},
    qp::{Attributes, RetryCount, RnrTimer, State},
    work::With,
};

use crate::{
    device::{Devices, ProtectionGroup},
    memory::{Exposed, send_buffer},
    proto::{
        ConnectData,
        stream::{Framing, SPARE_RECEIVES, Settings, Stream, Tag},
    },
};

/// Buffers and tag owned by a send request.
pub(crate) type SendWork = With<Option<(RemoteRegion, Option<RemoteRegion>)>, Tag>;
/// Buffer owned by a receive: its message slot with separate framing, else nothing. A box keeps the hundreds
/// of posted receives small.
pub(crate) type RecvWork = Option<Box<RemoteRegion>>;

pub(crate) type Pair<S> = QueuePair<verbs::Rc, S, SendWork, RecvWork>;

/// Size in bytes of a separate message: the minimum inline size with separate framing.
const MESSAGE_BYTES: u32 = 4;

/// RNR timer code 6: a peer retries after 80 µs when the receive queue is empty.
const RNR_TIMER: u8 = 6;

/// Transport retries of an unacknowledged request. Not 7, the negotiated value: Soft-RoCE treats 7 as
/// unlimited.
const RETRIES: u8 = 6;

/// Key of the send completion queue.
///
/// Separate queues for sends and receives let a blocked reader sleep through send completions. In a ping-pong
/// exchange, this halves the number of wake-ups.
const SENDS: CqKey = CqKey(0);
pub(crate) const RECEIVES: CqKey = CqKey(1);

/// Send completions fetched by one poll. Each connection reserves room for them.
const SENT_AT_ONCE: usize = 4;

/// A queue pair in state `S`, its completion queues, and the memory exposed to the peer.
///
/// When the peer has completed the handshake, the endpoint becomes a
/// [`Connection`](crate::connection::Connection), which allocates the send buffer only then.
#[derive(Debug)]
pub(crate) struct Endpoint<S: State> {
    pub(crate) qp: Pair<S>,
    /// Send completions.
    pub(crate) sends: CompletionQueue,
    /// Receive completions.
    pub(crate) receives: CompletionQueue,
    /// Event channel of both completion queues.
    pub(crate) channel: CompletionChannel,
    pub(crate) exposed: Exposed,
    pub(crate) settings: Settings,
}

impl Endpoint<Init> {
    /// Creates an endpoint for the connection of `id` and posts all receives. Without a group, the endpoint
    /// gets its own protection domain.
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
            .qp_builder::<verbs::Rc>(&sends, &receives)
            .max_send_wr(settings.send_depth.into())
            .max_recv_wr(recv_depth)
            .max_send_sge(2)
            .max_recv_sge(1)
            .max_inline_data(settings.inline)
            .create_for()?;
        let mut qp = id.init_qp(qp).map_err(verbs::Error::from)?;
        let exposed = Exposed::new(&pd, &settings)?;
        for index in 0..settings.recv_depth + SPARE_RECEIVES {
            let slot = exposed.message_slot(index).map(Box::new);
            qp.post_recv(slot).map_err(verbs::Error::from)?;
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

    /// Returns the parameters for connecting or accepting.
    pub(crate) fn conn_param(&self) -> ConnParam {
        let data = Stream::connect_data(&self.settings, &self.exposed.local());
        // Some iWARP devices issue an RDMA read during the connection setup.
        let reads = u8::from(self.settings.framing == Framing::Separate);
        ConnParam::zeroed()
            .private_data(data.encode())
            .initiator_depth(reads)
            .flow_control(true)
            .retry_count(7)
            .rnr_retry_count(7)
    }

    /// Moves the queue pair to `Rts` by calling `up`.
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
    /// Allocates the send buffer of the connection.
    pub(crate) fn send_buffer(&self) -> verbs::Result<RemoteRegion> {
        send_buffer(self.qp.pd(), &self.settings)
    }

    /// Creates the stream of this endpoint with the connect data of the peer.
    pub(crate) fn stream(&self, peer: &ConnectData) -> Stream {
        Stream::new(self.settings, &self.exposed.local(), peer)
    }
}

/// Moves a queue pair to `Rts` for the connection of `id`.
///
/// Sets two attributes below the connection manager's defaults. Its RNR timer would delay a peer at an empty
/// receive queue by two thirds of a second, and control messages need no credit, so empty queues occur. Its
/// retry count would be the negotiated one; see `RETRIES`.
pub(crate) fn bring_up<P: HasDevice>(id: &CmId<P>, mut qp: Pair<Init>) -> verbs::Result<Pair<Rts>> {
    // The port may have become known only after the transition to `Init`.
    qp.modify(&id.attributes()?)?;
    let iwarp = qp.pd().context().is_iwarp();
    let mut to_rtr: Attributes<verbs::Rc, Rtr> = id.attributes()?;
    if !iwarp {
        to_rtr = to_rtr.min_rnr_timer(RnrTimer::new(RNR_TIMER)?);
    }
    let qp = qp.to_rtr(&to_rtr)?;
    let mut to_rts: Attributes<verbs::Rc, Rts> = id.attributes()?;
    if !iwarp {
        to_rts = to_rts.retry_count(RetryCount::new(RETRIES)?);
    }
    Ok(qp.to_rts(&to_rts)?)
}
