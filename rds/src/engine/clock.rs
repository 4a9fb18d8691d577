//! The time, as the protocol has it.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use rustix::{
    thread::ClockId,
    time::{Timespec, clock_gettime},
};

/// Counts from when an engine began.
///
/// It goes by the ticks of the kernel, which is some milliseconds: the protocol needs nothing finer, and
/// to ask for more costs as much as a small message where it takes the kernel. While somebody wants to
/// know when messages come, it is exact.
#[derive(Debug)]
pub(crate) struct Clock {
    epoch: Instant,
    /// The same by the kernel's monotonic clock.
    start: Duration,
    /// How many want to know.
    exact: AtomicUsize,
}

impl Clock {
    /// Begins to count.
    pub(super) fn start() -> Self {
        Self {
            epoch: Instant::now(),
            start: read(ClockId::Monotonic),
            exact: AtomicUsize::new(0),
        }
    }

    /// What time it is.
    pub(crate) fn now(&self) -> Duration {
        let clock = match self.exact.load(Relaxed) {
            0 => ClockId::MonotonicCoarse,
            _ => ClockId::Monotonic,
        };
        // The last tick may have been before the beginning.
        read(clock).saturating_sub(self.start)
    }

    /// What time it is, a little after that.
    pub(crate) fn after(&self, recent: Duration) -> Duration {
        match self.exact.load(Relaxed) {
            0 => recent,
            _ => self.now(),
        }
    }

    /// When it began to count.
    pub(crate) fn epoch(&self) -> Instant {
        self.epoch
    }

    /// When that was.
    pub(super) fn instant(&self, at: Duration) -> Instant {
        self.epoch + at
    }

    /// One more, or one less, wants to know when messages come.
    pub(crate) fn want_exact(&self, wanted: bool) {
        if wanted {
            self.exact.fetch_add(1, Relaxed);
        } else {
            self.exact.fetch_sub(1, Relaxed);
        }
    }
}

fn read(clock: ClockId) -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    // These clocks count from when the system has started.
    let secs = u64::try_from(tv_sec).unwrap_or_default();
    Duration::new(secs, u32::try_from(tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    /// More than a tick of any kernel.
    const TICKS: Duration = Duration::from_millis(50);

    #[test]
    fn it_goes_on_with_and_without_exactness() {
        let began = Instant::now();
        let clock = Clock::start();
        let mut last = clock.now();
        for exact in [true, false] {
            sleep(TICKS);
            clock.want_exact(exact);
            let now = clock.now();
            assert!(now > last, "{now:?} after {last:?}");
            assert!(now <= began.elapsed());
            last = now;
        }
    }

    #[test]
    fn times_are_instants_where_they_are_exact() {
        let begin = Instant::now();
        let clock = Clock::start();
        // Its two beginnings are apart by less than that.
        let apart = begin.elapsed();
        clock.want_exact(true);
        let before = Instant::now();
        let between = clock.instant(clock.now());
        assert!(between + apart >= before && between <= Instant::now() + apart);
        let (first, second) = (clock.now(), clock.now());
        assert!(first <= second);
    }
}
