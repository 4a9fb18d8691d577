//! What completes on a queue that matches tags.

use std::ops::Deref;

use ibverbs_sys::ibv_wc_flags as flag;

use super::{Operation, TagEntry, TagMatchingQueue};
use crate::{
    cq::{WcOpcode, WcStatus, WorkCompletion},
    wr_id::QueueId,
};

/// What has happened on a [`TagMatchingQueue`], with the completion that says so.
#[derive(Debug)]
#[must_use = "it may report a failure"]
pub struct TagCompletion<'p, RW> {
    /// What it was.
    pub event: TagEvent<RW>,
    wc: WorkCompletion<'p>,
}

/// What has happened on a [`TagMatchingQueue`].
#[derive(Debug)]
pub enum TagEvent<RW> {
    /// A message has come whose tag fits no buffer on the list. It is in this untagged receive,
    /// behind its [header](super::TagHeader).
    Unexpected(RW),
    /// A message without a tag has come. It is in this untagged receive, with its header.
    NoTag(RW),
    /// An untagged receive has failed, or was not used: the [status](WorkCompletion::status) says
    /// why.
    Failed(RW),
    /// A tagged buffer has failed, or was not used: the [status](WorkCompletion::status) says why.
    EntryFailed(TagEntry, RW),
    /// A message has come whose tag fits. Its data are still to come, and the buffer is still the
    /// device's.
    ///
    /// With the status [`TM_RNDV_INCOMPLETE`](WcStatus::TM_RNDV_INCOMPLETE) the data are more than
    /// the buffer can hold, and what comes are the headers.
    Matched(TagEntry),
    /// The message of a tagged buffer is whole.
    Received {
        /// The name that the buffer had on the list. Others may wait for the same tag.
        entry: TagEntry,
        /// The buffer.
        work: RW,
        /// Whether it is the headers of a rendezvous that are in the buffer, because the data are
        /// more than it can hold. It is for the program then to read them.
        incomplete: bool,
    },
    /// A tagged buffer is on the list.
    Added(TagEntry),
    /// The operation that adds a tagged buffer has failed, as the [status](WorkCompletion::status)
    /// says. Whether the buffer is on the list is unknown, so it stays with the queue.
    AddFailed(TagEntry),
    /// A tagged buffer has been removed, and this is it.
    Removed(TagEntry, RW),
    /// A tagged buffer was not removed, usually (status [`TM_ERR`](WcStatus::TM_ERR)) because a
    /// message had come before. It comes back with that.
    NotRemoved(TagEntry),
    /// The device knows how many messages were unexpected.
    Synced,
    /// The operation that tells the device has failed, as the [status](WorkCompletion::status)
    /// says.
    SyncFailed,
}

impl<RW> TagCompletion<'_, RW> {
    /// `IBV_WC_TM_SYNC_REQ`—Whether the device matches no new tags until it hears of the messages
    /// that were unexpected, by [`sync`](TagMatchingQueue::sync) or another operation.
    #[doc(alias = "IBV_WC_TM_SYNC_REQ")]
    pub fn sync_requested(&self) -> bool {
        self.wc.flags() & flag::IBV_WC_TM_SYNC_REQ.0 != 0
    }

    /// `IBV_WC_TM_MATCH`—Whether this is the completion that reports the match. A message that is
    /// whole at once has only one.
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
    /// Says what has happened, and takes back the work that is the program's again.
    ///
    /// A message that is unexpected counts as [known](Self::unexpected) to the program from here
    /// on. Where tags are wanted, ask for
    /// [`tm_info`](crate::ExtendedCompletion::tm_info) before making a plain completion of an
    /// extended one.
    ///
    /// # Errors
    /// The completion is not one of this queue; it is given back.
    pub fn complete<'p>(
        &mut self,
        wc: WorkCompletion<'p>,
    ) -> Result<TagCompletion<'p, RW>, WorkCompletion<'p>> {
        let id = wc.wr_id();
        let event = if id.queue() == self.srq.inner.queue {
            self.untagged(&wc)
        } else if id.queue() == QueueId::receive(self.id) {
            self.tagged(&wc)
        } else if id.queue() == QueueId::send(self.id) {
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
            (WcStatus::SUCCESS, WcOpcode::TM_NO_TAG) => TagEvent::NoTag(work),
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
        // There is nothing to complete on a buffer that has come back.
        found.work.as_ref()?;
        let entry = TagEntry {
            slot,
            number: found.number,
        };
        let whole = wc.flags() & flag::IBV_WC_TM_DATA_VALID.0 != 0;
        match wc.status() {
            WcStatus::SUCCESS => {}
            WcStatus::TM_RNDV_INCOMPLETE => found.incomplete = true,
            // Nothing more will come.
            _ => return Some(TagEvent::EntryFailed(entry, self.give_back(slot)?)),
        }
        if !whole {
            return Some(TagEvent::Matched(entry));
        }
        let incomplete = found.incomplete;
        let work = self.give_back(slot)?;
        Some(TagEvent::Received {
            entry,
            work,
            incomplete,
        })
    }

    fn operated(&mut self, wc: &WorkCompletion<'_>) -> Option<TagEvent<RW>> {
        let succeeded = wc.status() == WcStatus::SUCCESS;
        let operation = self.operations.take(wc.wr_id().sequence())?;
        let (Operation::Add(slot) | Operation::Remove(slot)) = operation else {
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
        let removes = matches!(operation, Operation::Remove(_));
        if removes {
            found.removing = false;
        }
        let work = if removes && succeeded {
            self.give_back(slot)
        } else {
            self.settle(slot);
            None
        };
        Some(match (removes, work) {
            (false, _) if succeeded => TagEvent::Added(entry),
            (false, _) => TagEvent::AddFailed(entry),
            (true, Some(work)) => TagEvent::Removed(entry, work),
            (true, None) => TagEvent::NotRemoved(entry),
        })
    }

    /// Takes the work of an entry, with which the device is done.
    fn give_back(&mut self, slot: u32) -> Option<RW> {
        let work = self.entries.get_mut(slot)?.work.take();
        self.settle(slot);
        work
    }

    /// Lets the slot be used again if nothing more will complete there.
    fn settle(&mut self, slot: u32) {
        let done = |entry: &mut super::Entry<RW>| entry.work.is_none() && entry.outstanding == 0;
        if self.entries.get_mut(slot).is_some_and(done) {
            drop(self.entries.take(slot));
        }
    }
}
