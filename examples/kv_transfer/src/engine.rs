//! The engine of a reader or a writer: peers on one completion queue, pages, and events.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use cm::{EndpointBuilder, SharedQueues};
use verbs::{CompletionQueue, ProtectionDomain, RemoteAccess, WorkCompletion};

use super::{
    options::Options,
    page::Pages,
    peer::{Peer, PeerId},
};

/// Interval of checks for deadlines and ended connections.
const TICK: Duration = Duration::from_millis(5);

/// A peer as one side knows it.
pub(crate) trait Side {
    type Event;

    fn peer(&self) -> &Peer;

    fn peer_mut(&mut self) -> &mut Peer;

    /// Handles deadlines and ended lanes, and posts pending requests.
    fn work(&mut self, options: &Options, pages: &Pages, events: &mut VecDeque<Self::Event>);

    /// Handles a completion of a lane.
    ///
    /// # Errors
    /// The peer has broken the protocol.
    fn complete(
        &mut self,
        lane: usize,
        wc: WorkCompletion<'_>,
        pages: &mut Pages,
        events: &mut VecDeque<Self::Event>,
    ) -> anyhow::Result<()>;

    /// Ends the leases of a peer whose lanes have ended.
    fn lost(self, reason: &str, pages: &mut Pages, events: &mut VecDeque<Self::Event>);
}

#[derive(Debug)]
pub(crate) struct Engine<S: Side> {
    // Queue pairs are dropped before the memory.
    pub(crate) peers: BTreeMap<PeerId, S>,
    pub(crate) pages: Pages,
    pub(crate) pd: ProtectionDomain,
    cq: CompletionQueue,
    pub(crate) options: Options,
    peer_count: u32,
    pub(crate) events: VecDeque<S::Event>,
}

impl<S: Side> Engine<S> {
    /// Registers `count` pages of `len` bytes on the first RDMA device.
    pub(crate) fn new(
        count: u32,
        len: u32,
        access: RemoteAccess,
        options: Options,
    ) -> anyhow::Result<Self> {
        let device = cm::devices()?
            .into_iter()
            .next()
            .context("there is no RDMA device")?;
        let pd = device.alloc_pd()?;
        let cq = device.cq_builder(options.entries()).waitable().create()?;
        let pages = Pages::new(&pd, count, len, access)?;
        Ok(Self {
            peers: BTreeMap::new(),
            pages,
            pd,
            cq,
            options,
            peer_count: 0,
            events: VecDeque::new(),
        })
    }

    pub(crate) fn builder(&self) -> EndpointBuilder<SharedQueues> {
        self.options.builder(&self.cq).pd(&self.pd)
    }

    pub(crate) fn next_id(&mut self) -> PeerId {
        self.peer_count += 1;
        PeerId(self.peer_count)
    }

    pub(crate) fn close_lane(&mut self, id: PeerId, lane: usize) {
        if let Some(side) = self.peers.get_mut(&id) {
            side.peer_mut().close(lane, "closed by this side");
        }
    }

    pub(crate) fn end(&mut self, id: PeerId) {
        if let Some(side) = self.peers.get_mut(&id) {
            side.peer_mut().end("ended by this side");
        }
    }

    /// Works for all peers until an event or until `timeout` has passed.
    ///
    /// # Errors
    /// The completion queue has failed.
    pub(crate) fn next_event(&mut self, timeout: Duration) -> anyhow::Result<Option<S::Event>> {
        let until = Instant::now() + timeout;
        loop {
            self.sweep();
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            let remaining = until.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Ok(None);
            }
            self.poll(remaining.min(TICK))?;
        }
    }

    fn poll(&mut self, timeout: Duration) -> anyhow::Result<()> {
        for wc in self.cq.wait(Some(timeout))? {
            let Some((id, lane)) = PeerId::of(&wc) else {
                continue;
            };
            let Some(side) = self.peers.get_mut(&id) else {
                continue;
            };
            if let Err(error) = side.complete(lane, wc, &mut self.pages, &mut self.events) {
                side.peer_mut().end(&format!("{error:#}"));
            }
        }
        Ok(())
    }

    fn sweep(&mut self) {
        for side in self.peers.values_mut() {
            side.work(&self.options, &self.pages, &mut self.events);
        }
        let all = self.peers.iter();
        let ended: Vec<(PeerId, String)> = all
            .filter_map(|(id, side)| Some((*id, side.peer().lost()?.to_owned())))
            .collect();
        for (id, reason) in ended {
            if let Some(side) = self.peers.remove(&id) {
                side.lost(&reason, &mut self.pages, &mut self.events);
            }
        }
    }
}
