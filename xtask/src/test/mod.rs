//! `cargo xtask test`: the tests of the workspace, each in its environment.
//!
//! - *host*: `cargo test --workspace`, without a device.
//! - *device*: the integration tests called `device`, in one guest, one test at a time; the iWARP tests again in a
//!   second guest, on Soft-iWARP.
//! - *two hosts*: the integration tests called `two_hosts`, on the host. The tests start guests with the program in the
//!   variable `XTASK`.
//! - *harness*: tests of `cargo soft-roce` with real guests, in `soft-roce/tests/harness.rs`.
//!
//! In *two hosts* and *harness*, several tests run at a time ([`at_once`]). Every stage builds the tests of the whole
//! workspace, because building a single package would unify dependency features differently and rebuild the dependencies.
//!
//! A complete run ends with the coverage of pyverbs ([`pyverbs`]), the cases of RDS ([`conformance`]), and the results of
//! the device tests on softnic, in the *host* stage, and on Soft-RoCE, in the *device* stage ([`differences`]).
//!
//! `ci` adds a part of the tests on the [`newest`] stack.
//!
//! Device, two-hosts and harness tests have `test = false` in the manifest, so a plain `cargo test` needs no guest.

mod newest;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::Message;
use rustix::pipe::PipeFlags;

use crate::cli::TestArguments;
use crate::conformance;
use crate::differences::{self, Device as Tested};
use crate::miri;
use crate::outcomes::{DEVICE_TESTS_OF, KERNEL, Outcomes};
use crate::output;
use crate::own_logic;
use crate::pyverbs;
use crate::sanitizer::{self, MEASURING_MEMORY, Sanitizer};
use crate::stack::{self, Stack};
use crate::stack_table;
use crate::stage::{Counts, Stages};
use crate::workspace::{self, Workspace};
use soft_roce::backend::{self, Backend};
use soft_roce::process::{self, Supervised};
use soft_roce::report::{Printer, Style};
use soft_roce::setup::{self, Group};
use soft_roce::{Device, EventKind, Run, Source, quote};

/// Selection of tests, and their options.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) host_only: bool,
    pub(crate) device_only: bool,
    pub(crate) long: bool,
    pub(crate) sanitize: bool,
    pub(crate) sanitize_softnic: bool,
    pub(crate) valgrind: bool,
    pub(crate) miri: bool,
    pub(crate) backend: Backend,
    pub(crate) stack: stack::Choice,
    pub(crate) filter: Option<String>,
    /// Prints no routine lines, as in the log of `ci`.
    pub(crate) brief: bool,
    /// Whether device tests of [`own_logic`] are left out on Soft-RoCE.
    pub(crate) without_own_logic: bool,
    /// Whether a part of the tests runs on the [`newest`] stack too.
    pub(crate) newest_too: bool,
}

impl From<TestArguments> for Options {
    fn from(arguments: TestArguments) -> Self {
        let TestArguments {
            host_only,
            device_only,
            long,
            sanitize,
            sanitize_softnic,
            valgrind,
            miri,
            backend,
            stack,
            kernel,
            modules,
            rdma_core,
            filter,
        } = arguments;
        Self {
            host_only,
            device_only,
            long,
            sanitize,
            sanitize_softnic,
            valgrind,
            miri,
            backend,
            stack: stack::Choice {
                name: stack,
                kernel,
                modules,
                rdma_core,
            },
            filter,
            brief: false,
            without_own_logic: false,
            newest_too: false,
        }
    }
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
const ON_SOFTNIC: [&str; 2] = ["softnic", "kv_store"];

/// Packages with tests of iWARP's differences from InfiniBand and RoCE.
const ALSO_OVER_IWARP: [&str; 2] = ["rdma-cm", "rdma-rsocket"];

/// Parts of the names of tests that must also pass over iWARP.
const DIFFERENT_OVER_IWARP: [&str; 5] = [
    "overtaking::",
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

/// Parts of the names of exhaustive tests: too slow under valgrind, or on loom's stacks, unsupported by valgrind. Other
/// tests cover the same code.
const EXHAUSTIVE: [&str; 4] = [
    "interleavings::",
    "every_order",
    "failed_destroy_in_drop",
    "every_sequence",
];

/// Part of the name of a test that maps more address space than valgrind supports.
const TOO_LARGE: &str = "huge_mapping_with_empty_pool_names_the_pool";

/// The selections of this file. `cargo xtask tidy` checks that each matches a test.
pub(crate) fn selections() -> Vec<&'static str> {
    let mut parts = vec![MEASURING_MEMORY, TOO_LARGE];
    parts.extend(DIFFERENT_OVER_IWARP);
    parts.extend(COMPILING);
    parts.extend(EXHAUSTIVE);
    parts.extend(own_logic::MODULES.map(|(_, module)| module));
    parts
}

/// Runs the selected tests and prints the table of stages. Returns whether all passed.
pub(crate) fn run(options: &Options) -> Result<bool> {
    setup::ensure(&[Group::Build])?;
    let stack = options.stack.resolve()?;
    let workspace = stack.workspace()?;
    let mut stages = Stages::default();
    run_stages(&workspace, options, &stack, &mut stages)?;
    if let (0, Some(filter)) = (stages.total(), &options.filter) {
        bail!("no test has `{filter}` in its name");
    }
    Ok(stages.close())
}

/// Runs the selected tests on `stack` as further `stages`.
pub(crate) fn run_stages(
    workspace: &Workspace,
    options: &Options,
    stack: &Stack,
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
        stages.test("miri", |counts| suite.miri(counts));
        return Ok(());
    }
    if options.sanitize_softnic {
        return sanitize_softnic(&suite, stages);
    }
    match stack {
        Stack::Softnic => {
            stages.test("softnic", |counts| {
                suite.host(counts, &mut Outcomes::default())
            });
            Ok(())
        }
        Stack::Guests { kernel, .. } => run_stages_of_guests(suite, kernel, stages),
    }
}

/// Runs the tests of the host and of guests with `kernel`.
fn run_stages_of_guests(suite: Suite<'_>, kernel: &Source, stages: &mut Stages) -> Result<()> {
    let options = suite.options;
    let mut outcomes = Outcomes::default();
    setup::ensure(&[Group::Build, Group::Guest, Group::Tools])?;
    if options.long {
        setup::ensure(&[Group::Programs])?;
    }
    if !options.host_only && !options.valgrind && !options.sanitize {
        backend::prepare_for_many_runs(options.backend, kernel)?;
    }
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
        let wanted = |package: &str| !LOADED_ELSEWHERE.contains(&package);
        stages.test("device", |counts| {
            suite.device(wanted, counts, &mut outcomes)
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
    if !options.host_only && !options.device_only {
        stages.test("harness", |counts| {
            suite.on_host("harness", counts, &mut outcomes)
        });
    }
    if !options.host_only {
        stages.test("device", |counts| {
            suite.device(|_| true, counts, &mut outcomes)
        });
        if options.filter.is_none() {
            stages.test("device, iWARP", |counts| suite.iwarp(counts));
        }
        stages.test("two hosts", |counts| {
            suite.on_host("two_hosts", counts, &mut outcomes)
        });
    }
    if options.newest_too {
        newest::run(&suite, stages);
    }
    if !options.host_only && !options.device_only && options.filter.is_none() {
        compare_with_tables(&suite, &outcomes, stages);
    }
    Ok(())
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
        differences::report(workspace, outcomes, options.without_own_logic)
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
        suite.softnic(Sanitizer::Address, counts)
    });
    stages.test("softnic TSan", |counts| {
        suite.softnic(Sanitizer::Thread, counts)
    });
    Ok(())
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
        suite.on_host("harness", counts, &mut outcomes)
    });
    stages.test("device, QEMU", |counts| {
        suite.device(|_| true, counts, &mut outcomes)
    });
    stages.test("iWARP, QEMU", |counts| suite.iwarp(counts));
    stages.test("two, QEMU", |counts| {
        suite.on_host("two_hosts", counts, &mut outcomes)
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
        let (output, input) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        cargo
            .stdin(Stdio::null())
            .stderr(input.try_clone()?)
            .stdout(input);
        let mut child = Supervised::spawn(cargo, &[]).context("cannot start cargo")?;
        // The command holds the write ends of the pipe; without this the pipe never reaches end of file.
        cargo.stdout(Stdio::null()).stderr(Stdio::null());
        for line in BufReader::new(File::from(output)).lines() {
            let line = line.context("a test printed no text")?;
            counts.read(&line);
            outcomes.read(&line);
            if !(self.options.brief && output::is_routine(&line)) {
                output::print(line);
            }
        }
        let status = child.wait()?;
        ensure!(
            status.success(),
            "`{}` failed ({status})",
            process::display(cargo)
        );
        Ok(())
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
        self.run_counting(&mut cargo, counts, outcomes)?;
        self.require_some(counts)
    }

    /// Runs the integration tests called `name` on the host. The tests start guests.
    fn on_host(&self, name: &str, counts: &mut Counts, outcomes: &mut Outcomes) -> Result<()> {
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
            .args(&self.options.filter);
        cargo.env("XTASK", self.workspace.xtask());
        cargo.env(backend::VARIABLE, self.options.backend.name());
        self.stack.choose_for_guests(&mut cargo);
        self.run_counting(&mut cargo, counts, outcomes)?;
        self.require_some(counts)
    }

    /// Runs the device tests of the `wanted` packages on Soft-RoCE.
    fn device(
        &self,
        wanted: impl Fn(&str) -> bool,
        counts: &mut Counts,
        outcomes: &mut Outcomes,
    ) -> Result<()> {
        let mut arguments: Vec<&str> = self.options.filter.as_deref().into_iter().collect();
        if self.options.sanitize {
            arguments.extend(["--skip", MEASURING_MEMORY]);
        }
        let programs = self.build_device_tests(wanted)?;
        let arguments = |program: &Program| {
            let mut all = arguments.clone();
            if self.options.without_own_logic {
                let modules = own_logic::of(&program.library);
                all.extend(modules.flat_map(|module| ["--skip", module]));
            }
            all
        };
        let limit = match self.options.sanitize {
            true => self.limit(60, 120),
            false => self.limit(15, 120),
        };
        let capabilities = stack_table::capabilities(self.workspace, Tested::Rxe);
        let plan = Run::single(device_script(&programs, arguments, limit / 2)?)
            .memory_mib(2048)
            // Some tests leak objects on purpose.
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .env(stack_table::VARIABLE, capabilities.to_string_lossy())
            .by_line();
        self.in_guest(plan, limit, programs.len(), counts, outcomes)
    }

    /// The guest's time limit in minutes: `long` with `--long`, else `short`.
    fn limit(&self, short: u64, long: u64) -> Duration {
        let minutes = if self.options.long { long } else { short };
        Duration::from_secs(60 * minutes)
    }

    /// Runs the iWARP tests on Soft-iWARP.
    fn iwarp(&self, counts: &mut Counts) -> Result<()> {
        let programs = self.build_device_tests(|package| ALSO_OVER_IWARP.contains(&package))?;
        let limit = self.limit(6, 30);
        let plan = Run::single(device_script(
            &programs,
            |_| DIFFERENT_OVER_IWARP.to_vec(),
            limit / 2,
        )?)
        .device(Device::Siw)
        .by_line();
        self.in_guest(
            plan,
            limit,
            programs.len(),
            counts,
            &mut Outcomes::default(),
        )?;
        ensure!(counts.total() > 0, "no test ran");
        Ok(())
    }

    /// Runs a plan with `programs` test programs in a guest. An error if a program fails or prints no result.
    fn in_guest(
        &self,
        mut plan: Run,
        limit: Duration,
        programs: usize,
        counts: &mut Counts,
        outcomes: &mut Outcomes,
    ) -> Result<()> {
        plan = plan.timeout(limit).backend(self.options.backend);
        plan = self.stack.choose_for(plan);
        if self.options.long {
            plan = plan.env("LONG", "1");
        }
        let mut printer = Printer::new(Style::Lines, false);
        let outcome = plan.execute(self.workspace.for_guests(), &mut |event| {
            if let EventKind::Output(_, line) = &event.kind {
                let line = String::from_utf8_lossy(line);
                counts.read(&line);
                outcomes.read(&line);
                if self.options.brief && output::is_routine(&line) {
                    return;
                }
            }
            printer.print(event);
        })?;
        if let Some(complaint) = outcome.complaint() {
            eprintln!("{complaint}");
        }
        let silent = programs.saturating_sub(counts.programs as usize);
        ensure!(silent == 0, "{silent} test programs ended without a result");
        ensure!(
            outcome.is_success(),
            "the device tests failed (exit code {})",
            outcome.exit_code()
        );
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
            let skipped = EXHAUSTIVE.iter().chain([&TOO_LARGE]);
            valgrind.args(skipped.flat_map(|name| ["--skip", name]));
            valgrind.args(&self.options.filter);
            if let Err(error) = self.run_counting(&mut valgrind, counts, &mut Outcomes::default()) {
                failed.push(format!("{error:#}"));
            }
        }
        ensure!(failed.is_empty(), "{}", failed.join("\n"));
        self.require_some(counts)
    }

    /// Runs the tests of softnic under a sanitizer, on the host.
    fn softnic(&self, sanitizer: Sanitizer, counts: &mut Counts) -> Result<()> {
        let (root, target) = (self.workspace.root(), self.workspace.target());
        let mut cargo = sanitizer.test_softnic(root, target, self.options.filter.as_deref());
        self.run_counting(&mut cargo, counts, &mut Outcomes::default())?;
        self.require_some(counts)
    }

    /// Runs tests of `verbs` under Miri: the pure modules, and the fake device's; and tests of softnic's devices.
    fn miri(&self, counts: &mut Counts) -> Result<()> {
        for (test, reason) in miri::LEFT_OUT {
            output::print(format_args!("left out: {test} ({reason})"));
        }
        let (verbs, softnic) = ("rdma-verbs", "softnic");
        self.interpret(verbs, miri::TREE_BORROWS, &["--lib"], &miri::PURE, counts)?;
        self.interpret(verbs, miri::TREE_BORROWS, &["--test", "fake"], &[], counts)?;
        self.interpret(verbs, "", &["--lib"], &miri::STACKED, counts)?;
        self.interpret(
            softnic,
            miri::TREE_BORROWS,
            &["--test", "scripted"],
            &[],
            counts,
        )?;
        let device = ["--test", "verbs"];
        self.interpret(softnic, miri::TREE_BORROWS, &device, &miri::SOFTNIC, counts)?;
        self.require_some(counts)
    }

    /// Runs the tests of a package's target under Miri: those with one of `names` in the name, or all for an empty list.
    fn interpret(
        &self,
        package: &str,
        aliasing: &str,
        target: &[&str],
        names: &[&str],
        counts: &mut Counts,
    ) -> Result<()> {
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
        cargo.args(miri::LEFT_OUT.iter().flat_map(|(test, _)| ["--skip", test]));
        self.run_counting(&mut cargo, counts, &mut Outcomes::default())
    }

    /// Builds the device tests of all packages and returns the programs of the `wanted` packages.
    fn build_device_tests(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<Program>> {
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
        programs.retain(|program| wanted(&program.package));
        let expected = self.packages_with("device").into_iter();
        ensure!(
            programs.len() == expected.filter(|package| wanted(package)).count(),
            "cargo did not build all of the device tests"
        );
        Ok(programs)
    }

    /// Builds test programs with `cargo test --no-run` and returns the programs with a `wanted` name.
    fn build(&self, cargo: &mut Command, wanted: impl Fn(&str) -> bool) -> Result<Vec<Program>> {
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
            if wanted(&artifact.target.name) {
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

/// The guest's script: runs the programs in sequence, each in its package's folder (as cargo does) with one test
/// thread and its own arguments. A failure is reported at the end. A program that exceeds `limit` is killed and the next
/// one starts.
fn device_script<'p>(
    programs: &'p [Program],
    arguments: impl Fn(&'p Program) -> Vec<&'p str>,
    limit: Duration,
) -> Result<String> {
    let limit = limit.as_secs();
    let mut script = format!(
        "code=0; echo \"{KERNEL}$(uname -r)\"\n\
         failed() {{ code=1; [ $1 != 124 ] || echo \"the tests of $2 have not ended after {limit} s\"; }}\n"
    );
    for program in programs {
        let library = &program.library;
        let arguments = shlex::try_join(arguments(program))?;
        let (folder, executable) = (quote(&program.folder)?, quote(&program.executable)?);
        script += &format!(
            "echo; echo '{DEVICE_TESTS_OF}{library}'\n\
             cd {folder} && CARGO_MANIFEST_DIR={folder} timeout --kill-after=5 {limit} \
             {executable} --test-threads=1 {arguments} || failed $? {library}\n"
        );
    }
    Ok(script + "exit $code\n")
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn device_script_with_hanging_program_runs_the_others() {
        let folder = tempfile::tempdir().unwrap();
        // The programs' first argument is `--test-threads=1`.
        let scripts = [
            ("stuck", "sleep 60"),
            ("wrong", "exit 3"),
            ("right", "echo done"),
        ];
        let programs = scripts.map(|(library, script)| {
            let executable = folder.path().join(library);
            fs::write(&executable, script).unwrap();
            fs::set_permissions(&executable, Permissions::from_mode(0o755)).unwrap();
            Program {
                package: format!("rdma-{library}"),
                library: library.to_owned(),
                folder: folder.path().to_owned(),
                executable,
            }
        });
        let run = |programs: &[Program]| {
            let script = device_script(programs, |_| Vec::new(), Duration::from_secs(1)).unwrap();
            let output = Command::new("sh").args(["-c", &script]).output().unwrap();
            let printed = String::from_utf8(output.stdout).unwrap();
            (output.status.code(), printed)
        };
        let (code, printed) = run(&programs);
        assert_eq!(code, Some(1));
        let mut lines = printed.lines().filter(|line| !line.is_empty());
        assert!(lines.next().unwrap().starts_with(KERNEL));
        let lines: Vec<&str> = lines.collect();
        assert_eq!(
            lines,
            [
                &format!("{DEVICE_TESTS_OF}stuck"),
                "the tests of stuck have not ended after 1 s",
                &format!("{DEVICE_TESTS_OF}wrong"),
                &format!("{DEVICE_TESTS_OF}right"),
                "done",
            ]
        );
        assert_eq!(run(&programs[2..]).0, Some(0));
    }
}
