//! Comparison of a guest's clock rate with the host's.
//!
//! A kernel that calibrates its time-stamp counter on a busy host may be off by a factor of ten, and timeouts in the guest
//! become meaningless. A guest reports its uptime with the first message, when ready, 5 s later, and then every 60 s.

use std::fmt;
use std::time::{Duration, Instant};

/// Maximum relative deviation from the host's clock. A guest beyond the limit is stopped.
const MAX_DRIFT: f64 = 0.05;

/// Tolerated delay of a report on a busy host, in seconds.
const MAX_DELAY: f64 = 1.0;

/// A guest's first and last uptime reports.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    first: Option<(Instant, Duration)>,
    last: Option<(Instant, Duration)>,
}

/// Elapsed time in a guest and on the host between two reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    guest: Duration,
    host: Duration,
}

impl Clock {
    /// Records a report that arrived at `at`. An error if the clock rates differ by more than 5 %.
    pub(crate) fn report(&mut self, at: Instant, uptime: Duration) -> Result<(), Rate> {
        self.first.get_or_insert((at, uptime));
        self.last = Some((at, uptime));
        match self.rate() {
            Some(rate) if rate.is_wrong() => Err(rate),
            _ => Ok(()),
        }
    }

    /// The rate between the first and the last report.
    pub(crate) fn rate(&self) -> Option<Rate> {
        let ((from, begin), (to, end)) = (self.first?, self.last?);
        let rate = Rate {
            guest: end.saturating_sub(begin),
            host: to.saturating_duration_since(from),
        };
        (rate.host > Duration::ZERO).then_some(rate)
    }
}

impl Rate {
    fn is_wrong(self) -> bool {
        let (guest, host) = (self.guest.as_secs_f64(), self.host.as_secs_f64());
        // The delay of either report adds to the difference.
        (guest - host).abs() > MAX_DRIFT * host + MAX_DELAY
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (guest, host) = (self.guest.as_secs_f64(), self.host.as_secs_f64());
        let ratio = guest / host;
        write!(
            f,
            "{guest:.2} s passed in the guest in {host:.2} s of the host's, {ratio:.3} times as fast"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of the last of several reports, given as (host, guest) in seconds.
    fn reports(times: &[(f64, f64)]) -> Result<(), Rate> {
        let start = Instant::now();
        let mut clock = Clock::default();
        let mut last = Ok(());
        for (host, guest) in times {
            let at = start + Duration::from_secs_f64(*host);
            last = clock.report(at, Duration::from_secs_f64(*guest));
        }
        last
    }

    #[test]
    fn clock_at_host_rate_passes() {
        assert_eq!(reports(&[(0.0, 3.0)]), Ok(()));
        assert_eq!(reports(&[(0.0, 3.0), (5.0, 8.0), (65.0, 68.0)]), Ok(()));
    }

    #[test]
    fn clock_beyond_five_percent_is_an_error() {
        for (host, guest) in [(0.36, 5.0), (60.0, 65.0), (60.0, 55.0), (600.0, 632.0)] {
            assert!(
                reports(&[(0.0, 0.0), (host, guest)]).is_err(),
                "{host} {guest}"
            );
        }
    }

    #[test]
    fn report_delayed_by_one_second_passes() {
        for (host, guest) in [(5.9, 5.0), (4.1, 5.0), (60.0, 62.9), (60.0, 57.1)] {
            assert_eq!(
                reports(&[(0.0, 0.0), (host, guest)]),
                Ok(()),
                "{host} {guest}"
            );
        }
    }

    #[test]
    fn clock_with_small_drift_is_an_error_after_minutes() {
        let reports: Vec<(f64, f64)> = (0..6)
            .map(|minute| f64::from(minute) * 60.0)
            .map(|at| (at, at * 1.06))
            .collect();
        assert!(self::reports(&reports[..2]).is_ok());
        let rate = self::reports(&reports).unwrap_err();
        assert!(rate.to_string().contains("1.060 times as fast"), "{rate}");
    }
}
