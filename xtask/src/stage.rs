//! Stages of `test` and `ci`: results of each, and the table at the end.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::output;

/// Numbers of tests, as printed by the standard test harness.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    /// Number of test programs that printed a result.
    pub(crate) programs: u32,
    failures: Failures,
}

/// First lines of the output of failed tests, for the end of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Failures {
    /// Name and lines, at most [`Self::LINES`] for each of at most [`Self::TESTS`] tests.
    tests: Vec<(String, Vec<String>)>,
    /// Whether the next line belongs to the last test.
    is_open: bool,
}

impl Failures {
    const TESTS: usize = 20;
    const LINES: usize = 12;

    /// Reads a line of a test program, in the format of the standard test harness.
    fn read(&mut self, line: &str) {
        let header = line.strip_prefix("---- ");
        if let Some(name) = header.and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.is_open = self.tests.len() < Self::TESTS;
            if self.is_open {
                self.tests.push((name.to_owned(), Vec::new()));
            }
        } else if line == "failures:" || line == "stack backtrace:" {
            self.is_open = false;
        } else if let (true, Some((_, lines))) = (self.is_open, self.tests.last_mut())
            && lines.len() < Self::LINES
            && !line.is_empty()
        {
            lines.push(line.to_owned());
        }
    }
}

impl Counts {
    /// Adds the counts in `line` if the line is a test program's summary, and keeps lines of failed tests.
    pub(crate) fn read(&mut self, line: &str) {
        self.failures.read(line);
        let Some((_, rest)) = line.split_once("test result: ") else {
            return;
        };
        let number = |word: &str| {
            let before = rest
                .split([';', '.'])
                .find_map(|part| part.trim().strip_suffix(word))?;
            before.trim().parse::<u32>().ok()
        };
        if let (Some(passed), Some(failed)) = (number("passed"), number("failed")) {
            self.passed += passed;
            self.failed += failed;
            self.programs += 1;
        }
    }

    /// Adds the counts of another guest.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.programs += other.programs;
        let capacity = Failures::TESTS.saturating_sub(self.failures.tests.len());
        let tests = other.failures.tests.into_iter().take(capacity);
        self.failures.tests.extend(tests);
    }

    /// Number of tests that ran.
    pub(crate) fn total(&self) -> u32 {
        self.passed + self.failed
    }
}

/// Result of a finished stage.
#[derive(Debug)]
struct Stage {
    name: &'static str,
    counts: Option<Counts>,
    error: Option<String>,
    time: Duration,
}

impl Stage {
    /// The line of the table.
    fn row(&self) -> String {
        let (passed, failed) = match (&self.counts, &self.error) {
            (Some(counts), _) => (counts.passed.to_string(), counts.failed.to_string()),
            (None, None) => ("ok".to_owned(), String::new()),
            (None, Some(_)) => (String::new(), "failed".to_owned()),
        };
        let (name, time) = (self.name, self.time.as_secs_f64());
        format!("{name:12} {passed:>7} {failed:>7} {time:>7.1} s\n")
    }
}

/// The finished stages.
#[derive(Debug, Default)]
pub(crate) struct Stages {
    done: Vec<Stage>,
}

impl Stages {
    /// Runs a stage of tests. An error is kept for the end, and later stages still run.
    pub(crate) fn test(
        &mut self,
        name: &'static str,
        body: impl FnOnce(&mut Counts) -> Result<()>,
    ) {
        let mut counts = Counts::default();
        self.run(name, |this| {
            let result = body(&mut counts);
            this.counts = Some(counts);
            result
        });
    }

    /// Runs a stage without test counts.
    pub(crate) fn check(&mut self, name: &'static str, body: impl FnOnce() -> Result<()>) {
        self.run(name, |_| body());
    }

    /// Number of tests that ran so far.
    pub(crate) fn total(&self) -> u32 {
        self.done
            .iter()
            .filter_map(|stage| stage.counts.as_ref())
            .map(Counts::total)
            .sum()
    }

    /// Prints the failed tests, the table, the errors and the totals. Returns whether nothing failed.
    pub(crate) fn close(&self) -> bool {
        output::print(format_args!("\n{}{}", self.failures(), self.table()));
        for stage in &self.done {
            if let Some(error) = &stage.error {
                output::print(format_args!("{}: {error}", stage.name));
            }
        }
        let (passed, failed) = self.sums();
        output::print(format_args!("{passed} passed, {failed} failed"));
        failed == 0
    }

    fn run(&mut self, name: &'static str, body: impl FnOnce(&mut Stage) -> Result<()>) {
        output::print(format_args!("\n=== {name} ==="));
        let begin = Instant::now();
        let mut stage = Stage {
            name,
            counts: None,
            error: None,
            time: Duration::ZERO,
        };
        if let Err(error) = body(&mut stage) {
            eprintln!("{name}: {error:#}");
            stage.error = Some(format!("{error:#}"));
        }
        stage.time = begin.elapsed();
        output::print(stage.row().trim_end());
        self.done.push(stage);
    }

    /// Passed and failed tests. A failed stage without a failed test counts as one failure.
    fn sums(&self) -> (u32, u32) {
        let (mut passed, mut failed) = (0, 0);
        for stage in &self.done {
            let counts = stage.counts.as_ref();
            passed += counts.map_or(0, |counts| counts.passed);
            failed += counts
                .map_or(0, |counts| counts.failed)
                .max(u32::from(stage.error.is_some()));
        }
        (passed, failed)
    }

    /// The failed tests, with the first lines of their output.
    fn failures(&self) -> String {
        let mut text = String::new();
        for stage in &self.done {
            let counts = stage.counts.iter();
            for (name, lines) in counts.flat_map(|counts| &counts.failures.tests) {
                text += &format!("failed: {} {name}\n", stage.name);
                text.extend(lines.iter().map(|line| format!("    {line}\n")));
            }
        }
        text
    }

    fn table(&self) -> String {
        let mut text = format!(
            "{:12} {:>7} {:>7} {:>9}\n",
            "stage", "passed", "failed", "time"
        );
        text.extend(self.done.iter().map(Stage::row));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    #[test]
    fn counts_add_up_over_programs() {
        let mut counts = Counts::default();
        counts.read("running 3 tests");
        counts.read("test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 0.00s");
        counts
            .read("test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out");
        counts.read("a| test result: ok. 1 passed; 0 failed;");
        assert_eq!(
            counts,
            Counts {
                passed: 5,
                failed: 2,
                programs: 3,
                failures: Failures::default(),
            }
        );
    }

    #[test]
    fn counts_of_guests_add_up_with_a_limited_number_of_failed_tests() {
        let of_guest = |name: usize| {
            let mut counts = Counts::default();
            counts.read(&format!("---- {name} stdout ----"));
            counts.read("test result: FAILED. 3 passed; 1 failed;");
            counts
        };
        let mut sum = Counts::default();
        (0..=Failures::TESTS).for_each(|name| sum.add(of_guest(name)));
        let guests = 1 + Failures::TESTS;
        assert_eq!(sum.failures.tests.len(), Failures::TESTS);
        let sums = [sum.passed, sum.failed, sum.programs].map(|sum| sum as usize);
        assert_eq!(sums, [3 * guests, guests, guests]);
    }

    #[test]
    fn first_lines_of_failed_tests_are_printed_at_the_end() {
        let mut stages = Stages::default();
        stages.test("host", |counts| {
            let before = "test a ... ok\ntest b::c ... FAILED\n\nfailures:\n\n---- b::c stdout ----\n\nthread panicked\n";
            let more = "line\n".repeat(Failures::LINES);
            let after = "stack backtrace:\n  0: main\n\n\nfailures:\n    b::c\n\ntest result: FAILED. 1 passed; 1 failed;";
            [before, &more, after]
                .iter()
                .flat_map(|text| text.lines())
                .for_each(|line| counts.read(line));
            Ok(())
        });
        let lines = "    line\n".repeat(Failures::LINES - 1);
        assert_eq!(
            stages.failures(),
            format!("failed: host b::c\n    thread panicked\n{lines}")
        );
    }

    #[test]
    fn lines_of_failed_tests_are_limited_in_number() {
        let mut failures = Failures::default();
        for test in 0..100 {
            failures.read(&format!("---- {test} stdout ----"));
            failures.read("why");
        }
        assert_eq!(failures.tests.len(), Failures::TESTS);
        let lines = failures.tests.iter().map(|(_, lines)| lines.len());
        assert_eq!(lines.sum::<usize>(), Failures::TESTS);
    }

    #[test]
    fn failed_stage_without_a_failed_test_counts_as_one() {
        let mut stages = Stages::default();
        stages.test("host", |counts| {
            counts.passed = 4;
            Ok(())
        });
        stages.check("format", || bail!("not formatted"));
        assert_eq!(stages.sums(), (4, 1));
        assert!(!stages.close());
    }
}
