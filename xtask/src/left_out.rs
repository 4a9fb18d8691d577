//! Tests that a run leaves out, with the reason of each: `ci/left_out.md`, which describes the runs.

use std::fmt;
use std::sync::LazyLock;

use anyhow::{Context, Error, Result, ensure};

/// Path of the table, relative to the workspace's root.
pub(crate) const TABLE: &str = "ci/left_out.md";

/// The rows of the table.
pub(crate) static ALL: LazyLock<Vec<LeftOut<'static>>> = LazyLock::new(|| {
    parse(include_str!("../../ci/left_out.md")).expect("a test parses this table")
});

/// A run that leaves out tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    Softnic,
    Rxe,
    RxeInCi,
    Card,
    Rules,
    Miri,
    Arm64,
    Valgrind,
    AddressSanitizer,
}

impl Run {
    const ALL: [Self; 9] = [
        Self::Softnic,
        Self::Rxe,
        Self::RxeInCi,
        Self::Card,
        Self::Rules,
        Self::Miri,
        Self::Arm64,
        Self::Valgrind,
        Self::AddressSanitizer,
    ];
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Softnic => "softnic",
            Self::Rxe => "rxe",
            Self::RxeInCi => "rxe in ci",
            Self::Card => "card",
            Self::Rules => "rules",
            Self::Miri => "Miri",
            Self::Arm64 => "ARM64",
            Self::Valgrind => "valgrind",
            Self::AddressSanitizer => "AddressSanitizer",
        })
    }
}

/// A row of the table.
#[derive(Debug)]
pub(crate) struct LeftOut<'t> {
    /// A library, or a suite on softnic; `*` for all.
    pub(crate) library: &'t str,
    /// A part of the tests' names, or `MODULE::*` for the tests of a module, or `*` for all of the library.
    pub(crate) tests: &'t str,
    pub(crate) run: Run,
    pub(crate) reason: &'t str,
}

impl<'t> LeftOut<'t> {
    /// The part of the tests' names.
    pub(crate) fn part(&self) -> &'t str {
        self.tests.trim_end_matches('*')
    }

    /// Whether the row is of the test with this name, or of its module.
    pub(crate) fn covers(&self, library: &str, test: &str) -> bool {
        self.library == library
            && match self.tests.strip_suffix('*') {
                Some(module) => test.starts_with(module),
                None => test == self.tests,
            }
    }
}

/// The tests left out of a run.
pub(crate) fn of(run: Run) -> impl Iterator<Item = &'static LeftOut<'static>> {
    ALL.iter().filter(move |row| row.run == run)
}

/// Arguments of a test program of `library` in a run.
pub(crate) fn arguments(run: Run, library: &str) -> Vec<&'static str> {
    of(run)
        .filter(|row| [library, "*"].contains(&row.library))
        .flat_map(|row| ["--skip", row.part()])
        .collect()
}

/// Parses the table.
///
/// # Errors
///
/// A row without a reason, of an unknown run, or with another pattern than [`LeftOut::tests`]; the error names its line.
pub(crate) fn parse(text: &str) -> Result<Vec<LeftOut<'_>>> {
    let rows = tables::rows(text, ["library", "tests", "where", "reason"]);
    let rows = rows.map_err(Error::msg).context(TABLE)?.into_iter();
    rows.map(|row| parse_row(row.cells).with_context(|| format!("{TABLE}:{}", row.line)))
        .collect()
}

fn parse_row<'t>([library, tests, run, reason]: [&'t str; 4]) -> Result<LeftOut<'t>> {
    let mut runs = Run::ALL.into_iter();
    let run = runs.find(|one| one.to_string() == run);
    let tests = tests.trim_matches('`');
    let module = tests.strip_suffix('*');
    ensure!(
        module.is_none_or(|module| module.is_empty() || module.ends_with("::")),
        "a pattern ends with `::*`, to cover a whole module"
    );
    ensure!(!reason.is_empty(), "the reason is absent");
    Ok(LeftOut {
        library,
        tests,
        run: run.context("no such run")?,
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &str = "| library | tests | where | reason |\n|---|---|---|---|\n";

    #[test]
    fn parse_of_incomplete_row_fails() {
        for row in [
            "| verbs | `events::*` | rxe | |",
            "| verbs | `events::*` | rxe |",
            "| verbs | `events::*` | siw | another device |",
            "| verbs | `eve*` | rxe | a part of a name |",
        ] {
            assert!(parse(&format!("{COLUMNS}{row}\n")).is_err(), "{row}");
        }
        let all = format!("{COLUMNS}| rds | `*` | rxe | all of a library |\n");
        assert_eq!(parse(&all).unwrap().len(), 1);
    }

    #[test]
    fn runs_of_the_table_leave_out_their_tests() {
        let numbers = Run::ALL.map(|run| of(run).count());
        assert!(numbers.iter().all(|number| *number > 0), "{numbers:?}");
        assert_eq!(numbers.iter().sum::<usize>(), ALL.len());
        let skipped = arguments(Run::RxeInCi, "rds");
        assert_eq!(skipped, ["--skip", "tasks::", "--skip", "semantics::"]);
        let skipped = arguments(Run::Miri, "verbs").len();
        assert_eq!(skipped, 2 * of(Run::Miri).count());
    }
}
