//! Results of tests, parsed from the output of cargo and of test programs.

use std::collections::HashMap;

/// Prefix of the line printed by the script of device tests before those of a library.
pub(crate) const DEVICE_TESTS_OF: &str = "Running the device tests of ";

/// Prefix of the line printed by the script of device tests before all tests, with the kernel's release.
pub(crate) const KERNEL: &str = "Kernel of the device: ";

/// The tests that ran, each with its result.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// The running test program: `LIBRARY/device`, or the name of an integration test.
    program: String,
    /// The library of the last unit tests. Cargo runs a package's integration tests right after its unit tests.
    library: String,
    /// `LIBRARY/TEST`, unique among integration tests of the same name.
    qualified: String,
    passed: HashMap<String, bool>,
    /// Release of the guest's kernel.
    kernel: Option<String>,
}

impl Outcomes {
    /// Parses a line of output of cargo, of a test program or of the guest's script. The result of an integration test
    /// is recorded twice: under `PROGRAM NAME` and under `LIBRARY/PROGRAM NAME`.
    pub(crate) fn read(&mut self, line: &str) {
        let line = line.trim();
        if let Some(release) = line.strip_prefix(KERNEL) {
            self.kernel = Some(release.to_owned());
        } else if let Some(library) = line.strip_prefix(DEVICE_TESTS_OF) {
            self.program = format!("{library}/device");
            self.qualified.clone_from(&self.program);
        } else if let Some(program) = line
            .strip_prefix("Running ")
            .and_then(|rest| rest.split_once('('))
            .and_then(|(_, rest)| rest.strip_suffix(')'))
        {
            // For example `target/debug/deps/fake-0123456789abcdef`.
            let file = program.rsplit('/').next().unwrap_or(program);
            self.program = file.rsplit_once('-').map_or(file, |(name, _)| name).into();
            self.qualified.clone_from(&self.program);
            if line.contains("lib.rs (") {
                self.library.clone_from(&self.program);
            } else if line.starts_with("Running tests/") {
                self.qualified = format!("{}/{}", self.library, self.program);
            }
        } else if let Some((name, outcome)) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.rsplit_once(" ... "))
        {
            let passed = outcome == "ok";
            self.passed
                .insert(format!("{} {name}", self.program), passed);
            self.passed
                .insert(format!("{} {name}", self.qualified), passed);
        }
    }

    /// Adds the tests of another guest.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed.extend(other.passed);
        self.kernel = self.kernel.take().or(other.kernel);
    }

    /// Series of the guest's kernel, such as `6.12`; `None` if no device tests ran.
    pub(crate) fn kernel_series(&self) -> Option<String> {
        let mut numbers = self.kernel.as_deref()?.split(['.', '-', '+']);
        Some(format!("{}.{}", numbers.next()?, numbers.next()?))
    }

    /// Result of the test `PROGRAM NAME`; `None` if the test did not run.
    pub(crate) fn passed(&self, test: &str) -> Option<bool> {
        self.passed.get(test).copied()
    }

    /// Program, name and result of each test. Integration tests are listed twice: see [`Self::read`].
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str, bool)> {
        self.passed.iter().filter_map(|(key, &passed)| {
            let (program, name) = key.split_once(' ')?;
            Some((program, name, passed))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_guests_are_collected() {
        let of_guest = |lines: &[&str]| {
            let mut outcomes = Outcomes::default();
            lines.iter().for_each(|line| outcomes.read(line));
            outcomes
        };
        let mut all = Outcomes::default();
        all.add(of_guest(&[
            "Kernel of the device: 6.12.43",
            "Running the device tests of cm",
            "test a ... ok",
        ]));
        all.add(of_guest(&[
            "Running the device tests of rds",
            "test a ... FAILED",
        ]));
        let results = ["cm/device a", "rds/device a", "cm/device b"].map(|test| all.passed(test));
        assert_eq!(results, [Some(true), Some(false), None]);
        assert_eq!(all.kernel_series().as_deref(), Some("6.12"));
    }
}
