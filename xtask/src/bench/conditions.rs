//! Conditions of a measurement: load of the machine and number of rounds.

use std::fmt;
use std::fs;
use std::thread;

use serde_json::{Value, json};

/// Minimum number of rounds in a guest for a meaningful median.
const MIN_ROUNDS: usize = 3;

/// Load of the machine during a measurement, and the number of rounds completed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Conditions {
    /// Load average over the minute before the start.
    load: Option<f64>,
    processors: usize,
    /// Smallest number of rounds of any program for any row measured in a guest; `None` without a guest.
    pub(super) rounds: Option<usize>,
}

impl Conditions {
    /// The current conditions, before the first measurement.
    pub(super) fn now() -> Self {
        let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            load: first_number(&text),
            processors: thread::available_parallelism().map_or(1, usize::from),
            rounds: None,
        }
    }

    /// Whether the load or the number of rounds makes the times less reliable.
    pub(super) fn busy(&self) -> bool {
        let loaded = |load: f64| load * 2.0 > self.processors as f64;
        self.load.is_some_and(loaded) || self.rounds.is_some_and(|rounds| rounds < MIN_ROUNDS)
    }

    pub(super) fn to_json(self) -> Value {
        json!({
            "load": self.load,
            "processors": self.processors,
            "rounds": self.rounds,
            "busy": self.busy(),
        })
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.busy() {
            f.write_str("measured on a busy machine: ")?;
        }
        match self.load {
            Some(load) => write!(f, "load average {load:.2}")?,
            None => f.write_str("load average unknown")?,
        }
        write!(f, ", {} processors", self.processors)?;
        match self.rounds {
            Some(rounds) => write!(f, "; at least {rounds} rounds in the guests"),
            None => Ok(()),
        }
    }
}

fn first_number(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(load: Option<f64>, rounds: Option<usize>) -> Conditions {
        Conditions {
            load,
            processors: 2,
            rounds,
        }
    }

    #[test]
    fn conditions_with_high_load_or_few_rounds_are_busy() {
        for (load, rounds, busy) in [
            (Some(0.9), None, false),
            (Some(1.1), None, true),
            (Some(0.0), Some(2), true),
            (Some(0.0), Some(3), false),
            (None, Some(15), false),
        ] {
            let conditions = conditions(load, rounds);
            assert_eq!(conditions.busy(), busy, "{conditions:?}");
            assert_eq!(
                conditions.to_string().contains("on a busy machine"),
                busy,
                "{conditions}"
            );
        }
    }

    #[test]
    fn load_of_loadavg_line_is_its_first_number() {
        assert_eq!(first_number("7.71 9.77 10.76 9/345 1234\n"), Some(7.71));
        assert_eq!(first_number(""), None);
        let text = conditions(Some(7.71), Some(2)).to_string();
        assert_eq!(
            text,
            "measured on a busy machine: load average 7.71, 2 processors; at least 2 rounds in the guests"
        );
    }
}
