//! Completion queue entries reserved for the receives of a shared queue.

use std::{
    io, mem,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use crate::{
    cq::{CqHandle, Reservation},
    error::{Error, Result},
};

/// Entries of one completion queue, kept by the queue pairs with receives that complete there.
pub(crate) struct Entries {
    cq: CqHandle,
    /// The first reservation, and one for each growth of the shared queue.
    parts: Mutex<Vec<Reservation>>,
}

impl Entries {
    fn new(call: &'static str, cq: &CqHandle, entries: u32) -> Result<Arc<Self>> {
        let parts = Mutex::new(vec![cq.reserve(call, entries)?]);
        let cq = cq.clone();
        Ok(Arc::new(Self { cq, parts }))
    }

    fn discard_completions(&self) -> bool {
        let parts = self.parts.lock();
        let parts = parts.unwrap_or_else(PoisonError::into_inner);
        parts.first().is_none_or(Reservation::discard_completions)
    }

    /// Records the creation of a queue pair whose receives complete here.
    pub(crate) fn begin_use(&self) {
        self.use_all(None);
    }

    /// Records that each entry may hold a completion when released.
    fn use_all(&self, more: Option<Reservation>) {
        let parts = self.parts.lock();
        let mut parts = parts.unwrap_or_else(PoisonError::into_inner);
        parts.extend(more);
        for part in &mut *parts {
            part.unreaped = part.entries();
        }
    }
}

/// See the module.
pub(super) struct Books {
    max_wr: u32,
    /// The entries of each completion queue in use, by the queue's address.
    shared: Vec<(usize, Weak<Entries>)>,
    /// The entries of the completion queue given when the shared queue was made, if any: then all
    /// receives complete there.
    for_srq: Option<Arc<Entries>>,
    /// A failed resize may have left the shared queue without memory: no call but the destruction is made.
    failed: bool,
}

impl Books {
    /// For a queue of `max_wr` receives, with completions on the queue pairs' queues.
    pub(super) fn new(max_wr: u32) -> Self {
        Self {
            max_wr,
            shared: Vec::new(),
            for_srq: None,
            failed: false,
        }
    }

    /// For a queue of `max_wr` receives that complete in `cq`, with `extra` other completions.
    pub(super) fn on(call: &'static str, cq: &CqHandle, max_wr: u32, extra: u32) -> Result<Self> {
        Ok(Self {
            for_srq: Some(Entries::new(call, cq, max_wr.saturating_add(extra))?),
            ..Self::new(max_wr)
        })
    }

    /// Records a failed resize.
    pub(super) fn fail(&mut self) {
        self.failed = true;
    }

    /// Refuses `call` after a failed resize.
    pub(super) fn check_failure(&self, call: &'static str) -> Result<()> {
        if !self.failed {
            return Ok(());
        }
        let reason = "an earlier `ibv_modify_srq` failed to resize the queue, and may have left it without \
                      memory; drop the queue and its queue pairs, and create new ones";
        Err(Error::refused(call, io::ErrorKind::BrokenPipe, reason))
    }

    /// Records the creation of the queue.
    pub(super) fn created(self) -> Self {
        if let Some(for_srq) = &self.for_srq {
            for_srq.use_all(None);
        }
        self
    }

    /// Entries for a queue pair whose receives complete in `cq`, on behalf of `call`. If the queue pair is created, its
    /// [use](Entries::begin_use) begins.
    pub(super) fn reserve_on(&mut self, call: &'static str, cq: &CqHandle) -> Result<Arc<Entries>> {
        self.check_failure(call)?;
        if let Some(for_srq) = &self.for_srq {
            return Ok(Arc::clone(for_srq));
        }
        let address = cq.as_raw().addr();
        self.shared
            .retain(|(_, entries)| entries.strong_count() > 0);
        let found = self.shared.iter().find(|(other, _)| *other == address);
        if let Some(found) = found.and_then(|(_, entries)| entries.upgrade()) {
            return Ok(found);
        }
        let entries = Entries::new(call, cq, self.max_wr)?;
        self.shared.push((address, Arc::downgrade(&entries)));
        Ok(entries)
    }

    /// Reserves the additional entries for a queue of `max_wr` receives, on each completion queue.
    pub(super) fn reserve_for(&self, max_wr: u32) -> Result<Vec<(Arc<Entries>, Reservation)>> {
        let more = max_wr.saturating_sub(self.max_wr);
        if more == 0 {
            return Ok(Vec::new());
        }
        let shared = self
            .shared
            .iter()
            .filter_map(|(_, entries)| entries.upgrade());
        let all = shared.chain(self.for_srq.clone());
        all.map(|entries| {
            let part = entries.cq.reserve("ibv_modify_srq", more)?;
            Ok((entries, part))
        })
        .collect()
    }

    /// Records that the queue has `max_wr` receives now. After a decrease, earlier entries stay
    /// reserved: completions may be there.
    pub(super) fn resized(&mut self, max_wr: u32, more: Vec<(Arc<Entries>, Reservation)>) {
        for (entries, part) in more {
            entries.use_all(Some(part));
        }
        self.max_wr = self.max_wr.max(max_wr);
    }

    /// After the removal of the device, makes sure that its library copies no more messages for the
    /// queue. Completions of queue pairs were discarded with those. Returns whether the discarding
    /// is complete.
    pub(super) fn discard_completions(&self) -> bool {
        self.for_srq
            .as_ref()
            .is_none_or(|for_srq| for_srq.discard_completions())
    }

    /// Leaves everything reserved for good.
    pub(super) fn give_up(&mut self) {
        #[expect(clippy::mem_forget, reason = "completions may still come")]
        mem::forget(self.for_srq.take());
    }
}
