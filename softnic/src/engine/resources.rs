//! Objects shared by the queue pairs of a device.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap, VecDeque},
    time::Duration,
};

use super::{
    completion::Completion,
    cq::{CompletionQueue, Pushed},
    event::Event,
    ids::{CqId, PdId, SrqId, XrcdId},
    keys::KeyTable,
    memory::Memory,
    request::{RecvRequest, Sge},
    srq::SharedReceiveQueue,
    transfer::{self, Piece},
};

/// Subject of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// Retransmission or RNR timer of a queue pair.
    Qp(u32),
    /// Moderation timer of a completion queue.
    Cq(CqId),
}

/// Objects shared by the queue pairs of a device.
#[derive(Debug, Default)]
pub(super) struct Resources {
    pub(super) pds: BTreeSet<PdId>,
    pub(super) keys: KeyTable,
    pub(super) cqs: HashMap<CqId, CompletionQueue>,
    pub(super) srqs: HashMap<SrqId, SharedReceiveQueue>,
    pub(super) xrcds: BTreeSet<XrcdId>,
    /// Shared receive queues for extended connections, by number.
    pub(super) xrc_srqs: HashMap<u32, SrqId>,
    pub(super) events: VecDeque<Event>,
    pub(super) timers: BinaryHeap<Reverse<(Duration, Timer)>>,
    /// Overrun completion queues with queue pairs still to be failed.
    pub(super) overrun: Vec<CqId>,
    /// Buffer of [`Context::with_pieces`], reused so that packets cause no allocation.
    pieces: Vec<Piece>,
}

/// Objects of a peer's request: where memory is checked, messages are received, and receives complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) pd: PdId,
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

    /// Takes the oldest receive of a shared queue.
    pub(super) fn take_shared(&mut self, id: SrqId) -> Option<RecvRequest> {
        let (taken, below) = self.srqs.get_mut(&id)?.take();
        if below {
            self.events.push_back(Event::SrqLimit(id));
        }
        taken
    }
}

impl Context<'_> {
    /// Resolves a range of a list, and calls `act` with the memory; `None` if a key does not allow the access.
    pub(super) fn with_pieces<T>(
        &mut self,
        pd: PdId,
        sges: &[Sge],
        range: (u64, u64),
        writes: bool,
        act: impl FnOnce(&mut dyn Memory, &[Piece]) -> T,
    ) -> Option<T> {
        let mut pieces = std::mem::take(&mut self.resources.pieces);
        pieces.clear();
        let keys = &self.resources.keys;
        let allowed = transfer::resolve(keys, pd, sges, range, writes, &mut pieces);
        let result = allowed.then(|| act(self.memory, &pieces));
        self.resources.pieces = pieces;
        result
    }

    /// Copies bytes to a range of a list. Returns false if a key does not allow the access.
    pub(super) fn scatter(&mut self, pd: PdId, sges: &[Sge], offset: u64, bytes: &[u8]) -> bool {
        let range = (offset, bytes.len() as u64);
        let done = self.with_pieces(pd, sges, range, true, |memory, pieces| {
            transfer::scatter(memory, pieces, bytes);
        });
        done.is_some()
    }
}
