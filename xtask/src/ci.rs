//! `cargo xtask ci`: everything that a change has to pass. `.ci/run` is this and nothing else.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, PackageId};

use crate::setup::{self, Group};
use crate::stage::Stages;
use crate::workspace::{self, Workspace};
use crate::{codegen, process, test, tidy};

/// The crates that have to build without their features, too: -sys without generating their bindings.
const WITHOUT_FEATURES: [&str; 3] = ["ibverbs-sys", "rdmacm-sys", "verbs"];

/// The only platform there is: RDMA in user space is Linux's.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// The integration tests that `--all-targets` leaves out, because a plain `cargo test` does.
const TESTS_IN_GUESTS: [&str; 3] = ["device", "two_hosts", "harness"];

/// Runs all the checks and all the tests; a long run repeats those in guests in QEMU. Returns whether all went well.
pub(crate) fn run(long: bool) -> Result<bool> {
    setup::ensure(Group::ALL)?;
    let workspace = Workspace::load()?;
    let mut stages = Stages::default();
    stages.check("format", || cargo(&workspace, &["fmt", "--all", "--check"]));
    stages.check("tidy", || tidy::run(workspace.root()));
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
    test::run_stages(&workspace, &test::Options::default(), &mut stages)?;
    if long {
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
    for package in WITHOUT_FEATURES {
        cargo(
            workspace,
            &[
                &[
                    "clippy",
                    "--locked",
                    "--package",
                    package,
                    "--no-default-features",
                ],
                &deny[..],
            ]
            .concat(),
        )?;
    }
    Ok(())
}

/// No dependency of a published crate may want a newer Rust than the workspace says it needs.
///
/// The code itself is held to it by clippy's `incompatible_msrv`, and by that toolchain where it is installed.
fn msrv(workspace: &Workspace) -> Result<()> {
    let metadata = MetadataCommand::new()
        .manifest_path(workspace.root().join("Cargo.toml"))
        // Other systems' dependencies are of no concern, and would be downloaded.
        .other_options(["--locked", "--filter-platform", PLATFORM].map(str::to_owned))
        .exec()
        .context("cargo cannot resolve the workspace")?;
    let too_new = too_new(&metadata)?;
    ensure!(
        too_new.is_empty(),
        "dependencies want a newer Rust: {}",
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
        println!(
            "Rust {toolchain} is not installed; only the dependencies' own statements were checked"
        );
    }
    Ok(())
}

/// The packages that the members need, but not only for their tests, and that want a newer Rust than the member does.
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
        let mut seen: Vec<&PackageId> = Vec::new();
        while let Some(id) = todo.pop() {
            if seen.contains(&id) {
                continue;
            }
            seen.push(id);
            let package = &metadata[id];
            if package
                .rust_version
                .as_ref()
                .is_some_and(|wanted| wanted > limit)
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
