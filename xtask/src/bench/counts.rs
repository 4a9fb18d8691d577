//! `cargo xtask bench counts`: instructions and allocations of each kind of work, compared with a table in the repository.
//!
//! Callgrind counts the same number on every machine for one compiler. So the table names the compiler, and another one
//! compares nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Error, Result, ensure};
use soft_roce::process;
use soft_roce::setup::{self, Group};

use super::noop::{self, Count};
use crate::output;
use crate::workspace::Workspace;

/// The table, below the workspace's root.
const TABLE: &str = "ci/counts.md";

/// Maximum change of an instruction count.
const TOLERANCE: f64 = 0.02;

/// The document up to the compiler, the heading of the table.
const HEADER: &str = "\
# Counts

Instructions and allocations of one operation, with its completion: `cargo xtask bench counts` writes this table, and
`--check`, as in `ci`, fails at a change of more than 2 %. The cases are in verbs/benches/noop, and include the empty
provider. The history of this file is that of the costs.

## ";

const COLUMNS: [&str; 3] = ["case", "instructions", "allocations"];

/// The counts of a table, or of this machine.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    /// The compiler, as `rustc --version` prints it.
    compiler: String,
    cases: BTreeMap<String, Count>,
}

impl Counts {
    fn measure(workspace: &Workspace) -> Result<Self> {
        let programs = noop::Programs::build(workspace)?;
        let cases = noop::counts(&programs)?;
        let cases = cases
            .into_iter()
            .map(|(case, count)| (case.to_owned(), count));
        Ok(Self {
            compiler: compiler()?,
            cases: cases.collect(),
        })
    }

    /// Reads a table.
    ///
    /// # Errors
    /// A line has another form; the error names it.
    fn read(text: &str) -> Result<Self> {
        let mut counts = Self::default();
        for row in tables::rows(text, COLUMNS).map_err(Error::msg)? {
            row.heading.clone_into(&mut counts.compiler);
            let [case, instructions, allocations] = row.cells;
            let number = |text: &str| {
                text.parse()
                    .with_context(|| format!("line {}: `{text}` is no number", row.line))
            };
            let count = Count {
                instructions: number(instructions)?,
                allocations: number(allocations)?,
            };
            counts.cases.insert(case.to_owned(), count);
        }
        Ok(counts)
    }

    fn table(&self) -> String {
        let columns = COLUMNS.join(" | ");
        let mut text = format!(
            "{HEADER}{}\n\n| {columns} |\n|---|---|---|\n",
            self.compiler
        );
        for (case, count) in &self.cases {
            // Writing to a string cannot fail.
            let _infallible = writeln!(
                text,
                "| {case} | {:.1} | {} |",
                count.instructions, count.allocations
            );
        }
        text
    }

    /// The differences of `self`, the present counts, from a table's.
    fn differences(&self, table: &Self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for (case, now) in &self.cases {
            let Some(before) = table.cases.get(case) else {
                all.push(format!("{case}: not in the table"));
                continue;
            };
            let change = now.instructions - before.instructions;
            if change.abs() > before.instructions * TOLERANCE {
                all.push(format!(
                    "{case}: {:.1} instructions, {:.1} in the table ({:+.1} %)",
                    now.instructions,
                    before.instructions,
                    change / before.instructions * 100.0
                ));
            }
            if now.allocations > before.allocations {
                all.push(format!(
                    "{case}: {} allocations, {} in the table",
                    now.allocations, before.allocations
                ));
            }
        }
        let absent = table
            .cases
            .keys()
            .filter(|case| !self.cases.contains_key(*case));
        all.extend(absent.map(|case| format!("{case}: no such case any more")));
        all
    }
}

/// Writes the table of this machine's counts, or with `check` compares them with the table.
///
/// # Errors
/// A count differs; the error names each, and the remedy.
pub(crate) fn run(workspace: &Workspace, check: bool) -> Result<()> {
    setup::ensure(&[Group::Build, Group::Bench])?;
    let path = workspace.root().join(TABLE);
    if !check {
        let table = Counts::measure(workspace)?.table();
        output::print(format_args!("{table}"));
        return fs::write(&path, table).with_context(|| format!("cannot write {}", path.display()));
    }
    let table = read(&path)?;
    let compiler = compiler()?;
    if table.compiler != compiler {
        output::print(format_args!(
            "{TABLE} is of {}, and this is {compiler}: nothing was compared; `cargo xtask bench counts` writes it",
            table.compiler
        ));
        return Ok(());
    }
    let differences = Counts::measure(workspace)?.differences(&table);
    ensure!(
        differences.is_empty(),
        "{}\nif that is the intention, write the table by `cargo xtask bench counts`",
        differences.join("\n")
    );
    Ok(())
}

fn read(path: &Path) -> Result<Counts> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Counts::read(&text).with_context(|| path.display().to_string())
}

fn compiler() -> Result<String> {
    let text = process::output(Command::new("rustc").arg("--version"))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(cases: &[(&str, f64, f64)]) -> Counts {
        let cases = cases.iter().map(|&(case, instructions, allocations)| {
            let count = Count {
                instructions,
                allocations,
            };
            (case.to_owned(), count)
        });
        Counts {
            compiler: "rustc 1.95.0".to_owned(),
            cases: cases.collect(),
        }
    }

    #[test]
    fn table_is_read_as_it_is_written() {
        let counts = counts(&[("recv", 104.0, 0.0), ("send", 119.8, 0.25)]);
        assert_eq!(Counts::read(&counts.table()).unwrap(), counts);
        let with = |row: &str| Counts::read(&(counts.table() + row));
        let error = format!("{:#}", with("| send | many | 0 |\n").unwrap_err());
        assert!(
            error.contains("`many`") && error.contains("no number"),
            "{error}"
        );
        assert!(with("| send | 1 |\n").is_err());
    }

    #[test]
    fn change_beyond_the_tolerance_is_a_difference() {
        let table = counts(&[("send", 100.0, 0.0)]);
        assert_eq!(counts(&[("send", 102.0, 0.0)]).differences(&table), [""; 0]);
        for changed in [
            counts(&[("send", 102.1, 0.0)]),
            counts(&[("send", 97.9, 0.0)]),
            counts(&[("send", 100.0, 0.01)]),
            counts(&[("send", 100.0, 0.0), ("recv", 100.0, 0.0)]),
            counts(&[]),
        ] {
            assert_eq!(changed.differences(&table).len(), 1, "{changed:?}");
        }
    }
}
