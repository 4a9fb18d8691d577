//! Changes of the published packages' interfaces since a release, by cargo-semver-checks: an incompatible change needs a
//! new minor version while the major version is 0.

use std::process::Command;

use anyhow::{Context, Result, bail};
use soft_roce::process;

use crate::output;
use crate::packages::published;
use crate::workspace::{self, Workspace};

const TOOL: &str = "cargo-semver-checks";

/// Compares with `baseline`, a revision of git.
pub(crate) fn run(workspace: &Workspace, baseline: &str) -> Result<()> {
    if process::find_program(TOOL).is_none() {
        bail!("{TOOL} is not installed: `cargo install --locked {TOOL}`");
    }
    let mut cargo = workspace::cargo(workspace);
    cargo.args(["semver-checks", "check-release", "--baseline-rev", baseline]);
    for package in published(workspace.packages()) {
        // Programs have no interface in Rust.
        if package.targets.iter().any(|target| target.is_lib()) {
            cargo.args(["--package", package.name.as_str()]);
        }
    }
    process::run(&mut cargo)
        .with_context(|| format!("the version does not fit the changes since {baseline}"))
}

/// Compares with the last release, if the tool is installed and a release has a tag; otherwise prints the reason.
pub(crate) fn run_if_possible(workspace: &Workspace) -> Result<()> {
    let mut git = Command::new("git");
    git.args(["describe", "--tags", "--abbrev=0"]);
    let tag = process::output(git.current_dir(workspace.root()));
    let reason = match tag {
        Err(_) => "no release has a tag".to_owned(),
        Ok(_) if process::find_program(TOOL).is_none() => format!("{TOOL} is not installed"),
        Ok(tag) => return run(workspace, tag.trim()),
    };
    output::print(format_args!("interfaces were not compared: {reason}"));
    Ok(())
}
