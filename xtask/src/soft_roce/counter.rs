//! Whether emulated processors' counter tells the time.
//!
//! It is made of the host's. A guest's kernel that is not told so takes the time from a timer on the board instead,
//! and the emulator stops a processor for each look at it, so that the other may have to wait: an eighth of what a
//! small message took.

use std::fs;

/// Which clocks the host's kernel has, without those that it has found to be wrong.
const CLOCKS: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";

/// Whether the host's processors count alike, and never stop.
pub(crate) fn is_reliable() -> bool {
    fs::read_to_string(CLOCKS).is_ok_and(|clocks| lists_counter(&clocks))
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
}
