//! The part of the tests that `ci` runs on the newest stack too: the kernel and the rdma-core of Debian unstable. Its pyverbs runs
//! on softnic, without a guest.
//!
//! The programs are those of the stage *device*, built with the installed headers: functions of newer libraries are found at
//! run time. Only the tests of the bindings are built with the newest headers. `cargo xtask test --stack newest/newest`
//! builds and runs everything.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use soft_roce::preparation::Preparation;
use soft_roce::setup::{self, Group};
use soft_roce::{KernelName, RdmaCore, Source, process};

use super::Suite;
use crate::outcomes::Outcomes;
use crate::stack::{Choice, Stack};
use crate::stack_table;
use crate::stage::{Counts, Stages};

/// Packages with bindings. Their tests compare layouts and functions with the headers, and with the checked-in bindings.
pub(super) const BINDINGS: [&str; 2] = ["rdma-ibverbs-sys", "rdmacm-sys"];

/// The kernel of the stack.
pub(super) const KERNEL: Source = Source::Named(KernelName::Newest);

/// Part of the names of the tests on two hosts over iWARP. They choose this kernel.
pub(super) const OVER_IWARP: &str = "over_iwarp_";

/// Part of the names of the tests of programs on softnic with peers on the kernel's Soft-RoCE.
const BESIDE_SOFTNIC: &str = "_on_linux";

/// Parts of the names of the tests on two hosts: those with a peer that changes with the kernel, its RDS, or with rdma-core, its
/// tools.
pub(super) const HOSTS: [&str; 5] = [
    "kernel_rds::",
    "pingpong::",
    "tool_over_roce",
    BESIDE_SOFTNIC,
    OVER_IWARP,
];

/// Runs the part as further `stages`; the first one builds the stack if necessary.
pub(super) fn run(suite: &Suite<'_>, preparation: &Preparation, stages: &mut Stages) {
    let mut built = None;
    stages.check("newest stack", || {
        built = Some(build(preparation)?);
        Ok(())
    });
    let Some(stack) = &built else { return };
    stages.test("new headers", |counts| bindings(suite, stack, counts));
    let suite = &Suite { stack, ..*suite };
    stages.test("new devices", |counts| {
        let mut outcomes = Outcomes::default();
        suite.device(|_| true, counts, &mut outcomes)?;
        stack_table::record_guests(suite.workspace, stack, &outcomes)
    });
    stages.test("new iWARP", |counts| suite.iwarp(counts));
    stages.test("new hosts", |counts| {
        suite.on_host("two_hosts", &HOSTS, counts, &mut Outcomes::default())
    });
}

/// Runs the newest pyverbs on softnic, and compares softnic's symbols with those of the newest libraries. The first call builds
/// both.
pub(super) fn pyverbs(suite: &Suite<'_>, counts: &mut Counts) -> Result<()> {
    let rdma_core = RdmaCore::find(Path::new("newest"))?;
    let sources = rdma_core.prefix().parent();
    let sources = sources.context("the build has no folder of sources")?;
    let built = suite.workspace.target().join("pyverbs");
    build_pyverbs(sources, &built)?;
    let mut programs = vec![rdma_core.programs()];
    programs.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    let mut cargo = suite.cargo();
    cargo.args(["test", "--locked", "--workspace", "--no-fail-fast"]);
    cargo.args(["--test", "pyverbs", "--test", "symbols"]);
    cargo.env("SOFTNIC_PYVERBS", sources.join("tests"));
    cargo.env("PYTHONPATH", built.join("python"));
    cargo.env("PATH", env::join_paths(programs)?);
    suite.run_counting(&mut cargo, counts, &mut Outcomes::default())?;
    ensure!(counts.total() > 0, "no test ran");
    Ok(())
}

/// Builds pyverbs for the distribution's Python, with the libraries that it needs.
fn build_pyverbs(sources: &Path, folder: &Path) -> Result<()> {
    setup::ensure(&[Group::RdmaCore, Group::Pyverbs])?;
    let mut cmake = Command::new("cmake");
    cmake.args(["-GNinja", "-DIN_PLACE=1", "-DNO_MAN_PAGES=1"]);
    cmake.arg("-DPYTHON_EXECUTABLE=/usr/bin/python3");
    cmake.arg("-S").arg(sources).arg("-B").arg(folder);
    process::run(cmake.stdout(Stdio::null()))?;
    let mut ninja = Command::new("ninja");
    process::output(ninja.arg("-C").arg(folder).arg("pyverbs/all")).map(drop)
}

fn build(preparation: &Preparation) -> Result<Stack> {
    let choice = Choice {
        kernel: Some(PathBuf::from("newest")),
        rdma_core: Some(PathBuf::from("newest")),
        ..Choice::default()
    };
    let stack = choice.resolve()?;
    preparation.next()?;
    Ok(stack)
}

/// Runs the tests of the bindings, generated from the headers of `stack`.
fn bindings(suite: &Suite<'_>, stack: &Stack, counts: &mut Counts) -> Result<()> {
    let workspace = &stack.workspace()?;
    let suite = Suite {
        workspace,
        ..*suite
    };
    let mut cargo = suite.cargo();
    cargo.args(["test", "--locked", "--no-fail-fast"]);
    cargo.args(BINDINGS.iter().flat_map(|name| ["--package", name]));
    suite.run_counting(&mut cargo, counts, &mut Outcomes::default())?;
    ensure!(counts.total() > 0, "no test ran");
    Ok(())
}
