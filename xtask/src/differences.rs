//! Device tests on both devices: the results on softnic and on Soft-RoCE, and the reason for each difference.
//!
//! softnic's suites run device tests from the same source. The list of tests left out has a reason for each test that runs
//! on only one of the devices. A complete test run fails if a difference has no reason, or a reason has no difference.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use anyhow::{Context, Result, ensure};

use crate::left_out::{self, LeftOut, Run, TABLE};
use crate::outcomes::Outcomes;
use crate::output;
use crate::workspace::Workspace;

/// Libraries with device tests on softnic, and the test program of each. The device tests of a library `L` on Soft-RoCE
/// are the program `L/device`.
const ON_SOFTNIC: [(&str, &str); 5] = [
    ("verbs", "softnic/verbs_suite"),
    ("cm", "softnic/cm_suite"),
    ("rsocket", "softnic/rsocket_suite"),
    ("rds", "softnic/rds_suite"),
    ("kv_store", "kv_store/softnic"),
];

/// Maximum number of printed complaints; the file has all.
const MAX_COMPLAINTS: usize = 20;

/// The test program on softnic with the tests of the program `LIBRARY/device`.
pub(crate) fn on_softnic(program: &str) -> Option<&'static str> {
    let library = program.strip_suffix("/device")?;
    let mut suites = ON_SOFTNIC.iter();
    suites.find_map(|(of, suite)| (*of == library).then_some(*suite))
}

/// A software device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Softnic,
    Rxe,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Softnic => "softnic",
            Self::Rxe => "rxe",
        })
    }
}

/// Prints the differences with their reasons and the totals, and writes a file with all device tests. `without_own_logic`:
/// the run has left out those of [`Run::RxeInCi`].
///
/// # Errors
///
/// A difference has no reason, or a reason no difference.
pub(crate) fn report(
    workspace: &Workspace,
    outcomes: &Outcomes,
    without_own_logic: bool,
) -> Result<()> {
    let comparison = compare(&left_out::ALL, outcomes, without_own_logic);
    let file = workspace.target().join("device-tests.txt");
    std::fs::write(&file, &comparison.full)
        .with_context(|| format!("cannot write {}", file.display()))?;
    output::print(format_args!(
        "{}every device test is in {}",
        comparison.summary,
        file.display()
    ));
    let complaints = &comparison.complaints;
    ensure!(
        complaints.is_empty(),
        "{} differences without a reason, or reasons without a difference, in {TABLE}:\n{}",
        complaints.len(),
        complaints[..complaints.len().min(MAX_COMPLAINTS)].join("\n")
    );
    Ok(())
}

/// The results of one test; `None` for a device on which the test did not run.
#[derive(Clone, Copy, Debug, Default)]
struct Results {
    softnic: Option<bool>,
    rxe: Option<bool>,
}

impl Results {
    /// The only device on which the test ran, if it passed there.
    fn only_on(self) -> Option<Device> {
        match (self.softnic, self.rxe) {
            (Some(true), None) => Some(Device::Softnic),
            (None, Some(true)) => Some(Device::Rxe),
            _ => None,
        }
    }

    fn passed_on_both(self) -> bool {
        (self.softnic, self.rxe) == (Some(true), Some(true))
    }
}

/// A result as a word.
fn word(result: Option<bool>) -> &'static str {
    match result {
        Some(true) => "passed",
        Some(false) => "FAILED",
        None => "-",
    }
}

/// The device tests of all libraries, by library and name.
fn device_tests(outcomes: &Outcomes) -> BTreeMap<(&str, &str), Results> {
    let mut tests = BTreeMap::<_, Results>::new();
    for (program, name, passed) in outcomes.iter() {
        if let Some(library) = program.strip_suffix("/device") {
            tests.entry((library, name)).or_default().rxe = Some(passed);
        }
        for (library, suite) in ON_SOFTNIC {
            if suite == program {
                tests.entry((library, name)).or_default().softnic = Some(passed);
            }
        }
    }
    tests
}

/// Passed and failed device tests of each library on a device.
pub(crate) fn suites(outcomes: &Outcomes, device: Device) -> BTreeMap<&str, (u32, u32)> {
    let mut suites = BTreeMap::<_, (u32, u32)>::new();
    for ((library, _), results) in device_tests(outcomes) {
        let result = match device {
            Device::Softnic => results.softnic,
            Device::Rxe => results.rxe,
        };
        if let Some(has_passed) = result {
            let (passed, failed) = suites.entry(library).or_default();
            *passed += u32::from(has_passed);
            *failed += u32::from(!has_passed);
        }
    }
    suites
}

/// Numbers of tests of a library.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    tests: usize,
    both: usize,
    softnic_only: usize,
    rxe_only: usize,
    left_out: usize,
    failed: usize,
}

impl Totals {
    fn count(&mut self, results: Results, is_left_out: bool) {
        self.tests += 1;
        if is_left_out {
            self.left_out += 1;
            return;
        }
        *match (results.passed_on_both(), results.only_on()) {
            (true, _) => &mut self.both,
            (false, Some(Device::Softnic)) => &mut self.softnic_only,
            (false, Some(Device::Rxe)) => &mut self.rxe_only,
            (false, None) => &mut self.failed,
        } += 1;
    }
}

/// The comparison of the devices.
#[derive(Debug)]
struct Comparison {
    /// The reasons with the numbers of their tests, and the totals.
    summary: String,
    /// A line for each test.
    full: String,
    /// Differences without a reason, and reasons without a difference.
    complaints: Vec<String>,
}

/// A row of tests left out on one device, and the other device; none for a row of another run.
fn reason<'r, 't>(row: &'r LeftOut<'t>) -> Option<(&'r LeftOut<'t>, Device)> {
    match row.run {
        Run::Softnic => Some((row, Device::Rxe)),
        Run::Rxe => Some((row, Device::Softnic)),
        _ => None,
    }
}

/// Whether a test is left out on Soft-RoCE by `ci`.
fn has_own_logic(rows: &[LeftOut<'_>], library: &str, name: &str) -> bool {
    let mut own = rows.iter().filter(|row| row.run == Run::RxeInCi);
    own.any(|row| row.covers(library, name))
}

// Writing to a string cannot fail: `_infallible`.
fn compare(rows: &[LeftOut<'_>], outcomes: &Outcomes, without_own_logic: bool) -> Comparison {
    let (mut full, mut complaints) = (String::new(), Vec::new());
    let reasons: Vec<_> = rows.iter().filter_map(reason).collect();
    let mut covered = vec![0_usize; reasons.len()];
    let mut totals = BTreeMap::<_, Totals>::new();
    for ((library, name), results) in device_tests(outcomes) {
        let is_left_out = without_own_logic
            && has_own_logic(rows, library, name)
            && results.only_on() == Some(Device::Softnic);
        for library in [library, "all"] {
            let totals = totals.entry(library).or_default();
            totals.count(results, is_left_out);
        }
        let (softnic, rxe) = (word(results.softnic), word(results.rxe));
        let of_test = || {
            let rows = reasons.iter().enumerate();
            rows.filter(|(_, (row, _))| row.covers(library, name))
        };
        let reason = of_test().find(|(_, (_, device))| results.only_on() == Some(*device));
        let text = match reason {
            Some((index, (row, _))) => {
                covered[index] += 1;
                row.reason
            }
            None if results.passed_on_both() => "",
            None if is_left_out => "left out of ci on rxe",
            None => "no reason",
        };
        let row = format!("{library:16} {softnic:8} {rxe:8} {name}");
        let _infallible = writeln!(full, "{row}  {text}");
        if reason.is_none() && !results.passed_on_both() && !is_left_out {
            complaints.push(format!(
                "{library} {name}: softnic {softnic}, rxe {rxe}, without a reason"
            ));
        }
        if of_test().count() > usize::from(reason.is_some()) {
            complaints.push(format!(
                "{library} {name}: softnic {softnic}, rxe {rxe}, with a reason too many"
            ));
        }
    }
    let mut summary = String::new();
    for ((row, device), count) in reasons.iter().zip(covered) {
        let name = format!("{} {}", row.library, row.tests);
        let only = format!("{device} only");
        if count == 0 {
            complaints.push(format!("{name}: no test runs on {only}"));
        } else {
            let _infallible = writeln!(summary, "{count:3} {only:12} {name}: {}", row.reason);
        }
    }
    let _infallible = write!(summary, "{}", table(&totals));
    let _infallible = complaints
        .iter()
        .try_for_each(|line| writeln!(full, "{line}"));
    Comparison {
        summary,
        full,
        complaints,
    }
}

fn table(totals: &BTreeMap<&str, Totals>) -> String {
    let mut text = format!(
        "{:16} {:>6} {:>6} {:>13} {:>9} {:>9} {:>7}\n",
        "device tests of", "tests", "both", "softnic only", "rxe only", "left out", "failed"
    );
    let (sum, libraries): (Vec<_>, Vec<_>) = totals.iter().partition(|(name, _)| **name == "all");
    for (library, row) in libraries.into_iter().chain(sum) {
        let Totals {
            tests,
            both,
            softnic_only,
            rxe_only,
            left_out,
            failed,
        } = row;
        let _infallible = writeln!(
            text,
            "{library:16} {tests:>6} {both:>6} {softnic_only:>13} {rxe_only:>9} {left_out:>9} {failed:>7}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: [&str; 13] = [
        "     Running unittests src/lib.rs (target/debug/deps/softnic-0123456789abcdef)",
        "     Running tests/rds_suite/main.rs (target/debug/deps/rds_suite-0123456789abcdef)",
        "test flood::a ... ok",
        "test sockets::in_process ... ok",
        "     Running tests/verbs_suite/main.rs (target/debug/deps/verbs_suite-0123456789abcdef)",
        "test flood::a ... ok",
        "Running the device tests of verbs",
        "test flood::a ... ok",
        "test events::a ... ok",
        "test events::b ... ok",
        "Running the device tests of rds",
        "test flood::a ... ok",
        "test sockets::child ... ok",
    ];

    const REASONS: &str = "| library | tests | where | reason |\n|---|---|---|---|\n\
        | verbs | `events::*` | softnic | only a kernel has events |\n\
        | rds | `sockets::child` | softnic | another process |\n\
        | rds | `sockets::in_process` | rxe | the same process |\n\
        | rds | `tasks::*` | rxe in ci | own logic |\n";

    fn compared(reasons: &str, lines: &[&str]) -> Comparison {
        let mut outcomes = Outcomes::default();
        lines.iter().for_each(|line| outcomes.read(line));
        compare(&left_out::parse(reasons).unwrap(), &outcomes, false)
    }

    /// The run with a line replaced.
    fn with(from: &str, to: &'static str) -> [&'static str; 13] {
        RUN.map(|line| if line == from { to } else { line })
    }

    #[test]
    fn differences_with_reasons_are_counted() {
        let Comparison {
            summary,
            full,
            complaints,
        } = compared(REASONS, &RUN);
        assert_eq!(complaints, [""; 0]);
        assert_eq!(
            summary,
            "  2 rxe only     verbs events::*: only a kernel has events\n\
             \x20 1 rxe only     rds sockets::child: another process\n\
             \x20 1 softnic only rds sockets::in_process: the same process\n\
             device tests of   tests   both  softnic only  rxe only  left out  failed\n\
             rds                   3      1             1         1         0       0\n\
             verbs                 3      1             0         2         0       0\n\
             all                   6      2             1         3         0       0\n"
        );
        let events = "verbs            -        passed   events::a  only a kernel has events\n";
        assert!(full.contains(events), "{full}");
        assert_eq!(full.lines().count(), 6);
    }

    #[test]
    fn difference_without_a_reason_is_a_complaint() {
        let without_child = REASONS.replace("sockets::child", "sockets::other");
        assert_eq!(
            compared(&without_child, &RUN).complaints,
            [
                "rds sockets::child: softnic -, rxe passed, without a reason",
                "rds sockets::other: no test runs on rxe only",
            ]
        );
        // Tests of another library have no part in the reason.
        let of_cm = REASONS.replace("| verbs |", "| cm |");
        let complaints = compared(&of_cm, &RUN).complaints;
        assert_eq!(complaints.len(), 3, "{complaints:?}");
    }

    #[test]
    fn failure_is_never_excused_by_a_reason() {
        let failed = with("test events::a ... ok", "test events::a ... FAILED");
        assert_eq!(
            compared(REASONS, &failed).complaints,
            [
                "verbs events::a: softnic -, rxe FAILED, without a reason",
                "verbs events::a: softnic -, rxe FAILED, with a reason too many",
            ]
        );
        let mut on_both = RUN.to_vec();
        on_both.insert(5, "test events::a ... FAILED");
        let complaints = compared(REASONS, &on_both).complaints;
        assert_eq!(complaints.len(), 2, "{complaints:?}");
    }

    #[test]
    fn reason_without_a_difference_is_a_complaint() {
        // The second of two tests covered by a module's reason.
        let mut on_both = RUN.to_vec();
        on_both.insert(5, "test events::b ... ok");
        assert_eq!(
            compared(REASONS, &on_both).complaints,
            ["verbs events::b: softnic passed, rxe passed, with a reason too many"]
        );
        let wrong_device = REASONS.replace("in_process` | rxe", "in_process` | softnic");
        assert_eq!(
            compared(&wrong_device, &RUN).complaints,
            [
                "rds sockets::in_process: softnic passed, rxe -, without a reason",
                "rds sockets::in_process: softnic passed, rxe -, with a reason too many",
                "rds sockets::in_process: no test runs on rxe only",
            ]
        );
        let twice = format!("{REASONS}| rds | `sockets::child` | softnic | once more |\n");
        assert_eq!(
            compared(&twice, &RUN).complaints,
            [
                "rds sockets::child: softnic -, rxe passed, with a reason too many",
                "rds sockets::child: no test runs on rxe only",
            ]
        );
    }

    #[test]
    fn own_logic_is_left_out_on_soft_roce_only() {
        let suite =
            "     Running tests/rds_suite/main.rs (target/debug/deps/rds_suite-0123456789abcdef)";
        let compared = |lines: &[&str]| {
            let mut outcomes = Outcomes::default();
            RUN.iter().chain(lines).for_each(|line| outcomes.read(line));
            compare(&left_out::parse(REASONS).unwrap(), &outcomes, true)
        };
        let Comparison {
            summary,
            complaints,
            ..
        } = compared(&[RUN[0], suite, "test tasks::a ... ok"]);
        assert_eq!(complaints, [""; 0]);
        let row = "rds                   4      1             1         1         1       0\n";
        assert!(summary.contains(row), "{summary}");
        // A failure on softnic, and tests on Soft-RoCE alone.
        for lines in [
            &[RUN[0], suite, "test tasks::a ... FAILED"][..],
            &["test tasks::a ... ok"],
        ] {
            assert_eq!(compared(lines).complaints.len(), 1, "{lines:?}");
        }
    }

    #[test]
    fn table_in_repository_names_existing_suites() {
        let reasons: Vec<_> = left_out::ALL.iter().filter_map(reason).collect();
        assert!(reasons.len() > 10);
        let unknown = reasons.iter().find(|(row, device)| {
            let program = format!("{}/device", row.library);
            on_softnic(&program).is_none() && *device == Device::Softnic
        });
        assert!(unknown.is_none(), "{unknown:?}");
    }
}
