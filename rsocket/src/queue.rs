//! A completion queue with at most one requested event.

use std::io;

use verbs::{
    CompletionQueue,
    cq::{Completions, Notify},
};

/// A completion queue with event notification.
#[derive(Debug)]
pub(crate) struct Queue {
    cq: CompletionQueue,
    /// An event has been requested and not been taken.
    armed: bool,
}

impl Queue {
    pub(crate) fn new(cq: CompletionQueue) -> Self {
        Self { cq, armed: false }
    }

    pub(crate) fn poll(&mut self) -> io::Result<Completions<'_>> {
        Ok(self.cq.poll()?)
    }

    /// Requests an event, unless one is outstanding: its arrival makes the channel readable all the same.
    pub(crate) fn arm(&mut self) -> verbs::Result<()> {
        if !self.armed {
            self.cq.req_notify(Notify::Next)?;
            self.armed = true;
        }
        Ok(())
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.armed
    }

    /// Records that the event has been taken.
    pub(crate) fn event_taken(&mut self) {
        self.armed = false;
    }
}
