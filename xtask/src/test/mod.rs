//! `cargo xtask test`: the tests of the workspace, each in its environment.
//!
//! - *host*: `cargo test --workspace`, without a device.
//! - *device*: the integration tests called `device`, in guests, one test at a time in each; the iWARP tests again on
//!   Soft-iWARP ([`guests`]).
//! - *two hosts*: the integration tests called `two_hosts`, on the host. The tests start guests with the program in the
//!   variable `XTASK`.
//! - *harness*: tests of `cargo soft-roce` with real guests, in `soft-roce/tests/harness.rs`.
//!
//! In *two hosts* and *harness*, several tests run at a time ([`at_once`]). Every stage builds the tests of the whole
//! workspace, because building a single package would unify dependency features differently and rebuild the dependencies.
//!
//! A complete run ends with the coverage of pyverbs ([`pyverbs`]), the cases of RDS ([`conformance`]), the results of the
//! device tests on softnic, in the *host* stage, and on Soft-RoCE, in the *device* stage ([`differences`]), and the table of
//! stacks ([`stack_table`]).
//!
//! The kernel of the guests is built during the *host* stage, at the lowest priority; the stage *kernel* waits for it.
//!
//! `ci` adds the suites on softnic under all [`rules`] of its adversary, and a part of the tests on the [`newest`] stack. With `--device`, only the suites of a [`card`] run.
//!
//! Device, two-hosts and harness tests have `test = false` in the manifest, so a plain `cargo test` needs no guest.

pub(crate) mod arm64;
mod card;
mod first_build;
mod guests;
mod newest;
pub(crate) mod rules;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::Message;
use clap::Args;
use rustix::pipe::PipeFlags;

use crate::conformance;
use crate::differences::{self, Device as Tested};
use crate::left_out::{self, LeftOut};
use crate::miri;
use crate::outcomes::Outcomes;
use crate::output;
use crate::pyverbs;
use crate::sanitizer::{self, Sanitizer};
use crate::stack::{self, Stack};
use crate::stack_table;
use crate::stage::{Counts, Stages};
use crate::workspace::{self, Workspace};
use soft_roce::backend::{self, Backend};
use soft_roce::preparation::Preparation;
use soft_roce::process::{self, Supervised};
use soft_roce::setup::{self, Group};

/// Selection of tests, and their options.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Options {
    /// Only tests without a device
    #[arg(long)]
    pub(crate) host_only: bool,
    /// Only tests with a device
    #[arg(long, conflicts_with = "host_only")]
    pub(crate) device_only: bool,
    /// Add soaks, large schedules and long fuzzing (sets LONG=1)
    #[arg(long)]
    pub(crate) long: bool,
    /// Run the device tests under address sanitizer, in QEMU; needs a nightly toolchain
    #[arg(long, conflicts_with = "host_only")]
    pub(crate) sanitize: bool,
    /// Run the tests of softnic under address sanitizer and thread sanitizer; needs a nightly toolchain with rust-src
    #[arg(long, conflicts_with_all = ["host_only", "device_only", "sanitize"])]
    pub(crate) sanitize_softnic: bool,
    /// Run the host tests under valgrind's memcheck, except exhaustive tests
    #[arg(long, conflicts_with_all = ["device_only", "sanitize", "sanitize_softnic"])]
    pub(crate) valgrind: bool,
    /// Run tests of verbs and softnic under Miri; needs a nightly toolchain with Miri
    #[arg(long, conflicts_with_all = ["device_only", "sanitize", "sanitize_softnic", "valgrind"])]
    pub(crate) miri: bool,
    /// Run the suites on softnic with devices that use the freedoms of the standard: 7 for all rules with the seed 7, 7:keys for one
    #[arg(long, value_name = "SEED[:RULES]", conflicts_with_all = ["host_only", "device_only", "sanitize", "sanitize_softnic", "valgrind", "miri"])]
    pub(crate) rules: Option<String>,
    /// Run the device tests of verbs, cm, rsocket and rds in a guest of ARM64, under QEMU's emulation
    #[arg(long, conflicts_with_all = ["host_only", "device_only", "sanitize", "sanitize_softnic", "valgrind", "miri", "rules", "rdma_core"])]
    pub(crate) arm64: bool,
    /// Machine of the guests: QEMU or User-Mode Linux
    #[arg(long, value_enum, default_value_t, env = backend::VARIABLE)]
    pub(crate) backend: Backend,
    #[command(flatten)]
    pub(crate) stack: stack::Choice,
    /// Run the device tests of verbs, cm, rsocket and rds on this RDMA device of the machine, and write a report
    ///
    /// Other devices, modules and network interfaces are unchanged. The device's addresses are the first ones of its GID
    /// table, or those in the variables A and A6; A2 and A3 are further IPv4 addresses of the device, for rds.
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["host_only", "device_only", "sanitize", "sanitize_softnic", "valgrind", "miri", "rules", "stack", "kernel", "rdma_core"])]
    pub(crate) device: Option<String>,
    /// Only tests with this text in the name
    pub(crate) filter: Option<String>,
    /// Prints no routine lines, as in the log of `ci`.
    #[arg(skip)]
    pub(crate) brief: bool,
    /// Whether guests leave out the device tests of [`left_out::Run::RxeInCi`], which run on softnic, and the tests over iWARP that need
    /// the [`newest`] kernel.
    #[arg(skip)]
    pub(crate) without_repeats: bool,
    /// Whether a part of the tests runs on the [`newest`] stack too.
    #[arg(skip)]
    pub(crate) newest_too: bool,
}

/// Packages whose device tests load a library into uninstrumented programs, so cannot run under `AddressSanitizer`.
const LOADED_ELSEWHERE: [&str; 3] = ["rsocket-capi", "rsocket-preload", "rds-preload"];

/// Packages run under valgrind: those with unsafe code.
const CHECKED_BY_VALGRIND: [&str; 8] = [
    "rdma-ibverbs-sys",
    "rdmacm-sys",
    "rdma-verbs",
    "rdma-cm",
    "interpose",
    "rsocket-capi",
    "rsocket-preload",
    "rds-preload",
];

/// Packages with the device tests on softnic.
const ON_SOFTNIC: [&str; 2] = ["softnic", "kv-store"];

/// Packages with tests of iWARP's differences from InfiniBand and RoCE.
const ALSO_OVER_IWARP: [&str; 2] = ["rdma-cm", "rdma-rsocket"];

/// Parts of the names of tests that must also pass over iWARP.
const DIFFERENT_OVER_IWARP: [&str; 6] = [
    "overtaking::",
    "refused_batches::",
    "wire::",
    "streams::",
    "drop_of_both_sides_at_once_succeeds",
    "growth::",
];

/// Number of tests with guests that run in parallel: two, because an emulated guest keeps a processor busy.
const AT_ONCE: u32 = 2;

/// The number for tests on two hosts, in User-Mode Linux or on KVM: they mostly wait for time-outs of protocols, and four at
/// once leave two processors idle for part of the time.
const TWO_HOSTS_AT_ONCE: u32 = 4;

/// Number of tests of the integration test `name` that run in parallel.
fn at_once(name: &str, backend: Backend) -> u32 {
    match (name, backend) {
        ("two_hosts", Backend::Auto | Backend::Uml) => TWO_HOSTS_AT_ONCE,
        _ => AT_ONCE,
    }
}

/// Tests that only run the compiler; not run under valgrind.
const COMPILING: [&str; 1] = ["compile_fail"];

/// The selections of this file. `cargo xtask tidy` checks that each matches a test.
pub(crate) fn selections() -> Vec<&'static str> {
    let mut parts = newest::HOSTS.to_vec();
    parts.extend(DIFFERENT_OVER_IWARP);
    parts.extend(COMPILING);
    parts.extend(left_out::ALL.iter().map(LeftOut::part));
    parts
}

/// Runs the selected tests and prints the table of stages. Returns whether all passed.
pub(crate) fn run(options: &Options) -> Result<bool> {
    if let Some(device) = &options.device {
        return card::run(device, options);
    }
    setup::ensure(&[Group::Build])?;
    let stack = options.stack.resolve()?;
    let workspace = stack.workspace()?;
    let options = &without_guests_if_none(options)?;
    let is_complete = options.filter.is_none() && !options.device_only && !options.long;
    let options = &Options {
        without_repeats: is_complete && stack.is_default(),
        ..options.clone()
    };
    let preparation = prepare_guests(options, &stack)?;
    let mut stages = Stages::default();
    run_stages(
        &workspace,
        options,
        &stack,
        preparation.as_ref(),
        &mut stages,
    )?;
    if let (0, Some(filter)) = (stages.total(), &options.filter) {
        bail!("no test has `{filter}` in its name");
    }
    Ok(stages.close())
}

/// Runs the selected tests on `stack` as further `stages`. `preparation` is that of [`prepare_guests`].
pub(crate) fn run_stages(
    workspace: &Workspace,
    options: &Options,
    stack: &Stack,
    preparation: Option<&Preparation>,
    stages: &mut Stages,
) -> Result<()> {
    let suite = Suite {
        workspace,
        options,
        stack,
    };
    if options.miri {
        setup::ensure(&[Group::Build])?;
        miri::require()?;
        for row in left_out::of(left_out::Run::Miri) {
            output::print(format_args!("left out: {} ({})", row.tests, row.reason));
        }
        stages.test("miri", |counts| suite.miri(&miri::COMPLETE, counts));
        return Ok(());
    }
    if options.sanitize_softnic {
        return sanitize_softnic(&suite, stages);
    }
    if options.arm64 {
        return arm64::run_in_guest(workspace, options, stack, stages);
    }
    if let Some(rules) = &options.rules {
        stages.test("rules", |counts| suite.rules(rules, counts));
        return Ok(());
    }
    match stack {
        Stack::Softnic => {
            let mut outcomes = Outcomes::default();
            stages.test("softnic", |counts| suite.host(counts, &mut outcomes));
            if options.filter.is_none() {
                stages.check("stacks", || {
                    stack_table::report_softnic(workspace, &outcomes)
                });
            }
            Ok(())
        }
        Stack::Guests { .. } => run_stages_of_guests(suite, preparation, stages),
    }
}

/// Runs the tests that need no guest first: the kernel of the guests is built meanwhile.
fn run_stages_of_guests(
    suite: Suite<'_>,
    preparation: Option<&Preparation>,
    stages: &mut Stages,
) -> Result<()> {
    let mut outcomes = Outcomes::default();
    let options = suite.options;
    if options.sanitize {
        Sanitizer::Address.require()?;
        let options = Options {
            backend: sanitizer::backend(options.backend)?,
            ..options.clone()
        };
        let suite = Suite {
            options: &options,
            ..suite
        };
        let is_selected = |package: &str| !LOADED_ELSEWHERE.contains(&package);
        stages.test("device", |counts| {
            suite.device(is_selected, counts, &mut outcomes)
        });
        return Ok(());
    }
    if options.valgrind {
        setup::ensure(&[Group::Bench])?;
        stages.test("valgrind", |counts| suite.valgrind(counts));
        return Ok(());
    }
    if !options.device_only {
        stages.test("host", |counts| suite.host(counts, &mut outcomes));
    }
    if options.newest_too {
        stages.test("new pyverbs", |counts| newest::pyverbs(&suite, counts));
    }
    if let Some(preparation) = preparation {
        let mut backend = None;
        stages.check("kernel", || {
            backend = Some(preparation.next()?);
            Ok(())
        });
        let Some(backend) = backend else {
            return Ok(());
        };
        let options = &Options {
            backend,
            ..options.clone()
        };
        let suite = Suite { options, ..suite };
        run_tests_with_guests(&suite, preparation, &mut outcomes, stages);
    }
    match (&options.filter, options.host_only, options.device_only) {
        (None, false, false) => compare_with_tables(&suite, &outcomes, stages),
        (None, false, true) => stages.check("stacks", || {
            stack_table::report_guests(suite.workspace, suite.stack, &outcomes)
        }),
        _ => {}
    }
    Ok(())
}

/// Runs the tests that need guests.
fn run_tests_with_guests(
    suite: &Suite<'_>,
    preparation: &Preparation,
    outcomes: &mut Outcomes,
    stages: &mut Stages,
) {
    let options = suite.options;
    if !options.device_only {
        stages.test("harness", |counts| {
            suite.on_host("harness", &[], counts, outcomes)
        });
    }
    stages.test("device", |counts| suite.device(|_| true, counts, outcomes));
    if options.filter.is_none() {
        stages.test("device, iWARP", |counts| suite.iwarp(counts));
    }
    let without_iwarp: &[&str] = match options.without_repeats {
        true => &["--skip", newest::OVER_IWARP],
        false => &[],
    };
    stages.test("two hosts", |counts| {
        suite.on_host("two_hosts", without_iwarp, counts, outcomes)
    });
    if options.newest_too {
        newest::run(suite, preparation, stages);
    }
}

/// The options on this host: only tests without guests, after the reason, where the host's architecture has no guests.
///
/// # Errors
///
/// The host has no guests, and only tests with a device were selected.
pub(crate) fn without_guests_if_none(options: &Options) -> Result<Options> {
    let mut options = options.clone();
    if let Err(error) = backend::require_host() {
        ensure!(!options.device_only, error);
        output::print(format_args!("no test in a guest: {error:#}"));
        options.host_only = true;
    }
    Ok(options)
}

/// Installs the packages that these tests need, and starts to build the kernels of their guests, if any.
pub(crate) fn prepare_guests(options: &Options, stack: &Stack) -> Result<Option<Preparation>> {
    let on_host = options.host_only
        || options.valgrind
        || options.miri
        || options.sanitize_softnic
        || options.arm64
        || options.rules.is_some();
    let Stack::Guests { kernel, .. } = stack else {
        return Ok(None);
    };
    if backend::require_host().is_err() {
        return Ok(None);
    }
    setup::ensure(&[Group::Build, Group::Guest, Group::Tools])?;
    if options.long {
        setup::ensure(&[Group::Programs])?;
    }
    if on_host || options.sanitize {
        return Ok(None);
    }
    let mut kernels = vec![kernel.clone()];
    if options.newest_too {
        kernels.push(newest::KERNEL);
    }
    Preparation::start(options.backend, kernels).map(Some)
}

/// Compares the results of a complete run with the tables of tests.
fn compare_with_tables(suite: &Suite<'_>, outcomes: &Outcomes, stages: &mut Stages) {
    let Suite {
        workspace,
        options,
        stack,
    } = suite;
    stages.check("pyverbs", || pyverbs::report(workspace, outcomes));
    stages.check("cases of RDS", || conformance::report(workspace, outcomes));
    stages.check("two devices", || {
        differences::report(workspace, outcomes, options.without_repeats)
    });
    stages.check("stacks", || stack_table::report(workspace, stack, outcomes));
}

/// Runs the tests of softnic under each sanitizer.
fn sanitize_softnic(suite: &Suite<'_>, stages: &mut Stages) -> Result<()> {
    setup::ensure(&[Group::Build])?;
    for sanitizer in [Sanitizer::Address, Sanitizer::Thread] {
        sanitizer.require()?;
    }
    stages.test("softnic ASan", |counts| {
        suite.softnic(Sanitizer::Address, sanitizer::ALL_TESTS, counts)
    });
    stages.test("softnic TSan", |counts| {
        suite.softnic(Sanitizer::Thread, sanitizer::ALL_TESTS, counts)
    });
    Ok(())
}

/// Runs the tests under Miri that `ci` has time for, and the random programs under `AddressSanitizer`. Where no nightly
/// toolchain can be installed, prints the reason.
pub(crate) fn run_stages_of_nightly(workspace: &Workspace, stages: &mut Stages) {
    if let Err(error) = miri::install() {
        output::print(format_args!(
            "no test ran under Miri or AddressSanitizer: {error:#}"
        ));
        return;
    }
    with_brief_suite(workspace, |suite| {
        stages.test("miri", |counts| suite.miri(&miri::IN_CI, counts));
        stages.test("programs ASan", |counts| {
            suite.softnic(Sanitizer::Address, sanitizer::RANDOM_PROGRAMS, counts)
        });
    });
}

/// Calls `run` with a suite of brief output, for the stages of `ci` that need no guest.
fn with_brief_suite(workspace: &Workspace, run: impl FnOnce(&Suite<'_>)) {
    let options = Options {
        brief: true,
        ..Options::default()
    };
    let suite = Suite {
        workspace,
        options: &options,
        stack: &Stack::default(),
    };
    run(&suite);
}

/// Runs the stages with guests in QEMU, with the distribution's kernel and full iteration counts.
pub(crate) fn run_stages_in_qemu(workspace: &Workspace, stages: &mut Stages) {
    let options = Options {
        long: true,
        backend: Backend::Qemu,
        ..Options::default()
    };
    let suite = Suite {
        workspace,
        options: &options,
        stack: &Stack::default(),
    };
    let mut outcomes = Outcomes::default();
    stages.test("harness, QEMU", |counts| {
        suite.on_host("harness", &[], counts, &mut outcomes)
    });
    stages.test("device, QEMU", |counts| {
        suite.device(|_| true, counts, &mut outcomes)
    });
    stages.test("iWARP, QEMU", |counts| suite.iwarp(counts));
    stages.test("two, QEMU", |counts| {
        suite.on_host("two_hosts", &[], counts, &mut outcomes)
    });
}

struct Suite<'a> {
    workspace: &'a Workspace,
    options: &'a Options,
    stack: &'a Stack,
}

/// A built test program.
#[derive(Debug)]
struct Program {
    package: String,
    /// Name of the package's library.
    library: String,
    folder: PathBuf,
    executable: PathBuf,
}

impl Suite<'_> {
    /// Runs test programs, copies their output to standard output, and counts the results.
    ///
    /// Standard output and standard error share one pipe: cargo prints the program's name on one, the program its results
    /// on the other, and the order matters.
    fn run_counting(
        &self,
        cargo: &mut Command,
        counts: &mut Counts,
        outcomes: &mut Outcomes,
    ) -> Result<()> {
        let status = self.run_reading(cargo, &mut |line| {
            counts.read(line);
            outcomes.read(line);
        })?;
        ensure!(
            status.success(),
            "`{}` failed ({status})",
            process::display(cargo)
        );
        Ok(())
    }

    /// Runs test programs as [`Self::run_counting`], and passes each line of their output to `read`.
    fn run_reading(&self, cargo: &mut Command, read: &mut dyn FnMut(&str)) -> Result<ExitStatus> {
        let (output, input) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        cargo
            .stdin(Stdio::null())
            .stderr(input.try_clone()?)
            .stdout(input);
        let mut child = Supervised::spawn(cargo, &[]).context("cannot start cargo")?;
        child.end_descendants_at_exit();
        // The command holds the write ends of the pipe; without this the pipe never reaches end of file.
        cargo.stdout(Stdio::null()).stderr(Stdio::null());
        for line in BufReader::new(File::from(output)).lines() {
            let line = line.context("a test printed no text")?;
            read(&line);
            if !(self.options.brief && output::is_routine(&line)) {
                output::print(line);
            }
        }
        Ok(child.wait()?)
    }

    fn host(&self, counts: &mut Counts, outcomes: &mut Outcomes) -> Result<()> {
        let mut cargo = self.cargo();
        cargo.args(["test", "--locked", "--no-fail-fast"]);
        match self.stack {
            Stack::Softnic => cargo.args(ON_SOFTNIC.iter().flat_map(|name| ["--package", name])),
            Stack::Guests { .. } => cargo.arg("--workspace"),
        };
        let capabilities = stack_table::capabilities(self.workspace, Tested::Softnic);
        cargo.env(stack_table::VARIABLE, capabilities);
        if let Some(filter) = &self.options.filter {
            cargo.args(["--", filter]);
        }
        if let Some(minutes) = first_build::minutes(self.workspace.target()) {
            output::print(format_args!(
                "Building the tests, for the first time: about {minutes} min on this machine"
            ));
        }
        self.run_counting(&mut cargo, counts, outcomes)?;
        self.require_some(counts)
    }

    /// Runs the integration tests called `name` on the host, with further `arguments`. The tests start guests.
    fn on_host(
        &self,
        name: &str,
        arguments: &[&str],
        counts: &mut Counts,
        outcomes: &mut Outcomes,
    ) -> Result<()> {
        if self.packages_with(name).is_empty() {
            output::print(format_args!("there are no tests called {name} yet"));
            return Ok(());
        }
        let mut cargo = self.cargo();
        cargo.args(["test", "--locked", "--workspace", "--no-fail-fast"]);
        cargo.args(["--test", name]);
        let threads = at_once(name, self.options.backend);
        cargo
            .args(["--", &format!("--test-threads={threads}")])
            .args(&self.options.filter)
            .args(arguments);
        cargo.env("XTASK", self.workspace.xtask());
        cargo.env(backend::VARIABLE, self.options.backend.name());
        self.stack.choose_for_guests(&mut cargo);
        self.run_counting(&mut cargo, counts, outcomes)?;
        self.require_some(counts)
    }

    /// Runs the host tests under memcheck. Invalid accesses, uses of uninitialized memory and definite leaks fail the
    /// test.
    fn valgrind(&self, counts: &mut Counts) -> Result<()> {
        let mut cargo = self.cargo();
        cargo.args(["test", "--locked", "--no-run", "--lib", "--tests"]);
        cargo.args(
            CHECKED_BY_VALGRIND
                .iter()
                .flat_map(|name| ["--package", name]),
        );
        let programs = self.build(&mut cargo, |test| !COMPILING.contains(&test))?;
        let suppressions = self.workspace.root().join("ci/valgrind.supp");
        let mut failed = Vec::new();
        for program in &programs {
            output::print(format_args!(
                "\nChecking {} of {}",
                program.executable.display(),
                program.package
            ));
            let mut valgrind = Command::new("valgrind");
            valgrind.current_dir(&program.folder);
            valgrind.env("CARGO_MANIFEST_DIR", &program.folder);
            valgrind.args(["--quiet", "--error-exitcode=9", "--num-callers=40"]);
            valgrind.args(["--leak-check=full", "--show-leak-kinds=definite"]);
            valgrind.arg("--errors-for-leak-kinds=definite");
            valgrind.arg(format!("--suppressions={}", suppressions.display()));
            valgrind.arg(&program.executable).arg("--test-threads=1");
            valgrind.args(left_out::arguments(left_out::Run::Valgrind, "*"));
            valgrind.args(&self.options.filter);
            if let Err(error) = self.run_counting(&mut valgrind, counts, &mut Outcomes::default()) {
                failed.push(format!("{error:#}"));
            }
        }
        ensure!(failed.is_empty(), "{}", failed.join("\n"));
        self.require_some(counts)
    }

    /// Runs the tests of softnic under a sanitizer, on the host.
    fn softnic(&self, sanitizer: Sanitizer, targets: &[&str], counts: &mut Counts) -> Result<()> {
        let (root, target) = (self.workspace.root(), self.workspace.target());
        let filter = self.options.filter.as_deref();
        let mut cargo = sanitizer.test_softnic(root, target, targets, filter);
        self.run_counting(&mut cargo, counts, &mut Outcomes::default())?;
        self.require_some(counts)
    }

    /// Runs tests of `verbs` and softnic under Miri.
    fn miri(&self, selections: &[miri::Selection], counts: &mut Counts) -> Result<()> {
        for selection in selections {
            let before = counts.total();
            self.interpret(selection, counts)?;
            ensure!(
                counts.total() > before || self.options.filter.is_some(),
                "no test of {} has one of {:?} in its name",
                selection.package,
                selection.names
            );
        }
        Ok(())
    }

    /// Runs the selected tests of a package's target under Miri.
    fn interpret(&self, selection: &miri::Selection, counts: &mut Counts) -> Result<()> {
        let miri::Selection {
            package,
            target,
            aliasing,
            names,
        } = *selection;
        let mut cargo = Command::new("rustup");
        cargo
            .current_dir(self.workspace.root())
            .args(["run", "nightly", "cargo", "miri", "test"]);
        cargo
            .env_remove("CARGO")
            .env_remove("RUSTUP_TOOLCHAIN")
            .env("MIRIFLAGS", format!("{} {aliasing}", miri::FLAGS))
            // Some tests panic on purpose, and interpreting a backtrace takes minutes.
            .env("RUST_BACKTRACE", "0");
        cargo.args(["--locked", "--package", package]).args(target);
        cargo
            .arg("--target-dir")
            .arg(self.workspace.target().join("miri"));
        cargo.args(["--", "--test-threads=1"]);
        match &self.options.filter {
            Some(filter) => cargo.arg(filter),
            None => cargo.args(names),
        };
        cargo.args(left_out::arguments(left_out::Run::Miri, "*"));
        self.run_counting(&mut cargo, counts, &mut Outcomes::default())
    }

    /// Builds the device tests of all packages and returns the programs of the `is_selected` packages.
    fn build_device_tests(&self, is_selected: impl Fn(&str) -> bool) -> Result<Vec<Program>> {
        let mut cargo = self.cargo();
        if self.options.sanitize {
            cargo = Sanitizer::Address.cargo(self.workspace.root());
        }
        cargo.args(["test", "--locked", "--no-run", "--workspace"]);
        cargo.args(["--test", "device"]);
        if self.options.sanitize {
            Sanitizer::Address.add_target(&mut cargo, self.workspace.target());
        }
        let mut programs = self.build(&mut cargo, |test| test == "device")?;
        programs.retain(|program| is_selected(&program.package));
        // In this order, no long one is the last: cargo's order differs from build to build.
        programs.sort_by(|a, b| b.library.cmp(&a.library));
        let expected = self.packages_with("device").into_iter();
        ensure!(
            programs.len() == expected.filter(|package| is_selected(package)).count(),
            "cargo did not build all of the device tests"
        );
        Ok(programs)
    }

    /// Builds test programs with `cargo test --no-run` and returns the programs with a `is_selected` name.
    fn build(
        &self,
        cargo: &mut Command,
        is_selected: impl Fn(&str) -> bool,
    ) -> Result<Vec<Program>> {
        cargo.arg("--message-format=json-render-diagnostics");
        cargo.stdout(Stdio::piped());
        let mut child = Supervised::spawn(cargo, &[]).context("cannot start cargo")?;
        let messages = child
            .child()
            .stdout
            .take()
            .context("cargo has no standard output")?;
        let mut programs = Vec::new();
        for message in Message::parse_stream(BufReader::new(messages)) {
            let Message::CompilerArtifact(artifact) = message? else {
                continue;
            };
            let Some(executable) = artifact.executable else {
                continue;
            };
            if is_selected(&artifact.target.name) {
                let folder = artifact
                    .manifest_path
                    .parent()
                    .context("a manifest without a folder")?;
                let package = self.workspace.package(&artifact.package_id)?;
                programs.push(Program {
                    package: package.name.to_string(),
                    library: workspace::library(package).to_owned(),
                    folder: folder.into(),
                    executable: executable.into(),
                });
            }
        }
        ensure!(child.wait()?.success(), "the tests do not build");
        Ok(programs)
    }

    fn cargo(&self) -> Command {
        let mut cargo = workspace::cargo(self.workspace);
        if self.options.long {
            cargo.env("LONG", "1");
        }
        cargo
    }

    fn packages_with<'s>(&'s self, test: &'s str) -> Vec<&'s str> {
        self.workspace
            .tests_named(test)
            .map(|(package, _)| package.name.as_str())
            .collect()
    }

    /// Fails if no test ran, unless a filter may have excluded every test.
    fn require_some(&self, counts: &Counts) -> Result<()> {
        ensure!(
            counts.total() > 0 || self.options.filter.is_some(),
            "no test ran"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selected_packages_are_in_the_workspace() {
        let workspace = Workspace::load().unwrap();
        let all = LOADED_ELSEWHERE.iter().chain(&CHECKED_BY_VALGRIND);
        let all = all.chain(&ON_SOFTNIC).chain(&ALSO_OVER_IWARP);
        let suites = rules::SUITES.map(|(package, _)| package);
        for name in all.chain(&newest::BINDINGS).chain(&suites) {
            let mut packages = workspace.packages().iter();
            assert!(
                packages.any(|package| package.name.as_str() == *name),
                "{name}"
            );
        }
    }
}
