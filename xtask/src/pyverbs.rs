//! Coverage of pyverbs, rdma-core's own test suite: every pyverbs case has an equivalent test here.
//!
//! `verbs/tests/pyverbs.md` maps each case to a test. A complete test run checks the results, and fails if a test of
//! the table is missing or failed. Tests on a device must pass on Soft-RoCE and on softnic.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;

use anyhow::{Context, Error, Result, bail, ensure};

use crate::differences;
use crate::outcomes::Outcomes;
use crate::output;
use crate::workspace::Workspace;

/// Path of the table, relative to the workspace's root.
const TABLE: &str = "verbs/tests/pyverbs.md";

/// One case of pyverbs.
#[derive(Debug)]
struct Case<'t> {
    file: &'t str,
    name: &'t str,
    /// Test program and name of the equivalent test.
    twin: Option<(&'t str, &'t str)>,
}

/// Prints the number of cases whose equivalent passed, and the names of the other cases.
///
/// # Errors
///
/// A case without an equivalent, or with an equivalent that did not run or failed.
pub(crate) fn report(workspace: &Workspace, outcomes: &Outcomes) -> Result<()> {
    let path = workspace.root().join(TABLE);
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let (summary, full, short) = compare(&parse(&text)?, outcomes);
    let file = workspace.target().join("pyverbs.txt");
    std::fs::write(&file, full).with_context(|| format!("cannot write {}", file.display()))?;
    output::print(format_args!("{summary}every case is in {}", file.display()));
    ensure!(
        short == 0,
        "{short} cases of pyverbs have no equivalent that passed"
    );
    Ok(())
}

/// Parses the table.
fn parse(text: &str) -> Result<Vec<Case<'_>>> {
    let rows = tables::rows(text, ["case", "test", "where"]);
    let rows = rows.map_err(Error::msg).context(TABLE)?.into_iter();
    let (mut twins, mut tested) = (HashMap::new(), HashSet::new());
    rows.map(|row| {
        let case = parse_row(row.cells, &mut twins, &mut tested);
        case.with_context(|| format!("{TABLE}:{}", row.line))
    })
    .collect()
}

/// Parses a row below those with the cases of `twins` and the tests of `tested`.
fn parse_row<'t>(
    [case, test, kind]: [&'t str; 3],
    twins: &mut HashMap<&'t str, Option<(&'t str, &'t str)>>,
    tested: &mut HashSet<(&'t str, &'t str)>,
) -> Result<Case<'t>> {
    let [case, test] = [case, test].map(|cell| cell.trim_matches('`'));
    let (file, name) = case.split_once(' ').context("expected `FILE CASE`")?;
    let twin = test.split_once(' ');
    ensure!(
        twin.is_some() || test.is_empty(),
        "expected `PROGRAM TEST` or no text"
    );
    match (kind, twin) {
        ("rxe" | "fake", None) => {}
        ("rxe" | "fake", Some(twin)) => {
            let is_on_device = twin.0.ends_with("/device");
            ensure!(
                is_on_device == (kind == "rxe"),
                "the twin of a case for {kind} is not in {}",
                twin.0
            );
            ensure!(tested.insert(twin), "the test is listed twice");
        }
        _ => {
            let other = kind
                .strip_prefix("as `")
                .and_then(|kind| kind.strip_suffix('`'));
            let Some(other) = other else {
                bail!("expected rxe, fake or as `CASE`");
            };
            ensure!(
                twin.is_some() && twins.get(other) == Some(&twin),
                "{other} is not above, or has another twin"
            );
        }
    }
    ensure!(
        twins.insert(name, twin).is_none(),
        "the case is listed twice"
    );
    Ok(Case { file, name, twin })
}

/// The run of an equivalent test that did not pass, or the first one, and its outcome. A test on a device runs on
/// Soft-RoCE and on softnic. A program that must not compile is a file, and one test compiles all of them.
fn outcome((program, name): (&str, &str), outcomes: &Outcomes) -> (String, &'static str) {
    let run = |program: &str| {
        let test = format!("{program} {name}");
        let passed = match program {
            "compile_fail" => outcomes.passed("compile_fail misuse_does_not_compile"),
            _ => outcomes.passed(&test),
        };
        let outcome = match passed {
            Some(true) => "passed",
            Some(false) => "FAILED",
            None => "NOT RUN",
        };
        (test, outcome)
    };
    let first = run(program);
    match differences::on_softnic(program).map(run) {
        Some(second) if first.1 == "passed" && second.1 != "passed" => second,
        _ => first,
    }
}

/// The summary, the full table, and the number of cases whose equivalent did not pass.
fn compare(cases: &[Case<'_>], outcomes: &Outcomes) -> (String, String, usize) {
    let (mut full, mut complaints) = (String::new(), String::new());
    let mut files = BTreeMap::<_, (usize, usize)>::new();
    for case in cases {
        let (twin, outcome) = match case.twin {
            None => ("no twin".to_owned(), "MISSING"),
            Some(twin) => outcome(twin, outcomes),
        };
        let (total, passed) = files.entry(case.file).or_default();
        *total += 1;
        let Case { file, name, .. } = case;
        // Writing to a string cannot fail.
        let _infallible = writeln!(full, "{outcome:8} {file} {name}: {twin}");
        if outcome == "passed" {
            *passed += 1;
        } else {
            let _infallible = writeln!(complaints, "{outcome:8} {file} {name}: {twin}");
        }
    }
    let mut summary = format!("{:24} {:>5} {:>6}\n", "pyverbs", "cases", "passed");
    let (mut total, mut passed) = (0, 0);
    for (file, (of_file, passed_of_file)) in files {
        let _infallible = writeln!(summary, "{file:24} {of_file:>5} {passed_of_file:>6}");
        total += of_file;
        passed += passed_of_file;
    }
    let _infallible = writeln!(summary, "{:24} {total:>5} {passed:>6}", "all");
    (summary + &complaints, full, total - passed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::left_out;

    const TEXT: &str = "| case | test | where |\n|---|---|---|\n\
        | `test_pd.py PDTest.a` | `verbs/device pd::a` | rxe |\n\
        | `test_pd.py PDTest.b` | `verbs/device pd::b` | rxe |\n\
        | `test_pd.py PDTest.c` | `verbs/device pd::c` | rxe |\n\
        | `test_pd.py PDTest.d` | `verbs/device pd::d` | rxe |\n\
        | `test_pd.py PDTest.e` | `verbs/device pd::e` | rxe |\n\
        | `test_dm.py DMTest.a` | `fake dm::a` | fake |\n\
        | `test_dm.py DMTest.b` | | fake |\n\
        | `test_dm.py DMTest.c` | `fake dm::a` | as `DMTest.a` |\n\
        | `test_dm.py DMTest.d` | `compile_fail dm_twice` | fake |\n";

    #[test]
    fn compare_looks_up_each_test_in_its_own_programs() {
        let mut outcomes = Outcomes::default();
        for line in [
            "     Running unittests src/lib.rs (target/debug/deps/softnic-0123456789abcdef)",
            "     Running tests/verbs_suite/main.rs (target/debug/deps/verbs_suite-0123456789abcdef)",
            "test pd::b ... ok",
            "test pd::c ... ok",
            "test pd::e ... FAILED",
            "     Running tests/fake/main.rs (target/debug/deps/fake-0123456789abcdef)",
            "test pd::a ... ok",
            "test dm::a ... ok",
            "     Running tests/compile_fail.rs (target/debug/deps/compile_fail-0123456789abcdef)",
            "test misuse_does_not_compile ... ok",
            "Running the device tests of verbs",
            "test pd::b ... FAILED",
            "test pd::c ... ok",
            "test pd::d ... ok",
            "test pd::e ... ok",
        ] {
            outcomes.read(line);
        }
        let (summary, full, short) = compare(&parse(TEXT).unwrap(), &outcomes);
        assert_eq!(short, 5);
        assert!(full.contains("passed   test_pd.py PDTest.c: verbs/device pd::c"));
        assert!(summary.contains("NOT RUN  test_pd.py PDTest.d: softnic/verbs_suite pd::d"));
        assert!(summary.contains("FAILED   test_pd.py PDTest.e: softnic/verbs_suite pd::e"));
        assert!(summary.contains("NOT RUN  test_pd.py PDTest.a: verbs/device pd::a"));
        assert!(summary.contains("FAILED   test_pd.py PDTest.b"));
        assert!(summary.contains("MISSING  test_dm.py DMTest.b"));
        assert!(full.contains("passed   test_dm.py DMTest.a: fake dm::a"));
        assert!(full.contains("passed   test_dm.py DMTest.c: fake dm::a"));
        assert!(full.contains("passed   test_dm.py DMTest.d: compile_fail dm_twice"));
    }

    #[test]
    fn parse_of_duplicate_or_misplaced_test_fails() {
        for line in [
            "| `test_pd.py PDTest.f` | `fake pd::f` | rxe |",
            "| `test_pd.py PDTest.f` | `verbs/device pd::f` | fake |",
            "| `test_pd.py PDTest.f` | `verbs/device pd::a` | rxe |",
            "| `test_pd.py PDTest.a` | `verbs/device pd::f` | rxe |",
            "| `test_pd.py PDTest.f` | `verbs/device pd::f` | elsewhere |",
            "| `test_pd.py PDTest.f` | `fake dm::a` |",
            "| `test_pd.py PDTest.a` | `fake dm::a` | as `DMTest.a` |",
            "| `test_pd.py PDTest.f` | `verbs/device pd::b` | as `DMTest.a` |",
            "| `test_pd.py PDTest.f` | | as `DMTest.b` |",
            "| `test_pd.py PDTest.f` | `fake dm::a` | as `PDTest.g` |",
        ] {
            assert!(parse(&format!("{TEXT}{line}\n")).is_err(), "{line}");
        }
    }

    #[test]
    fn table_in_repository_has_all_cases() {
        let text = include_str!("../../verbs/tests/pyverbs.md");
        let cases = parse(text).unwrap();
        let is_on_device = |line: &&str| line.ends_with("| rxe |");
        let on_device = text.lines().filter(is_on_device).count();
        assert_eq!((cases.len(), on_device), (235, 115));
        assert!(cases.iter().all(|case| case.twin.is_some()));
        // `ci` leaves none of them out.
        for (program, twin) in cases.iter().filter_map(|case| case.twin) {
            let library = program.split('/').next().unwrap();
            let mut left_out = left_out::of(left_out::Run::RxeInCi);
            assert!(!left_out.any(|row| row.covers(library, twin)), "{twin}");
        }
    }
}
