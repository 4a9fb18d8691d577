//! Keepalive probes.

use std::time::Duration;

/// State of the keepalive probe.
#[derive(Debug)]
pub(super) struct Probes {
    after: Option<Duration>,
    /// Time of the last received frame or posted probe.
    last_rx: Duration,
    posted: bool,
}

impl Probes {
    pub(super) fn new(after: Option<Duration>) -> Self {
        Self {
            after,
            last_rx: Duration::ZERO,
            posted: false,
        }
    }

    pub(super) fn reset(&mut self) {
        self.posted = false;
    }

    pub(super) fn frame_received(&mut self, now: Duration) {
        self.last_rx = now;
    }

    /// Whether to post a probe, because it is due or `wanted`. At most one is in flight.
    pub(super) fn post(&mut self, now: Duration, wanted: bool) -> bool {
        let due = wanted && !self.posted || self.is_due(now);
        if due {
            self.last_rx = now;
            self.posted = true;
        }
        due
    }

    /// Whether the keepalive interval has elapsed.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.deadline().is_some_and(|at| at <= now)
    }

    pub(super) fn awaits_device(&self) -> bool {
        self.posted
    }

    pub(super) fn completed(&mut self) {
        self.posted = false;
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        let after = self.after.filter(|_| !self.posted)?;
        Some(self.last_rx.saturating_add(after))
    }
}
