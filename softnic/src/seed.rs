//! Numbers that peers see: keys of memory, numbers of queue pairs, communication ids, packet sequence numbers.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
};

use crate::mix::mix;

/// Seed of the numbers that peers see: keys of memory, numbers of queue pairs, communication ids and packet sequence
/// numbers.
///
/// A seed from a number makes the same numbers in each run. A seed [of the system](Self::of_system) makes numbers that
/// a peer cannot guess, also with other numbers of the same device.
#[derive(Clone, Debug)]
pub struct Seed {
    source: Source,
    /// Purpose of the numbers: the parts of a device draw from different ones.
    purpose: u64,
}

#[derive(Clone, Debug)]
enum Source {
    Given(u64),
    /// Keys of a keyed hash function, from the system's random numbers.
    System(RandomState),
}

impl From<u64> for Seed {
    fn from(seed: u64) -> Self {
        Self {
            source: Source::Given(seed),
            purpose: 0,
        }
    }
}

impl Seed {
    /// Creates a seed from the system's random numbers.
    pub fn of_system() -> Self {
        Self {
            source: Source::System(RandomState::new()),
            purpose: 0,
        }
    }

    /// The seed of a part: of a host, or of one kind of numbers.
    pub(crate) fn part(&self, part: u64) -> Self {
        Self {
            source: self.source.clone(),
            purpose: mix(self.purpose ^ mix(part)),
        }
    }

    /// The `n`th pseudorandom number.
    pub(crate) fn number(&self, n: u64) -> u64 {
        match &self.source {
            Source::Given(seed) => mix(mix(mix(*seed) ^ self.purpose) ^ n),
            Source::System(keys) => {
                let mut hasher = keys.build_hasher();
                hasher.write_u64(self.purpose);
                hasher.write_u64(n);
                hasher.finish()
            }
        }
    }
}

/// Rounds of the permutation of a [`Sequence`]. Four suffice for large numbers; 24 bits are few.
const ROUNDS: u64 = 8;

/// Pseudorandom numbers without a repetition, until all have been drawn: a Feistel permutation of a counter.
#[derive(Debug)]
pub(crate) struct Sequence {
    seed: Seed,
    /// Half of the bits of a number, at most 16.
    half_bits: u32,
    /// Bits above those of the permutation, the same in each number.
    prefix: u32,
    /// Number of numbers drawn.
    drawn: u32,
}

impl Sequence {
    /// Numbers of 24 bits.
    pub(crate) fn of_24_bits(seed: Seed) -> Self {
        Self {
            seed,
            half_bits: 12,
            prefix: 0,
            drawn: 0,
        }
    }

    /// Numbers of 32 bits.
    pub(crate) fn of_32_bits(seed: Seed) -> Self {
        Self {
            seed,
            half_bits: 16,
            prefix: 0,
            drawn: 0,
        }
    }

    /// Restricts the numbers to those whose first byte is `slot`.
    pub(crate) fn restrict(&mut self, slot: u8) {
        self.half_bits -= 4;
        self.prefix = u32::from(slot) << (2 * self.half_bits);
    }

    /// Number of different numbers.
    pub(crate) fn count(&self) -> u64 {
        1 << (2 * self.half_bits)
    }

    /// Draws the next number.
    pub(crate) fn draw(&mut self) -> u32 {
        let mask = (1 << self.half_bits) - 1;
        let (mut high, mut low) = (self.drawn >> self.half_bits & mask, self.drawn & mask);
        for round in 0..ROUNDS {
            let random = self.seed.number(round << 32 | u64::from(low));
            let [.., a, b, c, d] = random.to_be_bytes();
            (high, low) = (low, high ^ u32::from_be_bytes([a, b, c, d]) & mask);
        }
        self.drawn = self.drawn.wrapping_add(1);
        self.prefix | high << self.half_bits | low
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn drawn(seed: Seed, count: usize) -> Vec<u32> {
        let mut sequence = Sequence::of_24_bits(seed);
        (0..count).map(|_| sequence.draw()).collect()
    }

    #[test]
    fn numbers_of_a_given_seed_repeat_in_each_run() {
        assert_eq!(drawn(7.into(), 100), drawn(7.into(), 100));
        assert_ne!(drawn(7.into(), 100), drawn(8.into(), 100));
        let part = |part| drawn(Seed::from(7).part(part), 100);
        assert_eq!(part(1), part(1));
        assert_ne!(part(1), part(2));
    }

    #[test]
    fn numbers_of_the_system_differ_in_each_seed() {
        let seed = Seed::of_system();
        assert_eq!(drawn(seed.clone(), 100), drawn(seed.clone(), 100));
        assert_ne!(drawn(seed.clone(), 100), drawn(seed.part(1), 100));
        assert_ne!(drawn(seed, 100), drawn(Seed::of_system(), 100));
    }

    #[test]
    fn all_numbers_are_drawn_before_one_repeats() {
        for seed in [Seed::from(7), Seed::of_system()] {
            let mut sequence = Sequence {
                half_bits: 6,
                ..Sequence::of_24_bits(seed)
            };
            let all: BTreeSet<_> = (0..1 << 12).map(|_| sequence.draw()).collect();
            assert!(all.into_iter().eq(0..1 << 12));
        }
    }

    #[test]
    fn restricted_numbers_have_the_slot_as_their_first_byte() {
        for (mut sequence, bits) in [
            (Sequence::of_24_bits(7.into()), 16),
            (Sequence::of_32_bits(7.into()), 24),
        ] {
            sequence.restrict(0xa5);
            let drawn: BTreeSet<_> = (0..1 << 16).map(|_| sequence.draw()).collect();
            assert_eq!(drawn.len(), 1 << 16);
            assert!(drawn.iter().all(|number| number >> bits == 0xa5));
        }
    }

    /// Each bit of a number, and of the difference of two neighbours, is set about as often as not.
    #[test]
    fn successive_numbers_and_differences_have_all_bits() {
        const COUNT: usize = 4096;
        let numbers = drawn(7.into(), COUNT);
        let differences = numbers.windows(2).map(|pair| pair[0] ^ pair[1]);
        let differences: Vec<_> = differences.collect();
        for bit in 0..24 {
            for values in [&numbers, &differences] {
                let set = values.iter().filter(|value| *value >> bit & 1 == 1).count();
                assert!(set.abs_diff(COUNT / 2) < 200, "bit {bit}: {set}");
            }
        }
    }
}
