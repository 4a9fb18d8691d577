//! Objects shared by the queue pairs of a device.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{
    completion::Completion,
    cq::{Armed, CompletionQueue, Pushed},
    event::Event,
    ids::{CqId, PdId, SrqId, XrcdId},
    keys::KeyTable,
    late::LateAccess,
    memory::{HostRange, Memory},
    packet::Content,
    psn::Psn,
    request::{RecvRequest, Sge},
    srq::SharedReceiveQueue,
    transfer,
};
use crate::{
    adversary::{Adversary, Rule},
    seed::Seed,
};

/// One event without a completion in this number of requests for a notification, by an adversary.
const EMPTY_EVENTS: u64 = 8;

/// The oldest receives of a shared queue, one of which is taken by an adversary.
const MAX_OVERTAKEN: usize = 4;

/// Subject of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// Bytes of peers' writes that an adversary writes late: before replies at the same time.
    Late,
    /// Retransmission or RNR timer of a queue pair.
    Qp(u32),
    /// Moderation timer of a completion queue.
    Cq(CqId),
}

/// Objects shared by the queue pairs of a device.
#[derive(Debug)]
pub(super) struct Resources {
    pub(super) pds: BTreeSet<PdId>,
    /// Numbers of destroyed protection domains, reused from the end: the kernel also reuses handles.
    pub(super) free_pds: Vec<PdId>,
    pub(super) keys: KeyTable,
    pub(super) cqs: BTreeMap<CqId, CompletionQueue>,
    pub(super) srqs: BTreeMap<SrqId, SharedReceiveQueue>,
    pub(super) xrcds: BTreeSet<XrcdId>,
    /// Shared receive queues for extended connections, by number.
    pub(super) xrc_srqs: BTreeMap<u32, SrqId>,
    pub(super) events: VecDeque<Event>,
    pub(super) timers: BinaryHeap<Reverse<(Duration, Timer)>>,
    /// Decisions of the device.
    pub(super) adversary: Arc<Adversary>,
    /// Bytes that are not in the memory yet.
    pub(super) late: LateAccess,
    /// Overrun completion queues with queue pairs still to be failed.
    pub(super) overrun: Vec<CqId>,
    /// Number of the next packet of a new queue pair of reliable datagrams: peers know the packets of earlier ones.
    pub(super) next_datagram: Psn,
    /// Number of the latest connection of an initiator.
    session: u32,
    /// Buffer of [`Context::scatter`], reused so that packets cause no allocation.
    ranges: Vec<HostRange>,
}

/// Objects of a peer's request: where memory is checked, messages are received, and receives complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) pd: PdId,
    /// Domain of the receives: the shared queue's, which may differ from the queue pair's.
    pub(super) recv_pd: PdId,
    /// Shared receive queue, in place of the queue pair's own.
    pub(super) srq: Option<SrqId>,
    pub(super) cq: CqId,
}

/// Environment of a queue pair's methods.
pub(super) struct Context<'a> {
    pub(super) now: Duration,
    pub(super) resources: &'a mut Resources,
    pub(super) memory: &'a mut dyn Memory,
}

impl Resources {
    /// Creates the objects of a new device, whose keys of memory are those of a seed.
    pub(super) fn new(seed: &Seed) -> Self {
        Self {
            pds: BTreeSet::new(),
            free_pds: Vec::new(),
            keys: KeyTable::new(seed),
            cqs: BTreeMap::new(),
            srqs: BTreeMap::new(),
            xrcds: BTreeSet::new(),
            xrc_srqs: BTreeMap::new(),
            events: VecDeque::new(),
            timers: BinaryHeap::new(),
            adversary: Arc::default(),
            late: LateAccess::default(),
            overrun: Vec::new(),
            next_datagram: Psn::default(),
            session: 0,
            ranges: Vec::new(),
        }
    }

    /// Number of a new connection of an initiator: later than all of the device's.
    pub(super) fn next_session(&mut self) -> u32 {
        self.session = self.session.wrapping_add(1);
        self.session
    }

    /// Adds a completion to a queue, with the current time.
    pub(super) fn complete(
        &mut self,
        cq: CqId,
        mut completion: Completion,
        solicited: bool,
        now: Duration,
    ) {
        let Some(queue) = self.cqs.get_mut(&cq) else {
            return;
        };
        completion.time = now;
        if !self.adversary.is_kind() {
            let times = (now, self.late.completes_at(completion.qp));
            if let Some(at) = queue.withhold(completion, solicited, times, &self.adversary) {
                self.timers.push(Reverse((at, Timer::Cq(cq))));
                return;
            }
        }
        self.publish(cq, (completion, solicited), now);
    }

    /// Makes a completion visible.
    fn publish(&mut self, cq: CqId, (completion, solicited): (Completion, bool), now: Duration) {
        let Some(queue) = self.cqs.get_mut(&cq) else {
            return;
        };
        match queue.push(completion, solicited, now) {
            Pushed::Quiet => {}
            Pushed::Notify => self.events.push_back(Event::Completion(cq)),
            Pushed::NotifyAt(at) => self.timers.push(Reverse((at, Timer::Cq(cq)))),
            Pushed::Overrun => {
                self.events.push_back(Event::CqError(cq));
                self.overrun.push(cq);
            }
        }
    }

    /// Processes the timer of a completion queue: makes withheld completions visible, and notifies the program.
    pub(super) fn expire_cq(&mut self, id: CqId, now: Duration) {
        let Some(cq) = self.cqs.get_mut(&id) else {
            return;
        };
        let withheld = cq.take_withheld(now);
        if cq.is_due(now) {
            self.events.push_back(Event::Completion(id));
        }
        for completion in withheld {
            self.publish(id, completion, now);
        }
    }

    /// Arms a completion queue. An adversary may raise an event without a completion.
    pub(super) fn arm(&mut self, id: CqId, wish: Armed) {
        if let Some(cq) = self.cqs.get_mut(&id) {
            cq.arm(wish);
            if self.adversary.choose(Rule::Coalesced, EMPTY_EVENTS) == 1 {
                cq.disarm();
                self.events.push_back(Event::Completion(id));
            }
        }
    }

    /// Removes the completions of a queue pair that have not been polled, and frees their slots of shared queues.
    pub(super) fn remove_completions(&mut self, cq: CqId, qp: u32) {
        let removed = self.cqs.get_mut(&cq).map(|cq| cq.remove(qp));
        for srq in removed.into_iter().flatten() {
            self.free_shared_slot(srq);
        }
    }

    /// Frees a slot of a shared receive queue: the completion of its receive has been polled or removed.
    pub(super) fn free_shared_slot(&mut self, srq: SrqId) {
        if let Some(srq) = self.srqs.get_mut(&srq) {
            srq.occupied = srq.occupied.saturating_sub(1);
        }
    }

    /// Domain of a shared receive queue.
    pub(super) fn domain_of(&self, srq: SrqId) -> Option<PdId> {
        Some(self.srqs.get(&srq)?.pd)
    }

    /// Takes the oldest receive of a shared queue. An adversary takes one of the four oldest.
    pub(super) fn take_shared(&mut self, id: SrqId) -> Option<RecvRequest> {
        let srq = self.srqs.get_mut(&id)?;
        let count = srq.receives.len().clamp(1, MAX_OVERTAKEN);
        let index = self.adversary.choose(Rule::Srq, count as u64);
        let (receive, below) = srq.take(usize::try_from(index).unwrap_or(0));
        if below {
            self.events.push_back(Event::SrqLimit(id));
        }
        receive
    }
}

impl Context<'_> {
    /// Copies a payload to a range of a list. Returns false if a key does not allow the access.
    pub(super) fn scatter(
        &mut self,
        pd: PdId,
        sges: &[Sge],
        offset: u64,
        from: Content<'_>,
    ) -> bool {
        let mut ranges = std::mem::take(&mut self.resources.ranges);
        ranges.clear();
        let (keys, range) = (&self.resources.keys, (offset, from.len() as u64));
        let allowed = transfer::resolve(keys, pd, sges, range, true, &mut ranges);
        if allowed {
            transfer::scatter(self.memory, &ranges, from);
        }
        self.resources.ranges = ranges;
        allowed
    }
}
