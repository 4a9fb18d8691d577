//! A completion queue with the state of its event requests.

use std::io;

use verbs::{
    CompletionQueue,
    cq::{Completions, Notify},
};

/// A completion queue with event notification.
#[derive(Debug)]
pub(crate) struct Queue {
    cq: CompletionQueue,
    arming: Arming,
}

/// State of the requested event.
#[derive(Debug, Default)]
struct Arming {
    /// An event has been requested and not been taken.
    armed: bool,
    /// The event is in the channel or imminent: a completion followed the request.
    event_due: bool,
}

impl Arming {
    fn completed(&mut self) {
        self.event_due = self.armed;
    }

    fn armed(&mut self) {
        self.armed = true;
    }

    fn taken(&mut self) {
        *self = Self::default();
    }
}

impl Queue {
    pub(crate) fn new(cq: CompletionQueue) -> Self {
        Self {
            cq,
            arming: Arming::default(),
        }
    }

    /// Polls for completions. After a completion, the caller calls [`came`](Self::came).
    pub(crate) fn poll(&mut self) -> io::Result<Completions<'_>> {
        Ok(self.cq.poll()?)
    }

    /// Records that a poll has found a completion.
    pub(crate) fn came(&mut self) {
        self.arming.completed();
    }

    /// Requests an event, unless one is outstanding.
    pub(crate) fn arm(&mut self) -> io::Result<()> {
        if !self.arming.armed {
            self.cq.req_notify(Notify::Next)?;
            self.arming.armed();
        }
        Ok(())
    }

    /// Whether an event has been requested and not been taken.
    pub(crate) fn is_armed(&self) -> bool {
        self.arming.armed
    }

    /// Whether an event is in the channel or imminent.
    pub(crate) fn is_event_due(&self) -> bool {
        self.arming.event_due
    }

    /// Records that the event has been taken.
    pub(crate) fn event_taken(&mut self) {
        self.arming.taken();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event left in the channel would wake the next sleeper spuriously, and the queue would not be armed
    /// again.
    #[test]
    fn event_after_arming_and_completion_is_due_until_taken() {
        let mut arming = Arming::default();
        let state = |arming: &Arming| (arming.armed, arming.event_due);
        arming.completed();
        assert_eq!(state(&arming), (false, false), "no event was requested");
        arming.armed();
        assert_eq!(state(&arming), (true, false), "nothing has completed");
        arming.completed();
        arming.completed();
        assert_eq!(state(&arming), (true, true));
        arming.armed();
        assert_eq!(state(&arming), (true, true));
        arming.taken();
        assert_eq!(state(&arming), (false, false));
        arming.completed();
        assert_eq!(state(&arming), (false, false));
    }
}
