//! The suites on softnic, whose devices use the freedoms of the standard: a stage of `ci`, and `cargo xtask test --rules`.

use std::process::Command;
use std::sync::Mutex;
use std::thread;

use anyhow::{Result, ensure};

use super::{Program, Suite, with_brief_suite};
use crate::left_out;
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
        command.args(left_out::arguments(left_out::Run::Rules, name));
        command.args(&self.options.filter);
        command
    }
}
