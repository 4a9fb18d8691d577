//! Conformance cases of RDS: protocol and socket requirements, and the tests of each.
//!
//! `rds/tests/cases.md` lists the tests of each case. A complete test run prints every case, and fails if a listed test
//! did not run or failed. Cases without a test are printed as missing.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

use anyhow::{Context, Error, Result, ensure};

use crate::differences;
use crate::outcomes::Outcomes;
use crate::output;
use crate::workspace::Workspace;

/// Path of the table, relative to the workspace's root.
const TABLE: &str = "rds/tests/cases.md";

/// Test programs with tests of RDS. The device tests also run on softnic.
const PROGRAMS: [&str; 8] = [
    "rds",
    "rds/device",
    "rdspreload",
    "rdspreload/device",
    "rds_proto",
    "rds_proto/simulator",
    "rds_proto/fuzz",
    "two_hosts",
];

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
struct Case<'t> {
    id: &'t str,
    what: &'t str,
    /// Test functions of the case, in any of the programs.
    tests: Vec<&'t str>,
}

/// Prints every case with its tests and their results.
///
/// # Errors
///
/// A listed test did not run, failed, or shares its name with another test.
pub(crate) fn report(workspace: &Workspace, outcomes: &Outcomes) -> Result<()> {
    let path = workspace.root().join(TABLE);
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let (table, short) = compare(&parse(&text)?, outcomes);
    output::print(table.trim_end());
    ensure!(
        short == 0,
        "{short} cases of RDS have a test that has not passed"
    );
    Ok(())
}

/// Parses the rows of the table.
fn parse(text: &str) -> Result<Vec<Case<'_>>> {
    let rows = tables::rows(text, ["case", "behavior", "tests"]);
    let mut ids = BTreeSet::new();
    let mut parse = |[id, what, tests]: [_; 3]| {
        ensure!(ids.insert(id), "the case {id} is listed twice");
        let names: Vec<_> = tables::quoted(tests).collect();
        ensure!(
            tests.is_empty() || !names.is_empty(),
            "no test in backquotes"
        );
        Ok(Case {
            id,
            what,
            tests: names,
        })
    };
    let rows = rows.map_err(Error::msg).context(TABLE)?.into_iter();
    rows.map(|row| parse(row.cells).with_context(|| format!("{TABLE}:{}", row.line)))
        .collect()
}

/// The printed table, and the number of cases with a test that did not pass.
fn compare(cases: &[Case<'_>], outcomes: &Outcomes) -> (String, usize) {
    // By function: the tests of that name, and whether each has passed on all devices.
    let mut ran = HashMap::<&str, HashMap<(&str, &str), bool>>::new();
    for (program, name, passed) in outcomes.iter() {
        let mut programs = PROGRAMS.iter().copied();
        let program = programs.find(|candidate| {
            *candidate == program || differences::on_softnic(candidate) == Some(program)
        });
        if let Some(program) = program {
            let function = name.rsplit("::").next().unwrap_or(name);
            let tests = ran.entry(function).or_default();
            *tests.entry((program, name)).or_insert(true) &= passed;
        }
    }
    let (mut passed, mut missing, mut short) = (0, 0, 0);
    let mut table = format!("{:4} {:8} {:44} tests\n", "case", "outcome", "what");
    for Case { id, what, tests } in cases {
        let outcome = |test: &&str| match ran.get(test) {
            None => "NOT RUN",
            Some(tests) if tests.len() > 1 => "TWICE",
            Some(tests) if tests.values().all(|passed| *passed) => "passed",
            Some(_) => "FAILED",
        };
        let bad = tests.iter().map(outcome).find(|one| *one != "passed");
        let (outcome, count) = match bad {
            Some(bad) => (bad, &mut short),
            None if tests.is_empty() => ("MISSING", &mut missing),
            None => ("passed", &mut passed),
        };
        *count += 1;
        // Writing to a string cannot fail.
        let _infallible = writeln!(table, "{id:4} {outcome:8} {what:44} {}", tests.join(", "));
    }
    let _infallible = writeln!(
        table,
        "{} cases of RDS: {passed} passed, {short} have not, {missing} have no test",
        cases.len()
    );
    (table, short)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Cases\n\n\
        | case | behavior | tests |\n|---|---|---|\n\
        | W01 | header | `golden`, `extremes` |\n\
        | C04 | 4.1, 3.0 | `versions` |\n\
        | C07 | host off | |\n\
        | P16 | fuzz | `private_data` |\n";

    fn outcomes(lines: &[&str]) -> Outcomes {
        let mut outcomes = Outcomes::default();
        lines.iter().for_each(|line| outcomes.read(line));
        outcomes
    }

    const RUN: [&str; 11] = [
        "     Running unittests src/lib.rs (target/debug/deps/rds_proto-0123456789abcdef)",
        "test wire::golden ... ok",
        "test wire::extremes ... ok",
        "     Running tests/fuzz/main.rs (target/debug/deps/fuzz-0123456789abcdef)",
        "test private_data ... ok",
        "     Running unittests src/lib.rs (target/debug/deps/rsocket_proto-0123456789abcdef)",
        "test golden ... FAILED",
        "     Running tests/fuzz/main.rs (target/debug/deps/fuzz-fedcba9876543210)",
        "test private_data ... FAILED",
        "     Running tests/two_hosts/main.rs (target/debug/deps/two_hosts-0123456789abcdef)",
        "test kernel_rds::versions ... ok",
    ];

    #[test]
    fn compare_counts_only_tests_of_rds_programs() {
        let (table, short) = compare(&parse(TEXT).unwrap(), &outcomes(&RUN));
        assert_eq!(short, 0, "{table}");
        assert!(table.contains("C07  MISSING  host off"), "{table}");
        assert!(table.contains("C04  passed   4.1, 3.0"), "{table}");
        assert!(
            table.ends_with("4 cases of RDS: 3 passed, 0 have not, 1 have no test\n"),
            "{table}"
        );
    }

    #[test]
    fn compare_with_failed_or_absent_test_names_the_case() {
        let cases = parse(TEXT).unwrap();
        let (table, short) = compare(&cases, &outcomes(&RUN[..2]));
        assert_eq!(short, 3);
        assert!(table.contains("W01  NOT RUN"), "{table}");
        let failed = RUN.map(|line| line.replace("extremes ... ok", "extremes ... FAILED"));
        let failed = outcomes(&failed.each_ref().map(String::as_str));
        let (table, short) = compare(&cases, &failed);
        assert_eq!(short, 1);
        assert!(table.contains("W01  FAILED"), "{table}");
        let mut twice = RUN.to_vec();
        twice.push("test stream::golden ... ok");
        let (table, short) = compare(&cases, &outcomes(&twice));
        assert_eq!(short, 1);
        assert!(table.contains("W01  TWICE"), "{table}");
    }

    #[test]
    fn compare_needs_the_devices_that_ran_a_test() {
        const SOFTNIC: [&str; 2] = [
            "     Running unittests src/lib.rs (target/debug/deps/softnic-0123456789abcdef)",
            "     Running tests/rds_suite/main.rs (target/debug/deps/rds_suite-0123456789abcdef)",
        ];
        let cases =
            parse("| case | behavior | tests |\n|---|---|---|\n| S03 | names | `names` |\n");
        let cases = cases.unwrap();
        let short = |on_softnic: &str, on_rxe: &str| {
            let rxe = ["Running the device tests of rds", on_rxe];
            let lines = [&SOFTNIC[..], &[on_softnic], &rxe].concat();
            compare(&cases, &outcomes(&lines)).1
        };
        let (passed, failed) = ("test calls::names ... ok", "test calls::names ... FAILED");
        assert_eq!(short(passed, passed), 0);
        assert_eq!(short(passed, ""), 0);
        assert_eq!(short("", ""), 1);
        assert_eq!(short(failed, passed), 1);
        assert_eq!(short(passed, failed), 1);
    }

    #[test]
    fn parse_of_incomplete_or_duplicate_row_fails() {
        for line in [
            "| W02 | two columns |",
            "| W02 | no code | test |",
            "| W02 | open | `test` ",
            "| W01 | again | |",
        ] {
            assert!(parse(&format!("{TEXT}{line}\n")).is_err(), "{line}");
        }
    }

    #[test]
    fn table_in_repository_has_all_cases() {
        let cases = parse(include_str!("../../rds/tests/cases.md")).unwrap();
        let of = |kind| {
            cases
                .iter()
                .filter(|case| case.id.starts_with(kind))
                .count()
        };
        let kinds = ['W', 'P', 'S', 'C', 'D', 'F', 'G', 'R', 'M'].map(of);
        assert_eq!(kinds, [13, 16, 21, 12, 14, 11, 7, 16, 3]);
        assert_eq!(cases.len(), 113);
    }
}
