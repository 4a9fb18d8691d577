//! Output of test programs: the lines printed, and those left out of a brief log.

use std::fmt::Display;

/// First words of the lines with which cargo reports progress.
const PROGRESS: [&str; 6] = [
    "Blocking",
    "Checking",
    "Compiling",
    "Documenting",
    "Downloaded",
    "Downloading",
];

/// Prints a line. A full or closed standard output loses the line only: the exit code is the result of a run.
#[cfg(not(test))]
pub(crate) fn print(line: impl Display) {
    use std::io::Write as _;
    let _lost = writeln!(std::io::stdout().lock(), "{line}");
}

/// Prints a line into the output of the test that calls.
#[cfg(test)]
pub(crate) fn print(line: impl Display) {
    println!("{line}");
}

/// Whether a line reports expected progress only: a passed test, the start of a program, a compiled crate, nothing.
pub(crate) fn is_routine(line: &str) -> bool {
    let is_passed_test = line.starts_with("test ") && line.ends_with("... ok");
    let is_start =
        line.starts_with("running ") && (line.ends_with(" tests") || line.ends_with(" test"));
    let mut words = line.split_whitespace();
    let is_progress = words
        .next()
        .is_none_or(|word| line.starts_with(' ') && PROGRESS.contains(&word));
    is_passed_test || is_start || is_progress
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routine_lines_are_those_of_progress() {
        for line in [
            "test sockets::stream_arrives ... ok",
            "test verbs/src/qp/mod.rs - qp (line 12) ... ok",
            "running 3 tests",
            "running 1 test",
            "   Compiling libc v0.2.0",
            "",
        ] {
            assert!(is_routine(line), "{line:?}");
        }
    }

    #[test]
    fn results_failures_and_output_of_tests_are_not_routine() {
        for line in [
            "test sockets::stream_arrives ... FAILED",
            "test sockets::stream_arrives ... a| text",
            "test result: ok. 3 passed; 0 failed; 0 ignored",
            "     Running tests/device/main.rs (target/debug/deps/device-1)",
            "Compiling of x failed",
            "thread 'main' panicked",
            "error: test failed",
        ] {
            assert!(!is_routine(line), "{line:?}");
        }
    }
}
