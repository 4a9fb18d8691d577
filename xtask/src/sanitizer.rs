//! Sanitizers of the compiler: which tests run under each, and how they are built.
//!
//! The device tests on Soft-RoCE run under `AddressSanitizer` in a guest. The tests of softnic, with the same device
//! tests in one process, run under `AddressSanitizer` and under `ThreadSanitizer` on the host.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use soft_roce::backend::Backend;
use soft_roce::process;

use crate::left_out;

/// Target triple. An explicit `--target` keeps build scripts uninstrumented.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Seeds of the swarms of softnic: fewer than in `cargo test`, because instrumented code is ten times slower.
const SWARM_SEEDS: &str = "0..100";

/// Cargo's option for all tests of softnic.
pub(crate) const ALL_TESTS: &[&str] = &["--tests"];

/// Cargo's options for the random programs over the safe API of `verbs`.
pub(crate) const RANDOM_PROGRAMS: &[&str] = &["--test", "programs"];

/// Reports of `ThreadSanitizer` that are no data races, below the workspace's root.
pub(crate) const THREAD_SUPPRESSIONS: &str = "ci/tsan.supp";

/// A sanitizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sanitizer {
    /// `AddressSanitizer`: accesses outside of an object or after its end.
    Address,
    /// `ThreadSanitizer`: data races.
    Thread,
}

impl Sanitizer {
    /// Cargo of the nightly toolchain with instrumented code, in the workspace's root.
    pub(crate) fn cargo(self, root: &Path) -> Command {
        let mut cargo = Command::new("rustup");
        cargo
            .current_dir(root)
            .args(["run", "nightly", "cargo"])
            .env_remove("CARGO")
            .env_remove("RUSTUP_TOOLCHAIN")
            .env("RUSTFLAGS", format!("-Zsanitizer={}", self.name()));
        cargo
    }

    /// Adds the target and a target folder of its own. `ThreadSanitizer` needs an instrumented standard library, or
    /// else reports races where the library synchronizes.
    pub(crate) fn add_target(self, cargo: &mut Command, target: &Path) {
        if self == Self::Thread {
            cargo.arg("-Zbuild-std");
        }
        cargo.args(["--target", TARGET, "--target-dir"]);
        cargo.arg(target.join(self.folder()));
    }

    /// Cargo for tests of softnic: `targets` are cargo's options for their selection.
    pub(crate) fn test_softnic(
        self,
        root: &Path,
        target: &Path,
        targets: &[&str],
        filter: Option<&str>,
    ) -> Command {
        let suppressions = root.join(THREAD_SUPPRESSIONS);
        let mut cargo = self.cargo(root);
        cargo.args(["test", "--locked", "--package", "softnic"]);
        cargo.args(targets);
        cargo.arg("--no-fail-fast");
        self.add_target(&mut cargo, target);
        cargo
            .env("SWARM_SEEDS", SWARM_SEEDS)
            // Some tests leak objects on purpose.
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .env(
                "TSAN_OPTIONS",
                format!("suppressions={}", suppressions.display()),
            );
        cargo.arg("--").args(filter);
        cargo.args(left_out::arguments(left_out::Run::AddressSanitizer, "*"));
        cargo
    }

    /// Fails without a nightly toolchain that can build the tests.
    pub(crate) fn require(self) -> Result<()> {
        let listed = process::output(Command::new("rustup").args([
            "component",
            "list",
            "--toolchain",
            "nightly",
            "--installed",
        ]));
        let needed = match self {
            Self::Address => "rust-std",
            Self::Thread => "rust-src",
        };
        ensure!(
            listed.is_ok_and(|list| list.contains(needed)),
            "{self:?}Sanitizer needs a nightly toolchain: `rustup toolchain install nightly --component rust-src`"
        );
        Ok(())
    }

    fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Thread => "thread",
        }
    }

    fn folder(self) -> &'static str {
        match self {
            Self::Address => "sanitize",
            Self::Thread => "sanitize-thread",
        }
    }
}

/// The backend of a run with `AddressSanitizer`, which needs 16 TiB of addresses: more than a process of User-Mode Linux
/// has.
///
/// # Errors
///
/// `chosen` is User-Mode Linux.
pub(crate) fn backend(chosen: Backend) -> Result<Backend> {
    ensure!(
        chosen != Backend::Uml,
        "--sanitize needs more address space than User-Mode Linux has: use --backend qemu, or no --backend"
    );
    Ok(Backend::Qemu)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::workspace::Workspace;

    /// Whether a line of [`THREAD_SUPPRESSIONS`] names a path in a crate outside of `members`.
    fn is_foreign(line: &str, members: &[String]) -> bool {
        let Some((kind, path)) = line.split_once(':') else {
            return false;
        };
        let first = path.split_once("::").map(|(first, _)| first);
        kind == "race"
            && !line.contains('*')
            && first.is_some_and(|first| members.iter().all(|member| member != first))
    }

    #[test]
    fn suppressions_match_no_code_of_this_tree() {
        let workspace = Workspace::load().unwrap();
        let members: Vec<String> = workspace
            .packages()
            .iter()
            .flat_map(|package| package.targets.iter())
            .map(|target| target.name.replace('-', "_"))
            .collect();
        let text = fs::read_to_string(workspace.root().join(THREAD_SUPPRESSIONS)).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        for line in lines.filter(|line| !line.is_empty()) {
            assert!(is_foreign(line, &members), "{line}");
        }
        for wide in [
            "race:softnic::engine",
            "race:*::engine",
            "race:copying",
            "called_from_lib:tokio",
        ] {
            assert!(!is_foreign(wide, &members), "{wide}");
        }
    }

    #[test]
    fn sanitizer_runs_in_qemu_or_is_refused() {
        for chosen in [Backend::Auto, Backend::Qemu] {
            assert_eq!(backend(chosen).unwrap(), Backend::Qemu);
        }
        let error = backend(Backend::Uml).unwrap_err().to_string();
        assert!(error.contains("--backend qemu"), "{error}");
    }
}
