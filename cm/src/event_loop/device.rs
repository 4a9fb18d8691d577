//! The device of an event loop: a protection domain, and completion queues for any number of connections.

use std::os::fd::{AsFd, BorrowedFd};

use verbs::{
    CompletionQueue, Context, ProtectionDomain, WorkCompletion,
    cq::{CompletionChannel, CqKey},
};

use super::Failure;

/// Entries of the first completion queue. Each further one has twice as many, up to [`MAX_ENTRIES`], so that a loop
/// with few connections locks little memory, and one with many has few queues.
const FIRST_ENTRIES: u32 = 64;

/// Maximum number of entries of a completion queue, unless a connection needs more.
const MAX_ENTRIES: u32 = 4096;

/// Resources shared by all connections, created once the device is known.
pub(super) struct Device {
    pub(super) context: Context,
    pub(super) pd: ProtectionDomain,
    cqs: Vec<CompletionQueue>,
    /// Indices of queues that may have completions, or are not armed.
    ready: Vec<usize>,
    events: CompletionChannel,
}

impl Device {
    pub(super) fn new(context: Context) -> Result<Self, Failure> {
        Ok(Self {
            pd: context.alloc_pd()?,
            events: context.create_comp_channel()?,
            context,
            cqs: Vec::new(),
            ready: Vec::new(),
        })
    }

    /// Readable when a completion queue has completions.
    pub(super) fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// A completion queue with this number of free entries, if there is one.
    pub(super) fn cq_with(&self, entries: u32) -> Option<&CompletionQueue> {
        self.cqs.iter().find(|cq| cq.available() >= entries)
    }

    /// Creates one more completion queue, with at least this number of entries.
    pub(super) fn add_cq(&mut self, entries: u32) -> Result<(), Failure> {
        let index = self.cqs.len();
        let doubled = u32::try_from(index).ok().and_then(|n| 1_u32.checked_shl(n));
        let len = doubled.and_then(|factor| FIRST_ENTRIES.checked_mul(factor));
        let len = len.unwrap_or(MAX_ENTRIES).min(MAX_ENTRIES).max(entries);
        let create = |len| {
            let builder = self.context.cq_builder(len);
            builder.channel(&self.events, CqKey(index)).create()
        };
        let cq = match create(len) {
            // There may be memory for one connection.
            Err(_) if len > entries => create(entries)?,
            created => created?,
        };
        self.cqs.push(cq);
        self.ready.push(index);
        Ok(())
    }

    /// Has all completion queues polled by the next [`take`](Self::take): the entries of a dropped queue pair are free
    /// once its completion queue has been found empty.
    pub(super) fn poll_all(&mut self) {
        self.ready = (0..self.cqs.len()).collect();
    }

    /// Takes the pending events, of which there is one at most for each armed queue.
    pub(super) fn take_events(&mut self) -> Result<(), Failure> {
        for _ in &self.cqs {
            let Some(CqKey(index)) = self.events.try_next()? else {
                break;
            };
            if !self.ready.contains(&index) {
                self.ready.push(index);
            }
        }
        Ok(())
    }

    /// Takes all completions of queues with an event, and arms these queues.
    pub(super) fn take(&mut self, mut act: impl FnMut(WorkCompletion<'_>)) -> Result<(), Failure> {
        while let Some(&index) = self.ready.last() {
            while let Some(completions) = self.cqs[index].poll_or_arm()? {
                completions.for_each(&mut act);
            }
            self.ready.pop();
        }
        Ok(())
    }
}
