//! The table of dependencies in `DEPENDENCIES.md`, compared with the manifests; and cargo-deny, where it is installed.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use cargo_metadata::{DependencyKind, Package};
use soft_roce::process;

use crate::output;
use crate::packages::published;
use crate::workspace::{self, Workspace};

pub(crate) const FILE: &str = "DEPENDENCIES.md";

/// Heading of the packages that a published package needs outside of its tests.
const PUBLISHED: &str = "Of published packages";
/// Heading of the other packages.
const OTHERS: &str = "Of tests and tools";

const TOOL: &str = "cargo-deny";

/// Complains about dependencies without a row, in the wrong table, or gone.
pub(crate) fn complaints(document: &str, packages: &[Package]) -> Vec<String> {
    let names = |package: &Package, with_tests: bool| -> Vec<String> {
        let dependencies = package.dependencies.iter();
        dependencies
            .filter(|dependency| dependency.source.is_some())
            .filter(|dependency| with_tests || dependency.kind != DependencyKind::Development)
            .map(|dependency| dependency.name.clone())
            .collect()
    };
    let of_published: BTreeSet<String> = published(packages)
        .flat_map(|package| names(package, false))
        .collect();
    let all: BTreeSet<String> = packages
        .iter()
        .flat_map(|package| names(package, true))
        .collect();
    let tables = match tables::all(document) {
        Ok(tables) => tables,
        Err(error) => return vec![format!("{FILE}:{error}")],
    };
    let rows = tables.iter().flat_map(|table| &table.rows);
    let rows = rows.flat_map(|row| tables::quoted(row.cells[0]).map(|name| (name, row.heading)));
    let rows: BTreeMap<_, _> = rows.collect();
    let mut complaints = Vec::new();
    for name in &all {
        let heading = match of_published.contains(name) {
            true => PUBLISHED,
            false => OTHERS,
        };
        if rows.get(name.as_str()) != Some(&heading) {
            complaints.push(format!("{FILE}: `{name}` has no row below `{heading}`"));
        }
    }
    let removed = rows.keys().filter(|name| !all.contains(**name));
    complaints.extend(removed.map(|name| format!("{FILE}: no manifest names `{name}`")));
    complaints
}

/// Checks licences, sources and versions of the whole tree, if cargo-deny is installed; otherwise prints so.
pub(crate) fn deny_if_possible(workspace: &Workspace) -> Result<()> {
    if process::find_program(TOOL).is_none() {
        output::print(format_args!(
            "licences were not checked: {TOOL} is not installed"
        ));
        return Ok(());
    }
    let mut cargo = workspace::cargo(workspace);
    cargo.args(["deny", "--offline", "check", "bans", "licenses", "sources"]);
    process::run(&mut cargo)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_without_a_row_or_in_another_table_are_reported() {
        let workspace = Workspace::load().unwrap();
        let packages = workspace.packages();
        let document = std::fs::read_to_string(workspace.root().join(FILE)).unwrap();
        assert_eq!(complaints(&document, packages), [""; 0]);
        let without = document.replace("| `libc` |", "| libc |");
        let expected = format!("{FILE}: `libc` has no row below `{PUBLISHED}`");
        assert_eq!(complaints(&without, packages), [&*expected]);
        let moved = without
            + &format!(
                "\n## {OTHERS}\n| package | use |\n|---|---|\n| `libc` | C |\n| `gone` | |\n"
            );
        let removed = format!("{FILE}: no manifest names `gone`");
        assert_eq!(complaints(&moved, packages), [expected, removed]);
    }
}
