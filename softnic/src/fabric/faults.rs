//! Faults of a network, and their effect on each frame.

use std::{ops::Range, time::Duration};

use crate::mix::mix;

/// Maximum delay of a frame.
const MAX_DELAY: Duration = Duration::from_secs(86_400);

/// Probabilities of faults for each frame, and the range of delays.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    /// Probability of the loss of a copy of a frame.
    pub loss: f64,
    /// Probability of a second copy of a frame.
    pub duplication: f64,
    /// Probability of a flipped bit in a copy of a frame.
    pub corruption: f64,
    /// Range of delays, up to a day.
    pub delay: Range<Duration>,
}

impl Faults {
    /// Checks the values.
    ///
    /// # Panics
    /// If a probability is not between 0 and 1, or the range of delays ends before its start or after a day.
    pub(super) fn check(&self) {
        for (name, probability) in [
            ("loss", self.loss),
            ("duplication", self.duplication),
            ("corruption", self.corruption),
        ] {
            assert!(
                (0.0..=1.0).contains(&probability),
                "the probability of {name} is {probability}: it must be between 0 and 1"
            );
        }
        let Range { start, end } = &self.delay;
        assert!(
            start <= end,
            "the range of delays, {start:?} to {end:?}, ends before its start"
        );
        assert!(
            *end <= MAX_DELAY,
            "the range of delays, {start:?} to {end:?}, ends after a day"
        );
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            loss: 0.0,
            duplication: 0.0,
            corruption: 0.0,
            delay: Duration::ZERO..Duration::ZERO,
        }
    }
}

/// Effect of the faults on one copy of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) delay: Duration,
    /// Index of the flipped bit, modulo the number of bits.
    pub(super) flipped: Option<u64>,
}

/// The arriving copies of a frame: none, one or two.
pub(super) type Copies = [Option<Copy>; 2];

/// Independent random decisions about a frame.
#[derive(Clone, Copy)]
enum Decision {
    Duplicate,
    /// Loss of the first or the second copy.
    Lose(u64),
    Corrupt(u64),
    Bit(u64),
    Delay(u64),
}

impl Decision {
    fn number(self) -> u64 {
        match self {
            Self::Duplicate => 0,
            Self::Lose(copy) => 1 + copy,
            Self::Corrupt(copy) => 3 + copy,
            Self::Bit(copy) => 5 + copy,
            Self::Delay(copy) => 7 + copy,
        }
    }
}

/// The `n`-th frame of a link, with the seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nth {
    pub(super) seed: u64,
    pub(super) link: (usize, usize),
    pub(super) n: u64,
}

impl Nth {
    fn random(self, decision: Decision) -> u64 {
        let (from, to) = (self.link.0 as u64, self.link.1 as u64);
        [from, to, self.n, decision.number()]
            .into_iter()
            .fold(mix(self.seed), |hash, part| mix(hash ^ part))
    }

    /// A number at least 0 and below 1.
    fn unit(self, decision: Decision) -> f64 {
        // 32 bits fit a float exactly.
        let [.., a, b, c, d] = (self.random(decision) >> 32).to_be_bytes();
        f64::from(u32::from_be_bytes([a, b, c, d])) / 4_294_967_296.0
    }

    /// Decides the copies of the frame.
    pub(super) fn copies(self, faults: &Faults) -> Copies {
        if *faults == Faults::default() {
            return [Some(Copy::default()), None];
        }
        let copy = |copy: u64| {
            if self.unit(Decision::Lose(copy)) < faults.loss {
                return None;
            }
            let spread = faults.delay.end.saturating_sub(faults.delay.start);
            let corrupts = self.unit(Decision::Corrupt(copy)) < faults.corruption;
            Some(Copy {
                delay: faults.delay.start + spread.mul_f64(self.unit(Decision::Delay(copy))),
                flipped: corrupts.then(|| self.random(Decision::Bit(copy))),
            })
        };
        let duplicates = self.unit(Decision::Duplicate) < faults.duplication;
        [copy(0), duplicates.then(|| copy(1)).flatten()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copies_of_frames(seed: u64, link: (usize, usize), faults: &Faults) -> Vec<Copies> {
        (0..10_000)
            .map(|n| Nth { seed, link, n }.copies(faults))
            .collect()
    }

    #[test]
    fn faults_depend_on_seed_link_and_number_only() {
        let faults = Faults {
            loss: 0.3,
            delay: Duration::ZERO..Duration::from_micros(9),
            ..Faults::default()
        };
        assert_eq!(
            copies_of_frames(7, (0, 1), &faults),
            copies_of_frames(7, (0, 1), &faults)
        );
        assert_ne!(
            copies_of_frames(7, (0, 1), &faults),
            copies_of_frames(8, (0, 1), &faults)
        );
        assert_ne!(
            copies_of_frames(7, (0, 1), &faults),
            copies_of_frames(7, (1, 0), &faults)
        );
    }

    #[test]
    fn fault_frequency_matches_the_configuration() {
        let faults = Faults {
            loss: 0.1,
            duplication: 0.2,
            corruption: 0.5,
            ..Faults::default()
        };
        let copies_of_frames = copies_of_frames(1, (0, 1), &faults);
        let count = |matches: fn(&Copies) -> bool| {
            copies_of_frames
                .iter()
                .filter(|copies| matches(copies))
                .count()
        };
        let near = |count: usize, expected: usize| count.abs_diff(expected) < 200;
        assert!(near(count(|copies| copies[0].is_none()), 1000));
        assert!(near(count(|copies| copies[1].is_some()), 1800));
        assert!(near(
            count(|copies| copies[0].is_some_and(|copy| copy.flipped.is_some())),
            4500
        ));
    }

    #[test]
    fn network_without_faults_delivers_each_frame_once_and_at_once() {
        let expected = [Some(Copy::default()), None];
        assert!(
            copies_of_frames(3, (0, 1), &Faults::default())
                .iter()
                .all(|copies| *copies == expected)
        );
    }
}
