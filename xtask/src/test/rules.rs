//! The suites on softnic, whose devices use the freedoms of the standard: a stage of `ci`, and `cargo xtask test --rules`.

use std::process::Command;
use std::sync::Mutex;
use std::thread;

use anyhow::{Result, ensure};

use super::{Program, Suite, with_brief_suite};
use crate::outcomes::Outcomes;
use crate::stage::{Counts, Stages};
use crate::workspace::Workspace;

/// The rules and their seed in `ci`: all by which no call fails.
const IN_CI: &str = "7";

/// Packages, and their tests on softnic; the longest first.
pub(super) const SUITES: [(&str, &str); 7] = [
    ("softnic", "rsocket_suite"),
    ("softnic", "verbs_suite"),
    ("softnic", "rds_suite"),
    ("softnic", "cm_suite"),
    ("softnic", "swarm"),
    ("kv-store", "softnic"),
    ("kv-transfer", "softnic"),
];

/// Schedules of each swarm, of which destroying calls take milliseconds.
const SWARM_SEEDS: &str = "0..300";

/// Number of programs that run at a time.
const AT_ONCE: usize = 2;

/// Tests of behaviour that the manual pages do not promise: suite, test, rule and reason.
pub(super) const LEFT_OUT: [(&str, &str, &str, &str); 5] = [
    (
        "verbs_suite",
        "channel_has_no_event_before_a_completion",
        "coalesced",
        "expects no event without a completion",
    ),
    (
        "verbs_suite",
        "post_send_qp_state_bad_flow",
        "early-post",
        "expects the refusal of a request before RTS, which mlx5 and rxe accept",
    ),
    (
        "rsocket_suite",
        "readable_wait_is_not_woken_by_send_completions",
        "coalesced",
        "expects no event without a completion",
    ),
    (
        "rsocket_suite",
        "write_with_the_key_of_another_connection_of_the_group_succeeds",
        "not-visible",
        "expects the write of a connection before the message of another one",
    ),
    (
        "softnic",
        "trace_of_the_client_is_the_documented_one",
        "colliding",
        "expects different numbers of the two queue pairs",
    ),
];

/// Runs the stage.
pub(crate) fn run_stage(workspace: &Workspace, stages: &mut Stages) {
    with_brief_suite(workspace, |suite| {
        stages.test("rules", |counts| suite.rules(IN_CI, counts));
    });
}

impl Suite<'_> {
    /// Runs the suites on devices with `rules`, in the form of `SOFTNIC_ADVERSARY`.
    pub(super) fn rules(&self, rules: &str, counts: &mut Counts) -> Result<()> {
        let mut cargo = self.cargo();
        cargo.args(["test", "--locked", "--no-run", "--workspace"]);
        cargo.args(SUITES.iter().flat_map(|(_, test)| ["--test", test]));
        let built = self.build(&mut cargo, |_| true)?;
        let is_of = |program: &&Program, (package, test): (&str, &str)| {
            let name = program.executable.file_name().unwrap_or_default();
            let name = name.to_string_lossy();
            program.package == package
                && name.rsplit_once('-').is_some_and(|(name, _)| name == test)
        };
        let find = |suite| built.iter().find(|program| is_of(program, suite));
        let programs: Vec<_> = SUITES
            .iter()
            .filter_map(|suite| Some((suite.1, find(*suite)?)))
            .collect();
        ensure!(
            programs.len() == SUITES.len(),
            "cargo did not build all of the suites"
        );
        let next = Mutex::new(programs.into_iter());
        let run_next = || {
            let mut counts = Counts::default();
            let mut failures = Vec::new();
            while let Some((name, program)) = next.lock().ok().and_then(|mut next| next.next()) {
                let mut command = self.under_rules(rules, name, program);
                let outcomes = &mut Outcomes::default();
                if let Err(error) = self.run_counting(&mut command, &mut counts, outcomes) {
                    failures.push(format!("SOFTNIC_ADVERSARY={rules} {error:#}"));
                }
            }
            (counts, failures)
        };
        let mut failures = Vec::new();
        thread::scope(|scope| {
            let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(run_next)).collect();
            for thread in threads {
                match thread.join() {
                    Ok((part, failed)) => {
                        counts.add(part);
                        failures.extend(failed);
                    }
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        });
        ensure!(failures.is_empty(), "{}", failures.join("\n"));
        self.require_some(counts)
    }

    fn under_rules(&self, rules: &str, name: &str, program: &Program) -> Command {
        let mut command = Command::new(&program.executable);
        command
            .current_dir(&program.folder)
            .env("CARGO_MANIFEST_DIR", &program.folder)
            .env("SOFTNIC_ADVERSARY", rules)
            .env("SWARM_SEEDS", SWARM_SEEDS);
        let skipped = LEFT_OUT.iter().filter(|row| row.0 == name);
        command.args(skipped.flat_map(|row| ["--skip", row.1]));
        command.args(&self.options.filter);
        command
    }
}
