//! pyverbs, rdma-core's own test suite, on a softnic device, in a process of its own.
//!
//! No case may fail. `skipped.md` has the reason for each case that is skipped.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{self, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Time-out of the suite that a correct run never reaches.
const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// Environment variable with the folder of the suite, in place of the installed one. `PYTHONPATH` names its pyverbs.
const SUITE: &str = "SOFTNIC_PYVERBS";

/// The installed suite.
const INSTALLED: &str = "/usr/share/doc/rdma-core/tests";

/// The distribution's Python, for which its pyverbs is built.
const PYTHON: &str = "/usr/bin/python3";

/// Minimum number of cases that pass.
const MIN_PASSED: usize = 90;

/// Result of a case.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Ok,
    Skipped(String),
    Failed(String),
}

/// A row of the table: cases that are skipped.
#[derive(Debug)]
struct Row<'t> {
    /// The first release with such cases.
    since: u32,
    file: &'t str,
    /// `Class.case`, or `Class.*`.
    cases: &'t str,
}

impl Row<'_> {
    fn covers(&self, file: &str, case: &str) -> bool {
        let is_case = match self.cases.strip_suffix('*') {
            Some(class) => case.starts_with(class),
            None => case == self.cases,
        };
        self.file == file && is_case
    }
}

/// The rows of the table.
fn rows(table: &str) -> Vec<Row<'_>> {
    let rows = tables::rows(table, ["case", "since", "reason"]).unwrap();
    let rows = rows.into_iter().map(|row| {
        let [case, since, reason] = row.cells;
        assert!(!reason.is_empty(), "the reason is absent: {row:?}");
        let (file, cases) = case.trim_matches('`').split_once(' ').unwrap();
        Row {
            since: since.parse().unwrap(),
            file,
            cases,
        }
    });
    rows.collect()
}

/// Complaints about the results of a release: failed cases, skipped ones without a row, and rows without a skipped case.
fn complaints(rows: &[Row<'_>], Report { release, results }: &Report) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut is_used = vec![false; rows.len()];
    for ((file, case), outcome) in results {
        let row = rows.iter().position(|row| row.covers(file, case));
        match (outcome, row) {
            (Outcome::Failed(error), _) => complaints.push(format!("{file} {case}: {error}")),
            (Outcome::Skipped(reason), None) => {
                complaints.push(format!(
                    "{file} {case} has no row, and is skipped: {reason}"
                ));
            }
            (Outcome::Ok, Some(_)) => {
                complaints.push(format!("{file} {case} has a row, and passes"))
            }
            (Outcome::Skipped(_), Some(row)) => is_used[row] = true,
            (Outcome::Ok, None) => {}
        }
    }
    for (row, is_used) in rows.iter().zip(is_used) {
        if !is_used && row.since <= *release {
            complaints.push(format!("no skipped case for the row {row:?}"));
        }
    }
    complaints
}

/// The output of `run.py`.
struct Report {
    /// Release of rdma-core.
    release: u32,
    /// Results by file and case.
    results: BTreeMap<(String, String), Outcome>,
}

impl Report {
    fn parse(printed: &str) -> Self {
        let mut lines = printed.lines();
        let release = lines.next().unwrap().split('.').next().unwrap();
        let results = lines.map(|line| {
            let mut words = line.splitn(4, ' ');
            let mut word = || words.next().unwrap_or_default().to_owned();
            let (file, case, outcome, reason) = (word(), word(), word(), word());
            let outcome = match outcome.as_str() {
                "ok" => Outcome::Ok,
                "skipped" => Outcome::Skipped(reason),
                _ => Outcome::Failed(reason),
            };
            ((file, case), outcome)
        });
        Self {
            release: release.parse().unwrap(),
            results: results.collect(),
        }
    }
}

/// Runs the suite on a loopback address.
///
/// # Panics
/// If the suite does not end in time.
fn run() -> Output {
    let [.., low] = process::id().to_be_bytes();
    let addr = format!("127.{}.0.2", 128 | low & 0x3f);
    let folder = tempfile::tempdir().unwrap();
    let (out, err) = (folder.path().join("out"), folder.path().join("err"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pyverbs/run.py");
    let mut command = Command::new(env!("CARGO_BIN_EXE_softnic"));
    command.args(["run", "--addr", &addr, "--", PYTHON]);
    let suite = env::var_os(SUITE).map_or(INSTALLED.into(), PathBuf::from);
    command.args([&script, &suite, folder.path()]);
    command.stdin(Stdio::null());
    command.stdout(fs::File::create(&out).unwrap());
    command.stderr(fs::File::create(&err).unwrap());
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + TEST_TIMEOUT;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            let printed = fs::read_to_string(&out).unwrap();
            panic!("the suite does not end; after {:?}", printed.lines().last());
        }
        thread::sleep(Duration::from_millis(50));
    };
    Output {
        status,
        stdout: fs::read(out).unwrap(),
        stderr: fs::read(err).unwrap(),
    }
}

#[cfg_attr(without_pyverbs, ignore = "needs python3-pyverbs")]
#[test]
fn suite_of_rdma_core_passes() {
    let output = run();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let report = Report::parse(&String::from_utf8(output.stdout).unwrap());
    let complaints = complaints(&rows(include_str!("skipped.md")), &report);
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    let passed = report.results.values();
    let passed = passed.filter(|outcome| **outcome == Outcome::Ok).count();
    assert!(passed >= MIN_PASSED, "{passed} cases passed: {errors}");
}

#[test]
fn failed_cases_and_differences_from_the_table_are_reported() {
    let table = "| case | since | reason |\n|---|---|---|\n| `test_a.py A.*` | 44 | no device |\n\
        | `test_b.py B.one` | 44 | no object |\n| `test_c.py C.one` | 65 | later |\n";
    let complaints =
        |printed: &str| complaints(&rows(table), &Report::parse(&format!("44.0\n{printed}")));
    let agreed = "test_a.py A.one skipped x\ntest_b.py B.one skipped y\ntest_b.py B.two ok \n";
    assert_eq!(complaints(agreed), [""; 0]);
    for (line, expected) in [
        (
            "test_b.py B.two failed Traceback",
            "test_b.py B.two: Traceback",
        ),
        (
            "test_b.py B.two skipped z",
            "test_b.py B.two has no row, and is skipped: z",
        ),
        (
            "test_a.py A.two ok",
            "test_a.py A.two has a row, and passes",
        ),
        (
            "test_b.py B.one ok",
            "test_b.py B.one has a row, and passes",
        ),
    ] {
        let found = complaints(&format!("{agreed}{line}\n"));
        assert_eq!(found[0], expected);
    }
    assert_eq!(complaints("test_a.py A.one skipped x\n").len(), 1);
}
