//! Keepalive probes.

use std::time::Duration;

/// Time after which a probe without a completion fails the connection. The peer's device answers, but
/// its software posts no receives for the frames before the probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(60);

/// State of the keepalive probe.
#[derive(Debug)]
pub(super) struct Probes {
    after: Option<Duration>,
    /// Time of the last received frame or posted probe.
    last_rx: Duration,
    /// When the probe in flight was posted.
    posted: Option<Duration>,
}

impl Probes {
    pub(super) fn new(after: Option<Duration>) -> Self {
        Self {
            after,
            last_rx: Duration::ZERO,
            posted: None,
        }
    }

    pub(super) fn reset(&mut self) {
        self.posted = None;
    }

    pub(super) fn frame_received(&mut self, now: Duration) {
        self.last_rx = now;
    }

    /// Whether to post a probe, because it is due or `needs_signal`. At most one is in flight.
    pub(super) fn post(&mut self, now: Duration, needs_signal: bool) -> bool {
        let posts = needs_signal && self.posted.is_none() || self.is_due(now);
        if posts {
            self.last_rx = now;
            self.posted = Some(now);
        }
        posts
    }

    /// Whether the keepalive interval has elapsed.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.deadline().is_some_and(|at| at <= now)
    }

    pub(super) fn awaits_device(&self) -> bool {
        self.posted.is_some()
    }

    /// Time at which the probe in flight, if any, takes too long.
    pub(super) fn timeout(&self) -> Option<Duration> {
        Some(self.posted?.saturating_add(PROBE_TIMEOUT))
    }

    pub(super) fn completed(&mut self) {
        self.posted = None;
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        let after = self.after.filter(|_| self.posted.is_none())?;
        Some(self.last_rx.saturating_add(after))
    }
}
