//! Paths and packages of the workspace, from `cargo metadata`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use cargo_metadata::semver::Version;
use cargo_metadata::{Metadata, MetadataCommand, Package, PackageId, Target};

/// The workspace's metadata, and the path of the running xtask.
#[derive(Debug)]
pub(crate) struct Workspace {
    metadata: Metadata,
    xtask: PathBuf,
}

impl Workspace {
    /// Runs `cargo metadata` without resolving dependencies, so nothing is downloaded.
    pub(crate) fn load() -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
        let metadata = MetadataCommand::new()
            .manifest_path(manifest)
            .no_deps()
            .exec()
            .context("cargo cannot describe the workspace")?;
        // Read early: after cargo rebuilds xtask, the running executable has no path.
        let xtask = std::env::current_exe().context("cannot determine the path of xtask")?;
        Ok(Self { metadata, xtask })
    }

    /// The folder of the workspace's `Cargo.toml`.
    pub(crate) fn root(&self) -> &Path {
        self.metadata.workspace_root.as_std_path()
    }

    /// Path of the running xtask program, for tests that start xtask.
    pub(crate) fn xtask(&self) -> &Path {
        &self.xtask
    }

    /// Cargo's target folder.
    pub(crate) fn target(&self) -> &Path {
        self.metadata.target_directory.as_std_path()
    }

    /// The folder for all files of the soft-RoCE guests.
    pub(crate) fn soft_roce(&self) -> PathBuf {
        self.target().join("soft-roce")
    }

    /// The minimum supported Rust version.
    pub(crate) fn rust_version(&self) -> Option<&Version> {
        self.metadata
            .packages
            .iter()
            .find_map(|package| package.rust_version.as_ref())
    }

    /// The workspace package with this id.
    pub(crate) fn package(&self, id: &PackageId) -> Result<&Package> {
        let found = self
            .metadata
            .packages
            .iter()
            .find(|package| package.id == *id);
        found.with_context(|| format!("{id} is no package of the workspace"))
    }

    /// All packages.
    pub(crate) fn packages(&self) -> &[Package] {
        &self.metadata.packages
    }

    /// The packages with an integration test called `name`, each with the test's target.
    pub(crate) fn tests_named<'a>(
        &'a self,
        name: &'a str,
    ) -> impl Iterator<Item = (&'a Package, &'a Target)> {
        self.metadata.packages.iter().flat_map(move |package| {
            let tests = package
                .targets
                .iter()
                .filter(move |target| target.is_test() && target.name == name);
            tests.map(move |target| (package, target))
        })
    }
}

/// A cargo command in the workspace's root, with the toolchain of the running xtask.
pub(crate) fn cargo(workspace: &Workspace) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace.root());
    command
}
