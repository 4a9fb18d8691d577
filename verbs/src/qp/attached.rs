//! Objects attached to a queue pair.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{addr::Gid, completion_counter::CompletionCounter};

/// The attachments of a queue pair.
#[derive(Debug, Default)]
pub(super) struct Attached(Mutex<Vec<Attachment>>);

#[derive(Debug)]
pub(super) enum Attachment {
    /// A multicast group. The device destroys the queue pair only after its detachment from each
    /// group.
    Group(Gid, u16),
    /// A counter. The device destroys the counter only after the queue pair.
    Counter(#[expect(dead_code, reason = "held")] CompletionCounter),
}

impl Attachment {
    pub(super) fn is(&self, gid: Gid, lid: u16) -> bool {
        matches!(self, Self::Group(g, l) if (*g, *l) == (gid, lid))
    }
}

impl Attached {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Attachment>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The groups.
    pub(super) fn groups(&self) -> Vec<(Gid, u16)> {
        let attached = self.lock();
        let groups = attached.iter().filter_map(|to| match to {
            Attachment::Group(gid, lid) => Some((*gid, *lid)),
            Attachment::Counter(_) => None,
        });
        groups.collect()
    }

    /// Removes the groups, and returns them.
    pub(super) fn take_groups(&self) -> Vec<(Gid, u16)> {
        let mut groups = Vec::new();
        self.lock().retain(|to| match to {
            Attachment::Group(gid, lid) => {
                groups.push((*gid, *lid));
                false
            }
            Attachment::Counter(_) => true,
        });
        groups
    }

    /// Keeps a counter until the queue pair has been destroyed.
    pub(super) fn keep(&self, counter: CompletionCounter) {
        self.lock().push(Attachment::Counter(counter));
    }
}
