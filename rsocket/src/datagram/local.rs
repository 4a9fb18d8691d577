//! Local endpoint of a datagram socket: the UD queue pair for one local address.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
};

use cm::{CmId, Key, PortSpace, phases::Idle};
use rustix::io::Errno;
use verbs::{
    AddressHandle, Completed, Context, QueuePair, RemoteAccess, RemoteRegion, Rtr, Rts, Ud,
    WcStatus,
    ah::{Addressed, GRH_LEN},
    cq::{CompletionChannel, CqKey},
    mr::{BufPool, Mapping, PoolBuf},
    op,
    qp::{Attributes, Psn, QpNum},
};

use crate::{
    device::Device,
    engine::Engine,
    proto::{
        datagram::{Encoded, Origin, QKEY, SLOT},
        stream::Settings,
    },
    queue::Queue,
};

/// Buffer owned by a send request, unless sent inline.
type SendWork = Addressed<Option<PoolBuf>>;

/// Buffers owned by a receive: one for the message, and one for the excess of an overlong message.
type RecvWork = (PoolBuf, RemoteRegion);

type Pair = QueuePair<Ud, Rts, SendWork, RecvWork>;

/// Maximum length of a UD message in bytes: one packet of the largest MTU.
///
/// A message longer than its receive would put the queue pair into the error state, at the mercy of any peer.
/// Each receive therefore ends in a spill buffer for the excess, never read.
const MAX_MESSAGE: usize = 4096;

/// The resolved route to a peer.
#[derive(Clone, Debug)]
pub(crate) struct PeerPath {
    pub(crate) ah: AddressHandle,
    /// Maximum payload of a packet, in bytes.
    pub(crate) mtu: usize,
}

/// A UD queue pair and its memory.
#[derive(Debug)]
pub(super) struct LocalEndpoint {
    qp: Pair,
    /// Spill buffer for the excess of overlong messages, shared by all receives.
    spill: RemoteRegion,
    queue: Queue,
    channel: CompletionChannel,
    messages: BufPool,
    send_depth: u32,
    inline: usize,
    /// Reserves the port.
    id: CmId<Idle>,
    addr: SocketAddr,
}

/// A processed completion.
pub(super) enum Done {
    /// A send has completed.
    Sent {
        /// Whether the send has succeeded.
        ok: bool,
    },
    /// A message has arrived, behind a global route header.
    Received(PoolBuf),
    /// The queue pair is in the error state and receives nothing more.
    Broken,
}

fn no_datagrams(addr: SocketAddr) -> io::Error {
    let reason = format!(
        "the device of {} is iWARP, which has no datagrams",
        addr.ip()
    );
    io::Error::new(io::ErrorKind::Unsupported, reason)
}

impl LocalEndpoint {
    /// Creates the queue pair for a local address.
    pub(super) fn new(
        engine: &Engine,
        addr: SocketAddr,
        reuse_addr: bool,
        settings: &Settings,
    ) -> io::Result<Self> {
        let mut id = engine.channel().create_id_in(PortSpace::Udp)?;
        if reuse_addr {
            id.set_reuse_addr(true)?;
        }
        id.bind(addr)?;
        let ctx = id.bound_context()?.ok_or(Errno::NODEV)?;
        if ctx.is_iwarp() {
            return Err(no_datagrams(addr));
        }
        let Device {
            datagrams: pd,
            max_qp_wr,
            max_cqe,
        } = engine.devices().of(&ctx)?;
        // Sends and receives share a completion queue.
        let max_depth = max_qp_wr.min(max_cqe / 2);
        let (sends, receives) = (
            u32::from(settings.send_depth).min(max_depth),
            u32::from(settings.recv_depth).min(max_depth),
        );
        let channel = ctx.create_comp_channel()?;
        let cq = ctx
            .cq_builder(sends + receives)
            .channel(&channel, CqKey(0))
            .create()?;
        let qp = pd
            .qp_builder::<Ud>(&cq, &cq)
            .max_send_wr(sends)
            .max_recv_wr(receives)
            .max_recv_sge(2)
            .max_inline_data(settings.inline)
            .create_for()?;
        let to_init = id.attributes()?;
        let qp = qp.to_init(&to_init).map_err(verbs::Error::from)?;
        let qp = qp
            .to_rtr(&Attributes::<Ud, Rtr>::new())
            .map_err(verbs::Error::from)?;
        let mut qp = qp
            .to_rts(&Attributes::<Ud, Rts>::new(Psn::default()))
            .map_err(verbs::Error::from)?;
        let slots = pd.alloc_pool(receives as usize, GRH_LEN + SLOT)?;
        let spill = pd.register(Mapping::new(MAX_MESSAGE)?);
        let spill = spill.remote(RemoteAccess::empty()).create();
        let spill = spill.map_err(verbs::Error::from)?;
        post_recvs(&mut qp, &slots, &spill, receives)?;
        let inline = qp.send_queue().max_inline_data();
        let mut local = Self {
            messages: pd.alloc_pool(sends as usize, SLOT)?,
            send_depth: sends,
            qp,
            spill,
            queue: Queue::new(cq),
            channel,
            inline,
            id,
            addr,
        };
        local.arm()?;
        Ok(local)
    }

    pub(super) fn key(&self) -> Key {
        self.id.key()
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(super) fn is_for(&self, ip: IpAddr) -> bool {
        self.addr.ip() == ip
    }

    /// Returns the interface index of a link-local address, else 0.
    pub(super) fn scope(&self) -> u32 {
        match self.addr {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(addr) => addr.scope_id(),
        }
    }

    pub(super) fn context(&self) -> &Context {
        self.qp.pd().context()
    }

    pub(super) fn qp_num(&self) -> u32 {
        self.qp.qp_num().get()
    }

    /// Maximum number of bytes sent inline, without a copy to registered memory.
    pub(super) fn inline(&self) -> usize {
        self.inline
    }

    pub(super) fn completions(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Maximum number of messages in flight: the requested number, limited by the device.
    pub(super) fn send_depth(&self) -> u32 {
        self.send_depth
    }

    /// Number of messages in flight.
    pub(super) fn sending(&self) -> usize {
        self.qp.send_queue().in_flight()
    }

    /// Returns the header of all messages from this endpoint.
    pub(super) fn header(&self) -> Encoded {
        Origin(self.addr).encode()
    }

    /// Posts a message including its header.
    pub(super) fn send(&mut self, message: &[u8], path: &PeerPath, qp_num: u32) -> io::Result<()> {
        let to = QpNum::new(qp_num)?;
        let request = |work| op::SendTo::new(Addressed::new(work, &path.ah), to, QKEY);
        if message.len() <= self.inline {
            let request = request(None).inline(message);
            self.qp.post(request).map_err(verbs::Error::from)?;
            return self.ring();
        }
        let mut slot = self.messages.try_take().ok_or(Errno::AGAIN)?;
        slot[..message.len()].copy_from_slice(message);
        slot.set_len(message.len());
        self.qp
            .post(request(Some(slot)))
            .map_err(verbs::Error::from)?;
        self.ring()
    }

    /// Fails if the doorbell of the message has failed: the device sends the message with the next one, if at all.
    fn ring(&mut self) -> io::Result<()> {
        self.qp
            .take_doorbell_error()
            .map_or(Ok(()), |error| Err(error.into()))
    }

    /// Processes completions. Returns whether there was one.
    pub(super) fn process(
        &mut self,
        mut done: impl FnMut(Done) -> Option<PoolBuf>,
    ) -> io::Result<bool> {
        let mut progressed = false;
        let mut broken = false;
        for wc in self.queue.poll()? {
            progressed = true;
            let (ok, flushed) = (wc.ok().is_ok(), wc.status() == WcStatus::WR_FLUSH_ERR);
            match self.qp.complete(wc) {
                Ok(Completed::Send(_)) => drop(done(Done::Sent { ok })),
                Ok(Completed::Receive(received)) if ok => {
                    let len = received.byte_len();
                    let (_, (mut slot, _)) = received.into_parts();
                    let again = if len > slot.capacity() {
                        Some(slot)
                    } else {
                        slot.set_len(len);
                        done(Done::Received(slot))
                    };
                    if let Some(again) = again {
                        post_recv(&mut self.qp, again, &self.spill)?;
                    }
                }
                // A flushed receive follows an earlier failure, or the removal of the device, reported by the
                // connection manager.
                Ok(Completed::Receive(_)) => broken |= !flushed,
                // Completion of an earlier queue pair.
                Err(_) => {}
            }
        }
        if broken {
            drop(done(Done::Broken));
        }
        Ok(progressed)
    }

    /// Posts a receive with a buffer that has been read.
    pub(super) fn repost(&mut self, slot: PoolBuf) -> io::Result<()> {
        post_recv(&mut self.qp, slot, &self.spill)
    }

    /// Requests an event, unless one is outstanding.
    pub(super) fn arm(&mut self) -> io::Result<()> {
        Ok(self.queue.arm()?)
    }

    /// Takes the available events.
    pub(super) fn drain_events(&mut self) -> io::Result<()> {
        while self.queue.is_armed() && self.channel.try_next()?.is_some() {
            self.queue.event_taken();
        }
        Ok(())
    }
}

/// Fills the receive queue, with at most `max` receives.
fn post_recvs(qp: &mut Pair, slots: &BufPool, spill: &RemoteRegion, max: u32) -> io::Result<()> {
    while let Some(slot) = slots.try_take() {
        if qp.receive_queue().in_flight() == max as usize {
            break;
        }
        post_recv(qp, slot, spill)?;
    }
    Ok(())
}

fn post_recv(qp: &mut Pair, mut slot: PoolBuf, spill: &RemoteRegion) -> io::Result<()> {
    slot.set_full();
    let work = (slot, spill.slice(0..spill.len()));
    Ok(qp.post_recv(work).map_err(verbs::Error::from)?)
}
