//! The event loop: one thread waits for connection manager events and completions, and calls the protocol for
//! each.

#![expect(clippy::print_stderr, reason = "of programs for the terminal")]

use std::{collections::HashMap, mem, net::SocketAddr, time::Duration};

use anyhow::{Context as _, bail, ensure};
use cm::{CmId, ConnectRequest, Event, EventChannel, Key, phases::HasDevice};
use rustix::event::{PollFd, PollFlags, poll};
use verbs::{
    CompletionQueue, Context, ProtectionDomain, QueuePair, Reset,
    cq::{CompletionChannel, CqKey, Notify},
    qp::QpId,
};

use super::{
    peer::Peer,
    protocol::{InitQp, Protocol, Step},
};

/// Timeout for resolving the address and the route.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of pending connection requests.
const BACKLOG: u32 = 10;

/// Entries of the completion queue: sends and receives in flight, over all connections.
const CQ_ENTRIES: u32 = 4096;

/// Connects to `to` (from `source`, if given), runs the protocol until the connection has ended, and returns
/// the protocol.
///
/// # Errors
/// Connecting failed, or the protocol has failed.
pub fn call<P: Protocol>(
    protocol: P,
    source: Option<SocketAddr>,
    to: SocketAddr,
) -> anyhow::Result<P> {
    let mut this = Loop::new(protocol, Some(1))?;
    let id = this.channel.create_id()?;
    id.resolve_addr(source, to, TIMEOUT)?;
    this.run()
        .with_context(|| format!("no connection to {to}"))??;
    Ok(this.protocol)
}

/// Listens on `addr`, and runs the protocol for each connection: without end, or until `limit` connections
/// have ended. A failed connection is reported and does not affect the others. Returns the protocol.
///
/// # Errors
/// Listening failed, or the last connection has failed.
pub fn serve<P: Protocol>(protocol: P, addr: SocketAddr, limit: Option<u32>) -> anyhow::Result<P> {
    let mut this = Loop::new(protocol, limit)?;
    let mut listener = this.channel.create_id()?;
    listener.bind(addr)?;
    let listener = listener.listen(BACKLOG)?;
    let addr = listener.local_addr().context("the listener has no port")?;
    this.protocol.tell(Step::Listening(addr.port()));
    this.run()??;
    Ok(this.protocol)
}

struct Loop<P: Protocol> {
    // Fields are dropped in this order.
    peers: HashMap<QpId, Peer<P>>,
    /// Connection of the active side before establishment.
    making: Option<(InitQp<P>, P::State)>,
    device: Option<Device>,
    channel: EventChannel,
    protocol: P,
    /// Number of connections ended, and the limit.
    ended: u32,
    limit: Option<u32>,
    /// Outcome of the last connection.
    last: anyhow::Result<()>,
}

/// Resources shared by all connections, created once the device is known.
struct Device {
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    announced: CompletionChannel,
}

impl<P: Protocol> Loop<P> {
    fn new(protocol: P, limit: Option<u32>) -> anyhow::Result<Self> {
        Ok(Self {
            peers: HashMap::new(),
            making: None,
            device: None,
            channel: EventChannel::new()?,
            protocol,
            ended: 0,
            limit,
            last: Ok(()),
        })
    }

    /// Runs until the limit of ended connections. The outer error is of a connection attempt, the inner one
    /// the outcome of the last connection.
    fn run(&mut self) -> anyhow::Result<anyhow::Result<()>> {
        loop {
            // Arm before draining, so that no completion is missed.
            if let Some(device) = &self.device {
                device.arm()?;
            }
            self.take_completions()?;
            while let Some(event) = self.channel.try_next()? {
                self.on_event(event)?;
                self.take_completions()?;
            }
            if self.is_done() {
                return Ok(mem::replace(&mut self.last, Ok(())));
            }
            self.wait()?;
        }
    }

    fn is_done(&self) -> bool {
        self.limit.is_some_and(|limit| self.ended >= limit)
    }

    /// Blocks until an event or a completion is ready.
    fn wait(&self) -> anyhow::Result<()> {
        let mut fds = vec![PollFd::new(&self.channel, PollFlags::IN)];
        if let Some(device) = &self.device {
            fds.push(PollFd::new(&device.announced, PollFlags::IN));
        }
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(err) => Err(err).context("poll"),
        }
    }

    fn take_completions(&mut self) -> anyhow::Result<()> {
        // Over iWARP the peer's first message may complete before the event of the active side's connection is handled:
        // it stays in the queue until then.
        while let (Some(device), None) = (&mut self.device, &self.making) {
            let completions = device.cq.poll()?;
            if completions.len() == 0 {
                break;
            }
            for wc in completions {
                // Otherwise the queue pair is gone, because accepting a request failed.
                if let Some(peer) = self.peers.get_mut(&wc.qp_id()) {
                    peer.complete(wc, &mut self.protocol);
                }
            }
        }
        self.forget_ended();
        Ok(())
    }

    fn on_event(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::AddrResolved(id) => {
                self.protocol.tell(Step::AddrResolved);
                self.making = Some(self.open(&id)?);
                id.resolve_route(TIMEOUT)?;
            }
            Event::RouteResolved(id) => {
                self.protocol.tell(Step::RouteResolved);
                let (qp, _) = self
                    .making
                    .as_ref()
                    .context("the address is not resolved")?;
                id.connect(qp, &self.protocol.param())?;
            }
            Event::ConnectResponse(response) => {
                let (qp, state) = self.making.take().context("nothing was connected")?;
                let peer = Peer::established(response.establish(qp)?, state);
                self.begin(peer);
            }
            Event::ConnectRequest(request) => {
                self.protocol.tell(Step::Requested);
                if let Err(err) = self.accept(request) {
                    eprintln!("a peer cannot be served: {err:#}");
                }
            }
            Event::Established(id) => {
                let qp_id = self.find(id.key());
                // Otherwise the protocol has already failed.
                if let Some(peer) = qp_id.and_then(|qp_id| self.peers.remove(&qp_id)) {
                    match peer.join(id) {
                        Ok(peer) => self.begin(peer),
                        Err(err) => eprintln!("a peer cannot be served: {err:#}"),
                    }
                }
            }
            Event::Disconnected { key, .. } => {
                self.protocol.tell(Step::Disconnected);
                self.end(key, Ok(()));
            }
            Event::ConnectFailed { failure, .. } if self.making.is_some() => bail!(failure),
            Event::ConnectFailed { id, failure } => self.end(id.key(), Err(failure.into())),
            Event::AddrError { error, .. } | Event::RouteError { error, .. } => bail!(error),
            Event::DeviceRemoval(_) => bail!("the device has been removed"),
            // No action at the end of the timewait state.
            Event::TimewaitExit(_) => {}
            other => eprintln!("not understood: {other:?}"),
        }
        Ok(())
    }

    fn accept(&mut self, request: ConnectRequest) -> anyhow::Result<()> {
        let key = request.id().key();
        let (qp, state) = self.open(request.id())?;
        let qp = request.accept(qp, &self.protocol.param())?;
        let peer = Peer::accepted(key, qp, state);
        self.peers.insert(peer.qp().id(), peer);
        Ok(())
    }

    /// Creates a queue pair, and calls the protocol's `open`.
    fn open<Phase: HasDevice>(
        &mut self,
        id: &CmId<Phase>,
    ) -> anyhow::Result<(InitQp<P>, P::State)> {
        let context = id.context()?;
        let device = match &mut self.device {
            Some(device) => device,
            none => none.insert(Device::new(context.clone())?),
        };
        ensure!(
            device.context == context,
            "this program uses one device at a time"
        );
        let qp: QueuePair<verbs::Rc, Reset, P::Send, P::Receive> = device
            .pd
            .qp_builder(&device.cq, &device.cq)
            .max_send_wr(P::SEND_DEPTH)
            .max_recv_wr(P::RECEIVE_DEPTH)
            .create_for()?;
        let mut qp = id.init_qp(qp)?;
        let state = self.protocol.open(&device.pd, &mut qp)?;
        Ok((qp, state))
    }

    fn begin(&mut self, mut peer: Peer<P>) {
        self.protocol.tell(Step::Established);
        peer.begin(&mut self.protocol);
        self.peers.insert(peer.qp().id(), peer);
    }

    fn find(&self, key: Key) -> Option<QpId> {
        let mut peers = self.peers.iter();
        peers
            .find(|(_, peer)| peer.key == key)
            .map(|(&qp_id, _)| qp_id)
    }

    fn end(&mut self, key: Key, outcome: anyhow::Result<()>) {
        let qp_id = self.find(key);
        if let Some(peer) = qp_id.and_then(|qp_id| self.peers.get_mut(&qp_id)) {
            peer.end(outcome);
        }
    }

    /// Removes ended connections without requests in flight.
    fn forget_ended(&mut self) {
        let gone = |(&qp_id, peer): (&QpId, &Peer<P>)| peer.is_gone().then_some(qp_id);
        let gone: Vec<QpId> = self.peers.iter().filter_map(gone).collect();
        for qp_id in gone {
            let Some(peer) = self.peers.remove(&qp_id) else {
                continue;
            };
            let outcome = peer.outcome(&mut self.protocol);
            self.ended += 1;
            match outcome {
                Err(err) if !self.is_done() => eprintln!("a connection has failed: {err:#}"),
                last => self.last = last,
            }
        }
    }
}

impl Device {
    fn new(context: Context) -> anyhow::Result<Self> {
        let pd = context.alloc_pd()?;
        let announced = context.create_comp_channel()?;
        let cq = context
            .cq_builder(CQ_ENTRIES)
            .channel(&announced, CqKey::default())
            .create()?;
        let device = Self {
            context,
            pd,
            cq,
            announced,
        };
        device.arm()?;
        Ok(device)
    }

    /// Arms the completion queue for the next completion.
    fn arm(&self) -> anyhow::Result<()> {
        while self.announced.try_next()?.is_some() {}
        Ok(self.cq.req_notify(Notify::Next)?)
    }
}
