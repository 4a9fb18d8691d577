//! Stages of `test` and `ci`: results of each, and the table at the end.

use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Numbers of tests, as printed by the standard test harness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    /// Number of test programs that printed a result.
    pub(crate) programs: u32,
}

impl Counts {
    /// Adds the counts in `line` if the line is a test program's summary.
    pub(crate) fn read(&mut self, line: &str) {
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

    /// Number of tests that ran.
    pub(crate) fn total(self) -> u32 {
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
            .filter_map(|stage| stage.counts)
            .map(Counts::total)
            .sum()
    }

    /// Prints the table, the errors and the totals. Returns whether nothing failed.
    pub(crate) fn close(&self) -> bool {
        println!("\n{}", self.table());
        for stage in &self.done {
            if let Some(error) = &stage.error {
                println!("{}: {error}", stage.name);
            }
        }
        let (passed, failed) = self.sums();
        println!("{passed} passed, {failed} failed");
        failed == 0
    }

    fn run(&mut self, name: &'static str, body: impl FnOnce(&mut Stage) -> Result<()>) {
        println!("\n=== {name} ===");
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
        self.done.push(stage);
    }

    /// Passed and failed tests. A failed stage without a failed test counts as one failure.
    fn sums(&self) -> (u32, u32) {
        let (mut passed, mut failed) = (0, 0);
        for stage in &self.done {
            let counts = stage.counts.unwrap_or_default();
            passed += counts.passed;
            failed += counts.failed.max(u32::from(stage.error.is_some()));
        }
        (passed, failed)
    }

    fn table(&self) -> String {
        let mut text = format!(
            "{:12} {:>7} {:>7} {:>9}\n",
            "stage", "passed", "failed", "time"
        );
        for stage in &self.done {
            let (passed, failed) = match (stage.counts, &stage.error) {
                (Some(counts), _) => (counts.passed.to_string(), counts.failed.to_string()),
                (None, None) => ("ok".to_owned(), String::new()),
                (None, Some(_)) => (String::new(), "failed".to_owned()),
            };
            let time = stage.time.as_secs_f64();
            // Writing to a string cannot fail.
            let _infallible = writeln!(
                text,
                "{:12} {passed:>7} {failed:>7} {time:>7.1} s",
                stage.name
            );
        }
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
                programs: 3
            }
        );
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
