//! The counter of emulated processors, which is the host's.
//!
//! A guest's kernel that is not told so takes the time from a timer on the board instead, and the emulator stops a
//! processor for each look at it, so that the other may have to wait: an eighth of what a small message took. Neither
//! may the kernel measure the counter's frequency itself: while the host is busy, its result was wrong by a factor of
//! up to 14.

use std::arch::x86_64::_rdtsc;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// Which clocks the host's kernel has, without those that it has found to be wrong.
const CLOCKS: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";

/// Time over which the counter is compared with the clock. An error of [`MAX_READ`] in it is 0.02 %.
const MEASURED: Duration = Duration::from_millis(50);

/// Longest time that counter and clock may be read apart.
const MAX_READ: Duration = Duration::from_micros(10);

/// Readings that may take longer than [`MAX_READ`] before the counter is given up.
const MAX_READINGS: u32 = 1000;

/// The frequency of the host's counter in kHz, if its processors count alike and never stop.
pub(crate) fn frequency_khz() -> Option<u64> {
    let clocks = fs::read_to_string(CLOCKS).ok()?;
    if !lists_counter(&clocks) {
        return None;
    }
    let (begin, from) = read()?;
    thread::sleep(MEASURED);
    let (end, to) = read()?;
    khz(to.checked_sub(from)?, end - begin)
}

/// Reads the clock and the counter at the same time.
fn read() -> Option<(Instant, u64)> {
    (0..MAX_READINGS).find_map(|_| {
        let before = Instant::now();
        // SAFETY: every processor of x86-64 has the instruction, which touches no memory; Linux lets programs use it
        // unless they have asked for a signal instead (prctl(2), PR_SET_TSC), which xtask does not.
        let counter = unsafe { _rdtsc() };
        (before.elapsed() < MAX_READ).then_some((before, counter))
    })
}

fn khz(count: u64, time: Duration) -> Option<u64> {
    let count = u128::from(count) * 1_000_000;
    u64::try_from(count.checked_div(time.as_nanos())?).ok()
}

fn lists_counter(clocks: &str) -> bool {
    clocks.split_whitespace().any(|clock| clock == "tsc")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_counter_itself_counts() {
        assert!(lists_counter("kvm-clock tsc hpet acpi_pm \n"));
        assert!(!lists_counter("hpet tsc-early acpi_pm \n"));
        assert!(!lists_counter(""));
    }

    #[test]
    fn frequency_is_counts_in_a_millisecond() {
        assert_eq!(khz(122_250_000, Duration::from_millis(50)), Some(2_445_000));
        assert_eq!(khz(1, Duration::ZERO), None);
    }

    #[test]
    fn two_measurements_of_the_host_agree() {
        let (Some(one), Some(two)) = (frequency_khz(), frequency_khz()) else {
            // The host's kernel has no such clock.
            assert!(!fs::read_to_string(CLOCKS).is_ok_and(|clocks| lists_counter(&clocks)));
            return;
        };
        assert!(one.abs_diff(two) * 100 < one, "{one} {two}");
    }
}
