//! Completions of a tag-matching queue.

use std::ops::Deref;

use ibverbs_sys::ibv_wc_flags as flag;

use super::{PendingOperation, TagEntry, TagMatchingQueue};
use crate::{
    cq::{WcOpcode, WcStatus, WorkCompletion},
    wr_id::QueueId,
};

/// An event of a [`TagMatchingQueue`], with its completion.
#[derive(Debug)]
#[must_use = "it may report a failure"]
pub struct TagCompletion<'p, RW> {
    /// The event.
    pub event: TagEvent<RW>,
    wc: WorkCompletion<'p>,
}

/// An event of a [`TagMatchingQueue`].
#[derive(Debug)]
pub enum TagEvent<RW> {
    /// A message arrived whose tag matches no buffer on the list. This untagged receive has the
    /// message, behind its [header](super::TagHeader).
    Unexpected(RW),
    /// A message without a tag arrived. This untagged receive has the message, with its header.
    NoTag(RW),
    /// An untagged receive has failed, or was flushed: the [status](WorkCompletion::status) has the
    /// reason.
    Failed(RW),
    /// A tagged buffer has failed, or was flushed: the [status](WorkCompletion::status) has the
    /// reason.
    EntryFailed(TagEntry, RW),
    /// A message arrived whose tag matches. Its data follow later, and the buffer still belongs to
    /// the queue.
    ///
    /// With the status [`TM_RNDV_INCOMPLETE`](WcStatus::TM_RNDV_INCOMPLETE) the data exceed the
    /// buffer, and only the headers will be written.
    Matched(TagEntry),
    /// The message of a tagged buffer is whole.
    Received {
        /// The buffer's name on the list. Other buffers may wait for the same tag.
        entry: TagEntry,
        /// The buffer.
        work: RW,
        /// Whether the buffer has only the headers of a rendezvous, because the data exceed the
        /// buffer. The program must then read the data.
        incomplete: bool,
    },
    /// A tagged buffer is on the list.
    Added(TagEntry),
    /// The operation that adds a tagged buffer has failed; the [status](WorkCompletion::status) has
    /// the reason. Whether the buffer is on the list is unknown, so the buffer stays with the
    /// queue.
    AddFailed(TagEntry),
    /// A tagged buffer has been removed, with its work.
    Removed(TagEntry, RW),
    /// A tagged buffer was not removed, usually (status [`TM_ERR`](WcStatus::TM_ERR)) because a
    /// message had arrived before. The message's completion returns the buffer.
    NotRemoved(TagEntry),
    /// The device knows how many messages were unexpected.
    Synced,
    /// A sync operation has failed; the [status](WorkCompletion::status) has the reason.
    SyncFailed,
}

impl<RW> TagCompletion<'_, RW> {
    /// `IBV_WC_TM_SYNC_REQ`—Whether the device matches no new tags until notified that the program
    /// has seen the unexpected messages, by [`sync`](TagMatchingQueue::sync) or another operation.
    #[doc(alias = "IBV_WC_TM_SYNC_REQ")]
    pub fn sync_requested(&self) -> bool {
        self.wc.flags() & flag::IBV_WC_TM_SYNC_REQ.0 != 0
    }

    /// `IBV_WC_TM_MATCH`—Whether this completion reports the match. A message complete at once has
    /// only one completion.
    #[doc(alias = "IBV_WC_TM_MATCH")]
    pub fn is_match(&self) -> bool {
        self.wc.flags() & flag::IBV_WC_TM_MATCH.0 != 0
    }
}

impl<'p, RW> Deref for TagCompletion<'p, RW> {
    type Target = WorkCompletion<'p>;

    fn deref(&self) -> &WorkCompletion<'p> {
        &self.wc
    }
}

impl<RW: Send + 'static> TagMatchingQueue<RW> {
    /// Determines the event of a completion, and takes back the work returned to the program.
    ///
    /// From here on, an unexpected message counts as [seen](Self::unexpected) by the program. For
    /// tags, read [`tm_info`](crate::cq::ExtendedCompletion::tm_info) before converting an extended
    /// completion into a plain one.
    ///
    /// # Errors
    /// The completion belongs to another queue; the error returns the completion.
    pub fn complete<'p>(
        &mut self,
        wc: WorkCompletion<'p>,
    ) -> Result<TagCompletion<'p, RW>, WorkCompletion<'p>> {
        let id = wc.wr_id();
        let event = if id.queue() == self.srq.inner.queue {
            self.untagged(&wc)
        } else if id.queue() == QueueId::receive(self.id.id()) {
            self.tagged(&wc)
        } else if id.queue() == QueueId::send(self.id.id()) {
            self.operated(&wc)
        } else {
            None
        };
        match event {
            Some(event) => Ok(TagCompletion { event, wc }),
            None => Err(wc),
        }
    }

    fn untagged(&mut self, wc: &WorkCompletion<'_>) -> Option<TagEvent<RW>> {
        let work = self.srq.posted.take(wc.wr_id().sequence())?;
        Some(match (wc.status(), wc.opcode()) {
            (WcStatus::SUCCESS, Some(WcOpcode::TM_NO_TAG)) => TagEvent::NoTag(work),
            (WcStatus::SUCCESS, _) => {
                self.unexpected = self.unexpected.wrapping_add(1);
                TagEvent::Unexpected(work)
            }
            _ => TagEvent::Failed(work),
        })
    }

    fn tagged(&mut self, wc: &WorkCompletion<'_>) -> Option<TagEvent<RW>> {
        let slot = wc.wr_id().sequence();
        let found = self.entries.get_mut(slot)?;
        // There is nothing to complete on a returned buffer.
        found.work.as_ref()?;
        let entry = TagEntry {
            slot,
            number: found.number,
        };
        let complete = wc.flags() & flag::IBV_WC_TM_DATA_VALID.0 != 0;
        match wc.status() {
            WcStatus::SUCCESS => {}
            WcStatus::TM_RNDV_INCOMPLETE => found.incomplete = true,
            // Nothing more will come.
            _ => return Some(TagEvent::EntryFailed(entry, self.take_work(slot)?)),
        }
        if !complete {
            return Some(TagEvent::Matched(entry));
        }
        let incomplete = found.incomplete;
        let work = self.take_work(slot)?;
        Some(TagEvent::Received {
            entry,
            work,
            incomplete,
        })
    }

    fn operated(&mut self, wc: &WorkCompletion<'_>) -> Option<TagEvent<RW>> {
        let succeeded = wc.status() == WcStatus::SUCCESS;
        let operation = self.operations.take(wc.wr_id().sequence())?;
        let (PendingOperation::Add(slot) | PendingOperation::Remove(slot)) = operation else {
            return Some(if succeeded {
                TagEvent::Synced
            } else {
                TagEvent::SyncFailed
            });
        };
        let found = self.entries.get_mut(slot)?;
        let entry = TagEntry {
            slot,
            number: found.number,
        };
        found.outstanding -= 1;
        let removes = matches!(operation, PendingOperation::Remove(_));
        if removes {
            found.removing = false;
        }
        let work = if removes && succeeded {
            self.take_work(slot)
        } else {
            self.free_if_done(slot);
            None
        };
        Some(match (removes, work) {
            (false, _) if succeeded => TagEvent::Added(entry),
            (false, _) => TagEvent::AddFailed(entry),
            (true, Some(work)) => TagEvent::Removed(entry, work),
            (true, None) => TagEvent::NotRemoved(entry),
        })
    }

    /// Takes the work of an entry after the device's last access.
    fn take_work(&mut self, slot: u32) -> Option<RW> {
        let work = self.entries.get_mut(slot)?.work.take();
        self.free_if_done(slot);
        work
    }

    /// Lets the slot be used again if nothing more will complete there.
    fn free_if_done(&mut self, slot: u32) {
        let done =
            |entry: &mut super::TagListEntry<RW>| entry.work.is_none() && entry.outstanding == 0;
        if self.entries.get_mut(slot).is_some_and(done) {
            drop(self.entries.take(slot));
        }
    }
}
