//! What the peer is to be told of what has arrived.

use std::time::Duration;

/// The acknowledgement that is due.
#[derive(Debug)]
pub(super) struct Acks {
    /// The number of the last message that was handled; 0 for none.
    handled: u64,
    requested: bool,
    /// A frame with nothing but an acknowledgement is posted: there is never more than one.
    posted: bool,
    /// When to acknowledge unasked.
    delayed_ack_at: Option<Duration>,
    delay: Option<Duration>,
}

impl Acks {
    pub(super) fn new(delay: Option<Duration>) -> Self {
        Self {
            handled: 0,
            requested: false,
            posted: false,
            delayed_ack_at: None,
            delay,
        }
    }

    pub(super) fn reset(&mut self) {
        *self = Self::new(self.delay);
    }

    pub(super) fn handled(&mut self, now: Duration, sequence: u64, asked: bool) {
        self.handled = sequence;
        self.requested |= asked;
        if self.delayed_ack_at.is_none() {
            self.delayed_ack_at = self.delay.map(|delay| now + delay);
        }
    }

    /// What a frame that is about to be posted says: nothing is requested any more.
    pub(super) fn carry(&mut self) -> u64 {
        self.requested = false;
        self.delayed_ack_at = None;
        self.handled
    }

    /// Whether the peer has asked.
    pub(super) fn is_requested(&self) -> bool {
        self.requested
    }

    /// Whether a frame of its own is due.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.requested || self.delayed_ack_at.is_some_and(|at| at <= now)
    }

    /// What a frame of its own says, if one is due.
    pub(super) fn alone(&mut self, now: Duration) -> Option<u64> {
        if !self.is_due(now) {
            return None;
        }
        if self.posted {
            self.requested = true;
            self.delayed_ack_at = None;
            return None;
        }
        self.posted = true;
        Some(self.carry())
    }

    /// Whether another frame is due when the one that is posted has completed.
    pub(super) fn awaits_device(&self) -> bool {
        self.posted && self.requested
    }

    pub(super) fn completed(&mut self) {
        self.posted = false;
    }

    /// When [`alone`](Self::alone) has to be asked again, if nothing happens before.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.delayed_ack_at
    }
}
