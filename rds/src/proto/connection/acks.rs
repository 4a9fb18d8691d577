//! What the peer is to be told of what has arrived.

use std::time::Duration;

/// The acknowledgement that is due.
#[derive(Debug)]
pub(super) struct Acks {
    /// The number of the last message that was handled; 0 for none.
    handled: u64,
    owed: bool,
    /// A frame with nothing but an acknowledgement is posted: there is never more than one.
    posted: bool,
    /// When to acknowledge unasked.
    unasked_at: Option<Duration>,
    patience: Option<Duration>,
}

impl Acks {
    pub(super) fn new(patience: Option<Duration>) -> Self {
        Self {
            handled: 0,
            owed: false,
            posted: false,
            unasked_at: None,
            patience,
        }
    }

    pub(super) fn reset(&mut self) {
        *self = Self::new(self.patience);
    }

    pub(super) fn handled(&mut self, now: Duration, sequence: u64, asked: bool) {
        self.handled = sequence;
        self.owed |= asked;
        if self.unasked_at.is_none() {
            self.unasked_at = self.patience.map(|patience| now + patience);
        }
    }

    /// What a frame that is about to be posted says: nothing is owed any more.
    pub(super) fn carry(&mut self) -> u64 {
        self.owed = false;
        self.unasked_at = None;
        self.handled
    }

    /// Whether the peer has asked.
    pub(super) fn is_owed(&self) -> bool {
        self.owed
    }

    /// Whether a frame of its own is due.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.owed || self.unasked_at.is_some_and(|at| at <= now)
    }

    /// What a frame of its own says, if one is due.
    pub(super) fn alone(&mut self, now: Duration) -> Option<u64> {
        if !self.is_due(now) {
            return None;
        }
        if self.posted {
            self.owed = true;
            self.unasked_at = None;
            return None;
        }
        self.posted = true;
        Some(self.carry())
    }

    /// Whether another frame is due when the one that is posted has completed.
    pub(super) fn awaits_device(&self) -> bool {
        self.posted && self.owed
    }

    pub(super) fn completed(&mut self) {
        self.posted = false;
    }

    /// When [`alone`](Self::alone) has to be asked again, if nothing happens before.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.unasked_at
    }
}
