//! Acknowledgements of received messages.

use std::time::Duration;

/// The pending acknowledgement.
#[derive(Debug)]
pub(super) struct Acks {
    /// Sequence number of the last handled message; 0 for none.
    handled: u64,
    requested: bool,
    /// A pure acknowledgement is in flight, at most one.
    posted: bool,
    /// Time of the delayed acknowledgement.
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

    pub(super) fn handled(&mut self, now: Duration, sequence: u64, ack_required: bool) {
        self.handled = sequence;
        self.requested |= ack_required;
        if self.delayed_ack_at.is_none() {
            self.delayed_ack_at = self.delay.map(|delay| now.saturating_add(delay));
        }
    }

    /// The acknowledgement for a frame about to be posted; clears the request.
    pub(super) fn carry(&mut self) -> u64 {
        self.requested = false;
        self.delayed_ack_at = None;
        self.handled
    }

    /// Whether a pure acknowledgement is due.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.requested || self.delayed_ack_at.is_some_and(|at| at <= now)
    }

    /// The value of a pure acknowledgement, if one is due and none is in flight.
    pub(super) fn standalone(&mut self, now: Duration) -> Option<u64> {
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

    /// Whether another acknowledgement waits for the completion of the one in flight.
    pub(super) fn awaits_device(&self) -> bool {
        self.posted && self.requested
    }

    pub(super) fn completed(&mut self) {
        self.posted = false;
    }

    /// Time of the delayed acknowledgement.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.delayed_ack_at
    }
}
