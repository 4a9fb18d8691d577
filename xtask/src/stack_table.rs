//! The table of stacks: results of the device tests and capabilities, on each stack tested so far.
//!
//! A complete run records its stacks, softnic and that of the guests, in `target/stacks`, and prints all of them. So does a run
//! of all tests on one stack, `--stack softnic` or `--device-only`. The reasons for capabilities that differ are in
//! `verbs/tests/capabilities.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Error, Result, bail, ensure};

use crate::differences::{self, Device};
use crate::outcomes::Outcomes;
use crate::output;
use crate::stack::Stack;
use crate::workspace::Workspace;

/// Path of the reasons, relative to the workspace's root.
const REASONS: &str = "verbs/tests/capabilities.md";

/// Variable with the file for the capabilities, in the device tests.
pub(crate) const VARIABLE: &str = "CAPABILITIES";

/// Results of a stack.
#[derive(Debug, Default, PartialEq, Eq)]
struct Record {
    /// Passed and failed tests of each library.
    suites: BTreeMap<String, (u32, u32)>,
    capabilities: BTreeMap<String, bool>,
}

/// The file for the capabilities of `device`.
pub(crate) fn capabilities(workspace: &Workspace, device: Device) -> PathBuf {
    match device {
        Device::Softnic => workspace.target().join("softnic-capabilities.txt"),
        // The folder that guests can write to.
        Device::Rxe => workspace.for_guests().out().join("capabilities.txt"),
    }
}

/// Records the results of a complete run, on softnic and on `stack`, and prints the table.
///
/// # Errors
///
/// The device tests wrote no capabilities, or a capability differs between the stacks without a reason.
pub(crate) fn report(workspace: &Workspace, stack: &Stack, outcomes: &Outcomes) -> Result<()> {
    record(workspace, "softnic", Device::Softnic, outcomes)?;
    report_guests(workspace, stack, outcomes)
}

/// Records the results of the device tests on softnic, and prints the table.
///
/// # Errors
///
/// As for [`report`].
pub(crate) fn report_softnic(workspace: &Workspace, outcomes: &Outcomes) -> Result<()> {
    record(workspace, "softnic", Device::Softnic, outcomes)?;
    print(workspace)
}

/// Records the results of the device tests in guests with `stack`, and prints the table.
///
/// # Errors
///
/// As for [`report`].
pub(crate) fn report_guests(
    workspace: &Workspace,
    stack: &Stack,
    outcomes: &Outcomes,
) -> Result<()> {
    record_guests(workspace, stack, outcomes)?;
    print(workspace)
}

/// Records the results of the device tests in guests with `stack`.
///
/// # Errors
///
/// The device tests wrote no capabilities.
pub(crate) fn record_guests(
    workspace: &Workspace,
    stack: &Stack,
    outcomes: &Outcomes,
) -> Result<()> {
    let kernel = outcomes
        .kernel_series()
        .context("no device test ran in a guest")?;
    let name = format!("{kernel}/{}", stack.rdma_core_release()?);
    record(workspace, &name, Device::Rxe, outcomes)
}

/// Records the results on a stack called `name`.
fn record(workspace: &Workspace, name: &str, device: Device, outcomes: &Outcomes) -> Result<()> {
    let capabilities = capabilities(workspace, device);
    let found = fs::read_to_string(&capabilities)
        .with_context(|| format!("the device tests wrote no {}", capabilities.display()))?;
    let mut text = String::new();
    for (library, (passed, failed)) in differences::suites(outcomes, device) {
        // Writing to a string cannot fail.
        let _infallible = writeln!(text, "suite {library} {passed} {failed}");
    }
    for line in found.lines() {
        let _infallible = writeln!(text, "capability {line}");
    }
    let file = file(workspace, name);
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Prints the table of all recorded stacks.
fn print(workspace: &Workspace) -> Result<()> {
    let mut stacks = BTreeMap::new();
    for entry in fs::read_dir(workspace.results().join("stacks"))?.flatten() {
        let path = entry.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let text = fs::read_to_string(&path)?;
        let record = parse(&text).with_context(|| path.display().to_string())?;
        stacks.insert(name.replace('+', "/"), record);
    }
    let path = workspace.root().join(REASONS);
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let (table, unexplained) = table(&stacks, &reasons(&text)?);
    output::print(table);
    ensure!(
        unexplained.is_empty(),
        "{REASONS} has no reason for {}",
        unexplained.join(", ")
    );
    Ok(())
}

/// File of a stack; the slash of the name is a plus there.
fn file(workspace: &Workspace, name: &str) -> PathBuf {
    let name = name.replace('/', "+");
    workspace
        .results()
        .join("stacks")
        .join(format!("{name}.txt"))
}

fn parse(text: &str) -> Result<Record> {
    let mut record = Record::default();
    for line in text.lines() {
        match *line.split_whitespace().collect::<Vec<_>>() {
            ["suite", library, passed, failed] => {
                let counts = (passed.parse()?, failed.parse()?);
                record.suites.insert(library.to_owned(), counts);
            }
            ["capability", name, state @ ("yes" | "no")] => {
                record.capabilities.insert(name.to_owned(), state == "yes");
            }
            _ => bail!("`{line}` is neither a suite nor a capability: delete the file"),
        }
    }
    Ok(record)
}

/// Reasons by capability.
fn reasons(text: &str) -> Result<BTreeMap<&str, &str>> {
    let rows = tables::rows(text, ["capability", "reason"]);
    let rows = rows.map_err(Error::msg).context(REASONS)?.into_iter();
    Ok(rows.map(|row| row.cells.into()).collect())
}

/// The table, and the capabilities that differ without a reason.
fn table(
    stacks: &BTreeMap<String, Record>,
    reasons: &BTreeMap<&str, &str>,
) -> (String, Vec<String>) {
    let mut text = format!("{:22}", "device tests of");
    let mut add = |cell: &str| text += cell;
    let cells = |cell: &dyn Fn(&Record) -> String| -> String {
        let cells = stacks
            .values()
            .map(|record| format!(" {:>10}", cell(record)));
        cells.collect()
    };
    for name in stacks.keys() {
        add(&format!(" {name:>10}"));
    }
    let libraries: BTreeSet<&String> = stacks.values().flat_map(|of| of.suites.keys()).collect();
    for library in libraries {
        let results = cells(&|record| match record.suites.get(library) {
            None => "-".to_owned(),
            Some((passed, 0)) => passed.to_string(),
            Some((passed, failed)) => format!("{passed} -{failed}"),
        });
        add(&format!("\n{library:22}{results}"));
    }
    let capabilities = stacks.values().flat_map(|of| of.capabilities.keys());
    let mut unexplained = Vec::new();
    for name in capabilities.collect::<BTreeSet<_>>() {
        let states: Vec<Option<&bool>> = stacks
            .values()
            .map(|of| of.capabilities.get(name))
            .collect();
        let differs = states.iter().any(|state| *state != states[0]);
        let results = cells(&|record| match record.capabilities.get(name) {
            None => "-".to_owned(),
            Some(true) => "yes".to_owned(),
            Some(false) => "no".to_owned(),
        });
        let reason = reasons.get(name.as_str());
        add(&format!("\n{name:22}{results}  {}", reason.unwrap_or(&"")));
        if differs && reason.is_none() {
            unexplained.push(name.clone());
        }
    }
    (text, unexplained)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_a_column_for_each_stack_and_names_capabilities_without_a_reason() {
        let old = parse("suite verbs 9 0\ncapability flush no\ncapability speed no\n").unwrap();
        let new =
            parse("suite verbs 8 1\nsuite cm 3 0\ncapability flush yes\ncapability speed yes\n");
        let stacks = [("6.12/44", old), ("7.2/65", new.unwrap())];
        let stacks = stacks
            .map(|(name, record)| (name.to_owned(), record))
            .into();
        let all = reasons("| capability | reason |\n|---|---|\n| flush | since rdma-core 45 |\n")
            .unwrap();
        let (text, unexplained) = table(&stacks, &all);
        let words: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(words[0], ["device", "tests", "of", "6.12/44", "7.2/65"]);
        assert_eq!(words[1], ["cm", "-", "3"]);
        assert_eq!(words[2], ["verbs", "9", "8", "-1"]);
        assert_eq!(words[3], ["flush", "no", "yes", "since", "rdma-core", "45"]);
        assert_eq!(unexplained, ["speed"]);
    }

    #[test]
    fn parse_of_another_line_fails() {
        for line in ["suite verbs", "capability flush perhaps", "verbs 1 0"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn reasons_in_the_repository_are_those_of_recorded_capabilities() {
        let test = include_str!("../../verbs/tests/device/capabilities.rs");
        let all = reasons(include_str!("../../verbs/tests/capabilities.md")).unwrap();
        assert!(all.len() > 5);
        for name in all.keys() {
            assert!(test.contains(&format!("\"{name}\"")), "{name}");
        }
    }

    /// Linux and rdma-core in a row of the documentation's table.
    fn documented(feature: &str) -> [String; 2] {
        let source = include_str!("../../verbs/src/lib.rs");
        let page = source.replace("//! ", "");
        let rows =
            tables::rows(&page, ["feature", "Soft-RoCE's since", "rdma-core's since"]).unwrap();
        let mut found = rows.iter().filter(|row| row.cells[0].contains(feature));
        let [_, linux, rdma_core] = found.next().unwrap().cells;
        assert_eq!(found.next(), None, "{feature}");
        [linux, rdma_core].map(str::to_owned)
    }

    #[test]
    fn reasons_name_the_kernel_and_the_library_of_the_documentation() {
        let all = reasons(include_str!("../../verbs/tests/capabilities.md")).unwrap();
        for (capability, feature) in [
            ("atomic-write", "[`op::AtomicWrite`]"),
            ("flush", "[`op::Flush`]"),
            ("paging-on-demand", "(mr::Registration::on_demand)"),
            ("prefetch", "(ProtectionDomain::advise)"),
            (
                "provider-memory",
                "(ProtectionDomain::alloc_provider_memory)",
            ),
        ] {
            let [linux, rdma_core] = documented(feature);
            let since = match &*linux {
                "any" => format!("rdma-core {rdma_core}"),
                _ => format!("{linux} and rdma-core {rdma_core}"),
            };
            let reason = all[capability].split(';').next().unwrap();
            assert_eq!(reason, since, "{capability}");
        }
    }
}
