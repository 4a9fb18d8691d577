//! Objects of a device that all of its queue pairs share.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap, VecDeque},
    time::Duration,
};

use super::{
    completion::Completion,
    cq::{CompletionQueue, Pushed},
    event::Event,
    ids::{CqId, PdId, SrqId},
    keys::KeyTable,
    memory::Memory,
    request::{RecvRequest, Sge},
    srq::SharedReceiveQueue,
    transfer::{self, Piece},
};

/// Subject of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A queue pair's retry or RNR timer.
    Qp(u32),
    /// A completion queue's moderation.
    Cq(CqId),
}

/// Objects of a device that all of its queue pairs share.
#[derive(Debug, Default)]
pub(super) struct Resources {
    pub(super) pds: BTreeSet<PdId>,
    pub(super) keys: KeyTable,
    pub(super) cqs: HashMap<CqId, CompletionQueue>,
    pub(super) srqs: HashMap<SrqId, SharedReceiveQueue>,
    pub(super) events: VecDeque<Event>,
    pub(super) timers: BinaryHeap<Reverse<(Duration, Timer)>>,
    /// Completion queues that were full; their queue pairs are to fail.
    pub(super) overrun: Vec<CqId>,
    /// Memory of [`Context::with_pieces`], kept so that packets allocate nothing.
    pieces: Vec<Piece>,
}

/// The surroundings of a queue pair while it does something.
pub(super) struct Context<'a> {
    pub(super) now: Duration,
    pub(super) resources: &'a mut Resources,
    pub(super) memory: &'a mut dyn Memory,
}

impl Resources {
    /// Adds a completion to its queue.
    pub(super) fn complete(
        &mut self,
        cq: CqId,
        completion: Completion,
        solicited: bool,
        now: Duration,
    ) {
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
    /// Resolves a part of a list and hands the memory over; `None` if a key does not allow the access.
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

    /// Copies bytes to a part of a list; false if a key does not allow that.
    pub(super) fn scatter(&mut self, pd: PdId, sges: &[Sge], offset: u64, bytes: &[u8]) -> bool {
        let range = (offset, bytes.len() as u64);
        let done = self.with_pieces(pd, sges, range, true, |memory, pieces| {
            transfer::scatter(memory, pieces, bytes);
        });
        done.is_some()
    }
}
