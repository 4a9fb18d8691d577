//! Duration of the steps, for one connection and for all connections.

use std::{
    collections::HashMap,
    fmt::Write as _,
    time::{Duration, Instant},
};

/// A step, in the order of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    CreateId,
    Bind,
    ResolveAddr,
    ResolveRoute,
    CreateQp,
    Connect,
    Disconnect,
    Destroy,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::CreateId => "create id",
            Self::Bind => "bind addr",
            Self::ResolveAddr => "resolve addr",
            Self::ResolveRoute => "resolve route",
            Self::CreateQp => "create qp",
            Self::Connect => "connect",
            Self::Disconnect => "disconnect",
            Self::Destroy => "destroy",
        }
    }
}

/// Duration of one step: in total, shortest and longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) step: Step,
    pub(crate) total: Duration,
    pub(crate) least: Duration,
    pub(crate) longest: Duration,
}

/// Stopwatch of one step.
#[derive(Debug)]
pub(crate) struct Clock<K> {
    step: Step,
    began: Instant,
    running: HashMap<K, Instant>,
    extremes: Option<(Duration, Duration)>,
}

impl<K: Eq + std::hash::Hash> Clock<K> {
    /// Starts a step.
    pub(crate) fn start(step: Step) -> Self {
        Self {
            step,
            began: Instant::now(),
            running: HashMap::new(),
            extremes: None,
        }
    }

    /// Marks the start for one connection. A failed connection has no end mark.
    pub(crate) fn begin(&mut self, key: K) {
        self.running.insert(key, Instant::now());
    }

    /// Marks the end for one connection.
    pub(crate) fn end(&mut self, key: &K) {
        if let Some(began) = self.running.remove(key) {
            self.add(began.elapsed());
        }
    }

    fn add(&mut self, time: Duration) {
        let (least, longest) = self.extremes.unwrap_or((time, time));
        self.extremes = Some((least.min(time), longest.max(time)));
    }

    /// Stops, and returns the result.
    pub(crate) fn stop(self) -> Taken {
        let (least, longest) = self.extremes.unwrap_or_default();
        Taken {
            step: self.step,
            total: self.began.elapsed(),
            least,
            longest,
        }
    }
}

/// Formats the table of the C program.
pub(crate) fn table(steps: &[Taken], connections: u32) -> String {
    let mut text = "step              total ms     max ms     min us  us / conn\n".to_owned();
    for measured in steps {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let total = micros(measured.total);
        // Writing to a string cannot fail.
        let _infallible = writeln!(
            text,
            "{:<13}: {:11.2}{:11.2}{:11.2}{:11.2}",
            measured.step.name(),
            total / 1e3,
            micros(measured.longest) / 1e3,
            micros(measured.least),
            total / f64::from(connections),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_matches_c() {
        let measured = Taken {
            step: Step::ResolveRoute,
            total: Duration::from_micros(12_345),
            least: Duration::from_nanos(1_500),
            longest: Duration::from_micros(2_010),
        };
        assert_eq!(
            table(&[measured], 10),
            "step              total ms     max ms     min us  us / conn\n\
             resolve route:       12.35       2.01       1.50    1234.50\n"
        );
    }

    #[test]
    fn taken_counts_only_finished_connections() {
        let mut clock = Clock::start(Step::Connect);
        clock.begin(1);
        clock.begin(2);
        clock.end(&2);
        clock.end(&3);
        assert_eq!(clock.running.len(), 1);
        let measured = clock.stop();
        assert_eq!(measured.least, measured.longest);
        assert!(measured.longest <= measured.total);

        let mut clock = Clock::<u32>::start(Step::Connect);
        clock.add(Duration::from_secs(2));
        clock.add(Duration::from_secs(1));
        clock.add(Duration::from_secs(3));
        let measured = clock.stop();
        assert_eq!(
            (measured.least, measured.longest),
            (Duration::from_secs(1), Duration::from_secs(3))
        );
    }
}
