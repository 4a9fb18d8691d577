//! Entries of a completion queue reserved by other queues.

use std::sync::Arc;

use super::queue::{CqHandle, CqInner, Queue};
use crate::error::Result;

impl CqHandle {
    /// Reserves entries, on behalf of `call`.
    pub(crate) fn reserve(&self, call: &'static str, entries: u32) -> Result<Reservation> {
        self.check_failure(call)?;
        self.account().reserve(call, entries)?;
        Ok(Reservation {
            cq: self.share(),
            entries,
            unreaped: 0,
        })
    }
}

/// Entries of a completion queue reserved by another queue, until dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    cq: Arc<CqInner>,
    entries: u32,
    /// The number of reserved entries possibly still in use at the drop.
    pub(crate) unreaped: u32,
}

impl Reservation {
    /// The number of entries.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// See [`Queue::discard_completions`].
    pub(crate) fn discard_completions(&self) -> bool {
        self.cq.discard_completions()
    }

    /// The completion queue of the entries.
    pub(crate) fn queue(&self) -> Queue {
        Queue::of(&self.cq)
    }

    /// Reserves more entries, for completions possibly left in the queue when its queue pair is
    /// reset by `call`. The result releases the entries when dropped, unless kept: then, when the queue
    /// has been found empty.
    pub(crate) fn more_for_stale(&self, call: &'static str, entries: u32) -> Result<StaleEntries> {
        self.cq.account().reserve(call, entries)?;
        Ok(StaleEntries {
            cq: Arc::clone(&self.cq),
            entries,
        })
    }
}

/// See [`Reservation::more_for_stale`].
#[derive(Debug)]
pub(crate) struct StaleEntries {
    cq: Arc<CqInner>,
    entries: u32,
}

impl StaleEntries {
    pub(crate) fn keep(mut self) {
        self.cq.account().release(self.entries, self.entries);
        self.entries = 0;
    }
}

impl Drop for StaleEntries {
    fn drop(&mut self) {
        self.cq.account().release(self.entries, 0);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.cq.account().release(self.entries, self.unreaped);
    }
}
