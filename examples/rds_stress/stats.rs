//! Statistics of tasks, and their formatting.

use std::{fmt, time::Duration};

/// Number of buckets of the histogram of round trips; each is twice as long as the previous.
pub const BUCKETS: usize = 16;

/// Statistics of tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests sent.
    pub sent: u64,
    /// Requests received.
    pub received: u64,
    /// Bytes of messages in both directions.
    pub bytes: u64,
    /// Bytes read by operations.
    pub memory_in: u64,
    /// Bytes written by operations.
    pub memory_out: u64,
    /// Total time to send requests, in microseconds.
    pub sending: u64,
    /// Total time from requests to answers, in microseconds.
    pub round: u64,
    /// Answers received.
    pub rounds: u64,
    /// Round trips by duration.
    pub histogram: [u64; BUCKETS],
}

impl Stats {
    /// Counts a sent request.
    pub fn sent(&mut self, len: u32, took: Duration) {
        self.sent += 1;
        self.bytes += u64::from(len);
        self.sending += micros(took);
    }

    /// Counts an answer.
    pub fn round(&mut self, took: Duration) {
        let took = micros(took);
        self.rounds += 1;
        self.round += took;
        let bucket = took.checked_ilog2().unwrap_or_default() as usize;
        self.histogram[bucket.min(BUCKETS - 1)] += 1;
    }

    /// The increase since `earlier`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        self.zip(before, u64::wrapping_sub)
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.zip(other, u64::wrapping_add)
    }

    fn zip(&self, other: &Self, both: fn(u64, u64) -> u64) -> Self {
        Self {
            sent: both(self.sent, other.sent),
            received: both(self.received, other.received),
            bytes: both(self.bytes, other.bytes),
            memory_in: both(self.memory_in, other.memory_in),
            memory_out: both(self.memory_out, other.memory_out),
            sending: both(self.sending, other.sending),
            round: both(self.round, other.round),
            rounds: both(self.rounds, other.rounds),
            histogram: std::array::from_fn(|at| both(self.histogram[at], other.histogram[at])),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Column titles.
pub const TITLES: &str =
    "tsks   tx/s   rx/s  tx+rx K/s    mbi K/s    mbo K/s tx us/c   rtt us cpu %";

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Line<'s> {
    /// Number of tasks.
    pub tasks: u16,
    /// Their statistics.
    pub stats: &'s Stats,
    /// Duration in seconds.
    pub seconds: f64,
    /// Processor load in percent; -1 if unknown.
    pub cpu: f64,
}

#[expect(clippy::cast_precision_loss, reason = "they are printed")]
impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            tasks,
            stats,
            seconds,
            cpu,
        } = self;
        let rate = |count: u64| count as f64 / seconds;
        let average = |sum: u64, count: u64| sum as f64 / count.max(1) as f64;
        write!(
            f,
            "{tasks:4} {:6.0} {:6.0} {:10.2} {:10.2} {:10.2} {:7.2} {:8.2} {cpu:5.2}",
            rate(stats.sent),
            rate(stats.received),
            rate(stats.bytes) / 1024.0,
            rate(stats.memory_in) / 1024.0,
            rate(stats.memory_out) / 1024.0,
            average(stats.sending, stats.sent),
            average(stats.round, stats.rounds)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_rates() {
        let mut before = Stats::default();
        before.sent(1024, Duration::from_micros(5));
        let mut stats = before;
        for _ in 0..4 {
            stats.sent(1024, Duration::from_micros(5));
            stats.round(Duration::from_micros(100));
        }
        stats.memory_out = 4096;
        let since = stats.since(&before);
        assert_eq!(since.plus(&before), stats);
        assert_eq!(since.histogram[6], 4);
        let line = Line {
            tasks: 1,
            stats: &since,
            seconds: 2.0,
            cpu: -1.0,
        };
        assert_eq!(
            line.to_string(),
            "   1      2      0       2.00       0.00       2.00    5.00   100.00 -1.00"
        );
        assert_eq!(line.to_string().len(), TITLES.len());
    }

    #[test]
    fn histogram_has_extreme_round_trips() {
        let mut stats = Stats::default();
        stats.round(Duration::ZERO);
        stats.round(Duration::from_secs(3600));
        assert_eq!((stats.histogram[0], stats.histogram[BUCKETS - 1]), (1, 1));
    }
}
