//! A completion queue, and whether it will tell of the next completion.

use std::io;

use verbs::{CompletionQueue, Completions, Notify};

/// A completion queue that is asked for events.
#[derive(Debug)]
pub(crate) struct Queue {
    cq: CompletionQueue,
    /// An event has been asked for, and not been taken.
    armed: bool,
    /// That event has come, or is about to.
    event_due: bool,
}

impl Queue {
    pub(crate) fn new(cq: CompletionQueue) -> Self {
        Self {
            cq,
            armed: false,
            event_due: false,
        }
    }

    /// What has completed. Whoever finds something says so by [`came`](Self::came).
    pub(crate) fn poll(&mut self) -> io::Result<Completions<'_>> {
        Ok(self.cq.poll()?)
    }

    /// Something had completed.
    pub(crate) fn came(&mut self) {
        self.event_due = self.armed;
    }

    /// Asks for an event, unless one has been asked for.
    pub(crate) fn arm(&mut self) -> io::Result<()> {
        if !self.armed {
            self.cq.req_notify(Notify::Next)?;
            self.armed = true;
        }
        Ok(())
    }

    /// Whether an event has been asked for, and not been taken.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed
    }

    /// Whether an event has come, or is about to.
    pub(crate) fn is_event_due(&self) -> bool {
        self.event_due
    }

    /// Its event has been taken.
    pub(crate) fn event_taken(&mut self) {
        self.armed = false;
        self.event_due = false;
    }
}
