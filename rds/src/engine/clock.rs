//! Clock of an engine.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use rustix::{
    thread::ClockId,
    time::{Timespec, clock_gettime},
};

/// Monotonic time since an engine started.
///
/// By default, reads the kernel's coarse clock, updated every 1 to 10 ms: the protocol needs no
/// more, and reading the fine clock costs as much as a small message where it is a system call.
/// While a socket requests exact timestamps, reads the fine clock.
#[derive(Debug)]
pub(crate) struct Clock {
    epoch: Instant,
    /// `epoch` on the kernel's monotonic clock.
    start: Duration,
    /// Number of sockets with exact timestamps.
    exact: AtomicUsize,
}

impl Clock {
    /// Starts at zero.
    pub(super) fn start() -> Self {
        Self {
            epoch: Instant::now(),
            start: read(ClockId::Monotonic),
            exact: AtomicUsize::new(0),
        }
    }

    /// The current time.
    pub(crate) fn now(&self) -> Duration {
        let clock = match self.exact.load(Relaxed) {
            0 => ClockId::MonotonicCoarse,
            _ => ClockId::Monotonic,
        };
        // The last tick of the coarse clock may precede the start.
        read(clock).saturating_sub(self.start)
    }

    /// The start.
    pub(crate) fn epoch(&self) -> Instant {
        self.epoch
    }

    /// Counts a socket that enables or disables exact timestamps.
    pub(crate) fn count_exact(&self, wanted: bool) {
        if wanted {
            self.exact.fetch_add(1, Relaxed);
        } else {
            self.exact.fetch_sub(1, Relaxed);
        }
    }
}

fn read(clock: ClockId) -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    // Both clocks count from boot.
    let secs = u64::try_from(tv_sec).unwrap_or_default();
    Duration::new(secs, u32::try_from(tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    /// Longer than a tick of any kernel.
    const TICKS: Duration = Duration::from_millis(50);

    #[test]
    fn clock_is_monotonic_across_exactness_changes() {
        let began = Instant::now();
        let clock = Clock::start();
        let mut last = clock.now();
        for exact in [true, false] {
            sleep(TICKS);
            clock.count_exact(exact);
            let now = clock.now();
            assert!(now > last, "{now:?} after {last:?}");
            assert!(now <= began.elapsed());
            last = now;
        }
    }

    #[test]
    fn clock_exact_times_match_instant() {
        let begin = Instant::now();
        let clock = Clock::start();
        // `epoch` and `start` are read within this time.
        let apart = begin.elapsed();
        clock.count_exact(true);
        let before = Instant::now();
        let between = clock.epoch() + clock.now();
        assert!(between + apart >= before && between <= Instant::now() + apart);
        let (first, second) = (clock.now(), clock.now());
        assert!(first <= second);
    }
}
