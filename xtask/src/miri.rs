//! Selection of tests for `cargo xtask test --miri` and for `ci`, with the reasons for omissions.
//!
//! Miri interprets a test and detects undefined behaviour: data races, out-of-bounds accesses, uses after free, and
//! aliasing references. The fake device's tests and the pure modules' tests run with Tree Borrows. Stacked Borrows rejects
//! linked work requests, and scatter/gather elements read in place by a provider; modules with neither run with Stacked
//! Borrows too.
//!
//! Of softnic's tests, those of scripted devices run, and those of its device that wait without system calls. The engine has
//! no unsafe code.
//!
//! Addresses are passed to the device as integers, so provenance is permissive rather than strict.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use soft_roce::process;

/// Miri's flags: permissive provenance for the fake device's accesses by address, leaks allowed because some tests leak
/// on purpose, and file descriptors and clocks of the host.
pub(crate) const FLAGS: &str =
    "-Zmiri-permissive-provenance -Zmiri-ignore-leaks -Zmiri-disable-isolation";

/// Flag for the aliasing model Tree Borrows.
const TREE_BORROWS: &str = "-Zmiri-tree-borrows";

/// Tests of one target under one aliasing model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selection {
    pub(crate) package: &'static str,
    pub(crate) target: &'static [&'static str],
    /// Flag for the aliasing model; empty for Stacked Borrows.
    pub(crate) aliasing: &'static str,
    /// Parts of the names of the tests; empty for all tests.
    pub(crate) names: &'static [&'static str],
}

impl Selection {
    const fn new(
        package: &'static str,
        target: &'static [&'static str],
        names: &'static [&'static str],
    ) -> Self {
        Self {
            package,
            target,
            aliasing: TREE_BORROWS,
            names,
        }
    }

    const fn stacked(self) -> Self {
        Self {
            aliasing: "",
            ..self
        }
    }
}

/// The tests of `test --miri`: 40 minutes.
pub(crate) const COMPLETE: [Selection; 6] = [
    Selection::new("rdma-verbs", &["--lib"], &PURE),
    Selection::new("rdma-verbs", &["--test", "fake"], &[]),
    Selection::new("rdma-verbs", &["--lib"], &STACKED).stacked(),
    Selection::new("softnic", &["--lib"], &SOFTNIC_COPIES),
    Selection::new("softnic", &["--test", "scripted"], &[]),
    Selection::new("softnic", &["--test", "verbs"], &SOFTNIC),
];

/// The tests of `ci`: 4 minutes on two processors, with the compilation.
pub(crate) const IN_CI: [Selection; 3] = [
    Selection::new("rdma-verbs", &["--lib"], &PURE_IN_CI),
    Selection::new("softnic", &["--lib"], &SOFTNIC_COPIES),
    Selection::new("softnic", &["--test", "verbs"], &SOFTNIC_IN_CI),
];

/// Modules of `verbs` whose tests need no device and no system call.
const PURE: [&str; 7] = [
    "mr::copying",
    "mr::remote::tests",
    "qp::",
    "srq::slab",
    "work::",
    "wr_id",
    "bounded",
];

/// Modules whose tests also run with Stacked Borrows.
const STACKED: [&str; 8] = [
    "mr::copying",
    "mr::remote::tests",
    "qp::inflight",
    "qp::slots",
    "qp::unordered",
    "srq::slab",
    "wr_id",
    "bounded",
];

/// Tests of softnic's device under `verbs`. Miri lacks the calls of the others: `poll`, flags of event descriptors.
const SOFTNIC: [&str; 5] = [
    "connected::",
    "extended::",
    "books_count_objects",
    "threads::",
    "xrc_atomic_changes_memory",
];

/// Tests of the copies between softnic and the program's memory.
const SOFTNIC_COPIES: [&str; 1] = ["abi::copying"];

/// Modules of `verbs` under Miri in `ci`: the memory of requests in flight, and shared memory.
const PURE_IN_CI: [&str; 3] = ["mr::copying", "qp::inflight", "qp::slots"];

/// Tests of softnic's device under Miri in `ci`: a device is opened, messages pass, and threads share memory with a peer.
const SOFTNIC_IN_CI: [&str; 3] = [
    "message_arrives",
    "remote_memory_accessed_by_program",
    "region_without_rights_read",
];

/// The selections of this file. `cargo xtask tidy` checks that each matches a test.
pub(crate) fn selections() -> Vec<&'static str> {
    let runs = COMPLETE.iter().chain(&IN_CI);
    runs.flat_map(|run| run.names).copied().collect()
}

/// Installs a nightly toolchain with Miri by rustup, unless there is one.
///
/// # Errors
///
/// rustup is not installed, or cannot install the toolchain.
pub(crate) fn install() -> Result<()> {
    if require().is_ok() {
        return Ok(());
    }
    // An installed toolchain stays as it is.
    let mut component = Command::new("rustup");
    component.args([
        "component",
        "add",
        "--toolchain",
        "nightly",
        "miri",
        "rust-src",
    ]);
    if process::run(&mut component).is_err() {
        let mut toolchain = Command::new("rustup");
        toolchain.args(["toolchain", "install", "nightly", "--profile", "minimal"]);
        toolchain.args(["--component", "miri,rust-src", "--no-self-update"]);
        process::run(&mut toolchain)
            .context("rustup cannot install a nightly toolchain with Miri")?;
    }
    require()
}

/// Requires a nightly toolchain with Miri.
///
/// # Errors
///
/// It is not installed.
pub(crate) fn require() -> Result<()> {
    let mut rustup = Command::new("rustup");
    rustup.args(["component", "list", "--toolchain", "nightly", "--installed"]);
    let listed = process::output(&mut rustup);
    ensure!(
        listed.is_ok_and(|list| ["miri", "rust-src"].iter().all(|part| list.contains(part))),
        "Miri needs a nightly toolchain: `rustup component add miri rust-src --toolchain nightly`"
    );
    Ok(())
}
