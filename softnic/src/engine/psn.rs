//! Packet sequence numbers: 24 bits, compared within a window of 2^23.

/// A packet sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Psn(u32);

const MODULUS: u32 = 1 << 24;

impl Psn {
    /// Takes the low 24 bits of a number.
    pub fn new(number: u32) -> Self {
        Self(number % MODULUS)
    }

    /// The number, below 2^24.
    pub fn get(self) -> u32 {
        self.0
    }

    /// The number `packets` later.
    #[must_use]
    pub fn plus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// The previous number.
    #[must_use]
    pub fn previous(self) -> Self {
        self.plus(MODULUS - 1)
    }

    /// Distance from `other` to this number: negative if this number is older, at least -2^23 and less than 2^23.
    pub fn distance(self, other: Self) -> i32 {
        // The shift moves the sign bit of the 24-bit difference to the top.
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }

    /// Number of packets since an older or equal number.
    pub(super) fn since(self, older: Self) -> u32 {
        self.0.wrapping_sub(older.0) % MODULUS
    }

    /// Whether this number is older than `other`.
    pub fn is_before(self, other: Self) -> bool {
        self.distance(other) < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_wrap() {
        let last = Psn::new(MODULUS - 1);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).previous(), last);
        assert_eq!(Psn::new(2).distance(last), 3);
        assert_eq!(last.distance(Psn::new(2)), -3);
        assert_eq!(Psn::new(2).since(last), 3);
        assert_eq!(Psn::new(1 << 23).distance(Psn::new(0)), -(1 << 23));
        assert!(last.is_before(Psn::new(0)));
    }

    /// Every distance, from numbers at the ends and in the middle.
    #[test]
    fn every_distance_is_added_and_measured() {
        let half = 1 << 23;
        for base in [0, 1, half - 1, half, MODULUS - 1].map(Psn::new) {
            for step in 0..MODULUS {
                let later = base.plus(step);
                let sum = (u64::from(base.get()) + u64::from(step)) % u64::from(MODULUS);
                assert_eq!(u64::from(later.get()), sum);
                assert_eq!(later.since(base), step);
                let (forward, backward) = (step.cast_signed(), (MODULUS - step).cast_signed());
                let distance = if step < half { forward } else { -backward };
                assert_eq!(later.distance(base), distance);
                assert_eq!(later.is_before(base), step >= half);
            }
        }
    }
}
