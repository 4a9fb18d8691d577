//! What a queue pair is attached to.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{addr::Gid, completion_counter::CompletionCounter};

/// What a queue pair is attached to.
#[derive(Debug, Default)]
pub(super) struct Attached(Mutex<Vec<Attachment>>);

#[derive(Debug)]
pub(super) enum Attachment {
    /// The device does not let go of the queue pair before it has been detached from each group.
    Group(Gid, u16),
    /// It does not let go of the counter before the queue pair has been destroyed.
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

    /// Forgets the groups, and returns them.
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
