//! Frequency of the host's time-stamp counter, for emulated guests, which see the host's counter.
//!
//! Without `tsc=reliable` a guest's kernel reads a timer of the board instead, and each read stops an emulated
//! processor (an eighth of the time of a small message). The kernel must not calibrate the counter either: on a busy
//! host the result was wrong by a factor of up to 14.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// Clock sources of the host's kernel; a counter found unreliable is not listed.
const CLOCKS: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";

/// Time of the measurement. An error of [`MAX_READ`] is 0.02 % of 50 ms.
const MEASURED: Duration = Duration::from_millis(50);

/// Maximum time between reading the clock and reading the counter.
const MAX_READ: Duration = Duration::from_micros(10);

/// Maximum number of readings slower than [`MAX_READ`] before the measurement fails.
const MAX_READINGS: u32 = 1000;

/// Frequency of the host's counter in kHz; `None` unless the counter is synchronized and invariant.
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

/// Reads the clock and the counter together.
fn read() -> Option<(Instant, u64)> {
    (0..MAX_READINGS).find_map(|_| {
        let before = Instant::now();
        let count = count()?;
        (before.elapsed() < MAX_READ).then_some((before, count))
    })
}

/// The counter's value.
#[cfg(target_arch = "x86_64")]
fn count() -> Option<u64> {
    // SAFETY: every x86-64 processor has the instruction, which accesses no memory; Linux permits the instruction
    // unless the process requests a signal instead (prctl(2), PR_SET_TSC), and this program does not.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

/// Other architectures have no guests yet.
#[cfg(not(target_arch = "x86_64"))]
fn count() -> Option<u64> {
    None
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
    fn lists_counter_of_other_clocks_is_false() {
        assert!(lists_counter("kvm-clock tsc hpet acpi_pm \n"));
        assert!(!lists_counter("hpet tsc-early acpi_pm \n"));
        assert!(!lists_counter(""));
    }

    #[test]
    fn khz_of_count_and_time_is_counts_per_millisecond() {
        assert_eq!(khz(122_250_000, Duration::from_millis(50)), Some(2_445_000));
        assert_eq!(khz(1, Duration::ZERO), None);
    }

    #[test]
    fn frequency_measured_twice_agrees() {
        let (Some(one), Some(two)) = (frequency_khz(), frequency_khz()) else {
            // The host's kernel lists no reliable counter.
            assert!(!fs::read_to_string(CLOCKS).is_ok_and(|clocks| lists_counter(&clocks)));
            return;
        };
        assert!(one.abs_diff(two) * 100 < one, "{one} {two}");
    }
}
