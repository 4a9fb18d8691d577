//! Sanitizers of the compiler: which tests run under each, and how they are built.
//!
//! The device tests on Soft-RoCE run under `AddressSanitizer` in a guest. The tests of softnic, with the same device
//! tests in one process, run under `AddressSanitizer` and under `ThreadSanitizer` on the host.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use soft_roce::backend::Backend;
use soft_roce::process;

/// Target triple. An explicit `--target` keeps build scripts uninstrumented.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Part of the names of tests that measure memory growth. `AddressSanitizer` delays the reuse of freed memory.
pub(crate) const MEASURING_MEMORY: &str = "thousand_connections_leak_nothing";

/// Seeds of the swarms of softnic: fewer than in `cargo test`, because instrumented code is ten times slower.
const SWARM_SEEDS: &str = "0..100";

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

    /// Cargo for all tests of softnic.
    pub(crate) fn test_softnic(self, root: &Path, target: &Path, filter: Option<&str>) -> Command {
        let suppressions = root.join("ci/tsan.supp");
        let mut cargo = self.cargo(root);
        cargo.args(["test", "--locked", "--package", "softnic", "--tests"]);
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
        cargo.args(["--skip", MEASURING_MEMORY]);
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
    use super::*;

    #[test]
    fn sanitizer_runs_in_qemu_or_is_refused() {
        for chosen in [Backend::Auto, Backend::Qemu] {
            assert_eq!(backend(chosen).unwrap(), Backend::Qemu);
        }
        let error = backend(Backend::Uml).unwrap_err().to_string();
        assert!(error.contains("--backend qemu"), "{error}");
    }
}
