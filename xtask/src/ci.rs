//! `cargo xtask ci`: all checks and tests required of a change. `.ci/run` only calls this command.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, PackageId};
use soft_roce::process;
use soft_roce::setup::{self, Group};

use crate::output;
use crate::stack::Stack;
use crate::stage::Stages;
use crate::workspace::{self, Workspace};
use crate::{bare_machine, bench, codegen, demo, dependencies, fuzz, packages, semver, test, tidy};

/// Packages also checked without default features, and the features instead: for the -sys crates, without generated
/// bindings.
const WITHOUT_DEFAULTS: [(&str, &str); 10] = [
    ("rdma-ibverbs-sys", ""),
    ("rdmacm-sys", ""),
    ("rdma-efa-sys", ""),
    ("rdma-efa", "dlopen"),
    ("rdma-mlx5-sys", ""),
    ("rdma-mlx5", "dlopen"),
    ("rdma-verbs", ""),
    ("rdma-cm", "dlopen"),
    ("rdma-rsocket", ""),
    ("rdma-rds", ""),
];

/// The only supported platform.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Integration tests with `test = false`, omitted by `--all-targets`.
const TESTS_IN_GUESTS: [&str; 3] = ["device", "two_hosts", "harness"];

/// Runs all checks and tests, and a part of the tests on the newest stack too; without `long`, device tests of
/// [`crate::left_out::Run::RxeInCi`] run on softnic only, and `long` runs the fuzz targets, and repeats the guest tests in QEMU. Returns whether everything passed.
pub(crate) fn run(long: bool) -> Result<bool> {
    setup::ensure(Group::ALL)?;
    let workspace = Workspace::load()?;
    let options = test::without_guests_if_none(&test::Options {
        brief: true,
        without_repeats: !long,
        newest_too: true,
        ..test::Options::default()
    })?;
    let stack = Stack::default();
    let preparation = test::prepare_guests(&options, &stack)?;
    let mut stages = Stages::default();
    stages.check("format", || cargo(&workspace, &["fmt", "--all", "--check"]));
    stages.check("tidy", || tidy::run(&workspace));
    stages.check("clippy", || clippy(&workspace));
    stages.check("doc", || {
        let mut command = workspace::cargo(&workspace);
        command
            .args([
                "doc",
                "--locked",
                "--workspace",
                "--no-deps",
                "--all-features",
            ])
            .env("RUSTDOCFLAGS", "-D warnings");
        process::run(&mut command)
    });
    stages.check("codegen", || codegen::run(true));
    stages.check("msrv", || msrv(&workspace));
    stages.check("deny", || dependencies::deny_if_possible(&workspace));
    stages.check("fuzz targets", || fuzz::check(&workspace));
    stages.check("packages", || packages::run(&workspace));
    stages.check("bare machine", || bare_machine::run(&workspace, long));
    stages.check("demo in C", || {
        ensure!(demo::original::run(None)?, "not both messages have arrived");
        Ok(())
    });
    stages.check("semver", || semver::run_if_possible(&workspace));
    stages.check("counts", || bench::run_counts(&workspace, true));
    test::run_stages_of_nightly(&workspace, &mut stages);
    test::rules::run_stage(&workspace, &mut stages);
    test::arm64::run_stage(&workspace, &mut stages);
    let preparation = preparation.as_ref();
    test::run_stages(&workspace, &options, &stack, preparation, &mut stages)?;
    if long {
        stages.check("fuzz", || fuzz::run(&workspace));
        test::run_stages_in_qemu(&workspace, &mut stages);
    }
    Ok(stages.close())
}

fn clippy(workspace: &Workspace) -> Result<()> {
    let deny = ["--", "-D", "warnings"];
    cargo(
        workspace,
        &[
            &["clippy", "--locked", "--workspace", "--all-targets"],
            &deny[..],
        ]
        .concat(),
    )?;
    let mut in_guests = vec!["clippy", "--locked", "--workspace"];
    for name in TESTS_IN_GUESTS {
        if workspace.tests_named(name).next().is_some() {
            in_guests.extend(["--test", name]);
        }
    }
    cargo(workspace, &[&in_guests[..], &deny].concat())?;
    for (package, features) in WITHOUT_DEFAULTS {
        cargo(
            workspace,
            &[
                &[
                    "clippy",
                    "--locked",
                    "--package",
                    package,
                    "--no-default-features",
                    "--features",
                    features,
                ],
                &deny[..],
            ]
            .concat(),
        )?;
    }
    Ok(())
}

/// Fails if a non-test dependency of a workspace package requires a newer Rust than the package's `rust-version`.
///
/// The code itself is checked by clippy's `incompatible_msrv`, and by that toolchain if installed.
fn msrv(workspace: &Workspace) -> Result<()> {
    let metadata = MetadataCommand::new()
        .manifest_path(workspace.root().join("Cargo.toml"))
        // Dependencies of other platforms are irrelevant, and resolving them would download them.
        .other_options(["--locked", "--filter-platform", PLATFORM].map(str::to_owned))
        .exec()
        .context("cargo cannot resolve the workspace")?;
    let too_new = too_new(&metadata)?;
    ensure!(
        too_new.is_empty(),
        "dependencies need a newer Rust than rust-version: {}",
        too_new.join(", ")
    );

    let version = workspace
        .rust_version()
        .context("the workspace states no rust-version")?;
    let toolchain = format!("{}.{}", version.major, version.minor);
    let installed =
        process::output(Command::new("rustup").args(["toolchain", "list"])).unwrap_or_default();
    if installed.lines().any(|line| {
        line.starts_with(&format!("{toolchain}-")) || line.starts_with(&format!("{toolchain}."))
    }) {
        let mut check = Command::new("rustup");
        check
            .current_dir(workspace.root())
            .env_remove("CARGO")
            .env_remove("RUSTUP_TOOLCHAIN");
        check.args([
            "run",
            &toolchain,
            "cargo",
            "check",
            "--locked",
            "--workspace",
            "--target-dir",
        ]);
        check.arg(workspace.target().join("msrv"));
        process::run(&mut check)?;
    } else {
        output::print(format_args!(
            "Rust {toolchain} is not installed; only the dependencies' rust-version was checked"
        ));
    }
    Ok(())
}

/// The dependencies, except test-only ones, whose `rust-version` is newer than the member's.
fn too_new(metadata: &Metadata) -> Result<Vec<String>> {
    let resolve = metadata
        .resolve
        .as_ref()
        .context("cargo resolved nothing")?;
    let mut found = Vec::new();
    for member in metadata.workspace_packages() {
        let Some(limit) = &member.rust_version else {
            bail!("{} states no rust-version", member.name)
        };
        let mut todo = vec![&member.id];
        let mut visited: Vec<&PackageId> = Vec::new();
        while let Some(id) = todo.pop() {
            if visited.contains(&id) {
                continue;
            }
            visited.push(id);
            let package = &metadata[id];
            if package
                .rust_version
                .as_ref()
                .is_some_and(|required| required > limit)
            {
                let text = format!("{} {}", package.name, package.version);
                if !found.contains(&text) {
                    found.push(text);
                }
            }
            let node = resolve.nodes.iter().find(|node| node.id == *id);
            for dependency in node.into_iter().flat_map(|node| &node.deps) {
                let used = dependency
                    .dep_kinds
                    .iter()
                    .any(|kind| kind.kind != DependencyKind::Development);
                if used {
                    todo.push(&dependency.pkg);
                }
            }
        }
    }
    Ok(found)
}

fn cargo(workspace: &Workspace, arguments: &[&str]) -> Result<()> {
    process::run(workspace::cargo(workspace).args(arguments))
}
