//! Which tests have run and passed, as their programs print it.

use std::collections::HashMap;

/// What the script for the guest says before it runs the device tests of a package.
pub(crate) const DEVICE_TESTS_OF: &str = "Running the device tests of ";

/// The tests that ran, and whether they passed.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// The test program that is running: `PACKAGE/device`, or the name of an integration test.
    program: String,
    /// The library whose tests cargo has run last: those of its package's integration tests follow.
    library: String,
    /// `LIBRARY/TEST`, which tells integration tests of one name apart.
    qualified: String,
    passed: HashMap<String, bool>,
}

impl Outcomes {
    /// Reads a line of the output of cargo, of a test program, or of the script for the guest. An integration test is
    /// known by the name of its program, and by that with its package's before it.
    pub(crate) fn read(&mut self, line: &str) {
        let line = line.trim();
        if let Some(package) = line.strip_prefix(DEVICE_TESTS_OF) {
            self.program = format!("{package}/device");
            self.qualified.clone_from(&self.program);
        } else if let Some(program) = line
            .strip_prefix("Running ")
            .and_then(|rest| rest.split_once('('))
            .and_then(|(_, rest)| rest.strip_suffix(')'))
        {
            // As in `target/debug/deps/fake-0123456789abcdef`.
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

    /// Whether the test has passed that is called `PROGRAM NAME`; `None` if it did not run.
    pub(crate) fn passed(&self, test: &str) -> Option<bool> {
        self.passed.get(test).copied()
    }

    /// Each test with its program, and whether it has passed. Integration tests are there twice: see
    /// [`Self::read`].
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str, bool)> {
        self.passed.iter().filter_map(|(key, &passed)| {
            let (program, name) = key.split_once(' ')?;
            Some((program, name, passed))
        })
    }
}
