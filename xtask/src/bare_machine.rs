//! `cargo test` as on a machine with Rust and a C compiler only: without rdma-core, libclang, pkg-config and programs of tests.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::process::geteuid;

use crate::workspace::Workspace;

/// Hides the files of packages, and runs a command.
const SCRIPT: &str = "xtask/consumer/without_packages.sh";

/// Packages tested for each change: those with code for missing packages.
const PACKAGES: [&str; 5] = [
    "rdma-ibverbs-sys",
    "rdmacm-sys",
    "rdma-efa-sys",
    "rdma-mlx5-sys",
    "xtask-not-run",
];

/// Header of the last documentation tests, which list the tests left out.
const LIST: &str = "Doc-tests tests_not_run\n";

/// Entries of the list on such a machine.
const LEFT_OUT: [&str; 6] = [
    "device_tests_in_guests_run_by_cargo_xtask_test",
    "tests_of_two_guests_run_by_cargo_xtask_test",
    "tests_of_the_harness_run_by_cargo_xtask_test",
    "bindings_against_headers_need_libibverbs_dev_and_librdmacm_dev",
    "programs_of_rdma_core_on_softnic_need_rdmacm_utils_and_perftest",
    "ucx_on_softnic_needs_ucx_utils",
];

/// Runs the tests of the packages with code for missing packages, or of all with `all`.
///
/// # Errors
///
/// A test fails, or the last lines list other tests than those left out.
pub(crate) fn run(workspace: &Workspace, all: bool) -> Result<()> {
    let mut command = Command::new("unshare");
    command.arg("--mount").current_dir(workspace.root());
    if !geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args(["sh", SCRIPT, "cargo", "test", "--offline", "--locked"]);
    command.arg("--target-dir");
    command.arg(workspace.target().join("bare-machine"));
    if !all {
        command.args(PACKAGES.iter().flat_map(|name| ["--package", name]));
    }
    for name in [
        "CARGO",
        "CARGO_TARGET_DIR",
        "LD_LIBRARY_PATH",
        "LIBCLANG_PATH",
    ] {
        command.env_remove(name);
    }
    let output = command.output().context("cannot run unshare")?;
    let [printed, log] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    ensure!(
        output.status.success(),
        "`cargo test` fails without packages:\n{printed}\n{log}"
    );
    let list = list(&printed);
    let listed: BTreeSet<&str> = list.iter().copied().collect();
    ensure!(
        listed == BTreeSet::from(LEFT_OUT),
        "the last lines list {list:?}, and these tests are left out: {LEFT_OUT:?}"
    );
    ensure!(log.contains(LIST), "the list is not the end:\n{log}");
    Ok(())
}

/// The tests that the last test program of an output lists as ignored.
fn list(printed: &str) -> Vec<&str> {
    let (_, last) = printed.rsplit_once("\nrunning ").unwrap_or(("", printed));
    let ignored = last.lines().filter_map(|line| {
        let (_, name) = line.strip_suffix(" ... ignored")?.split_once(" - ")?;
        name.split_whitespace().next()
    });
    ignored.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_is_that_of_the_last_program() {
        let printed = "\nrunning 1 test\ntest a.rs - early (line 3) ... ignored\n\ntest result: ok\n\n\
            \nrunning 3 tests\ntest x/lib.rs - one (line 5) ... ignored\ntest x/lib.rs - two (line 9) ... ok\n\
            test x/lib.rs - three (line 12) ... ignored\n\ntest result: ok\n";
        assert_eq!(list(printed), ["one", "three"]);
        assert_eq!(list(""), [""; 0]);
    }
}
