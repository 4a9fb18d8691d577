//! Durations of RNR delays and acknowledgement timeouts, by code.

use std::time::Duration;

/// RNR delays in units of 10 µs, by code.
const TABLE: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024,
    1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// RNR delay of the low five bits of a code: 10 µs to 655.36 ms.
pub(super) fn rnr_delay(code: u8) -> Duration {
    Duration::from_micros(10) * TABLE[usize::from(code & 31)]
}

/// Acknowledgement timeout of a code, 4.096 µs · 2^code; `None` for 0.
pub(super) fn ack_timeout(code: u8) -> Option<Duration> {
    let code = code & 31;
    (code != 0).then(|| Duration::from_nanos(4_096 << code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_times_of_the_specification() {
        assert_eq!(rnr_delay(0), Duration::from_micros(655_360));
        assert_eq!(rnr_delay(1), Duration::from_micros(10));
        assert_eq!(rnr_delay(12), Duration::from_micros(640));
        assert_eq!(rnr_delay(31), Duration::from_micros(491_520));
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
    }
}
