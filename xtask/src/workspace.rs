//! Paths and packages of the workspace, from `cargo metadata`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use cargo_metadata::semver::Version;
use cargo_metadata::{Metadata, MetadataCommand, Package, PackageId, Target};
use soft_roce::RdmaCore;

/// The workspace's metadata, and the path of the running xtask.
#[derive(Debug)]
pub(crate) struct Workspace {
    metadata: Metadata,
    xtask: PathBuf,
    guests: soft_roce::Workspace,
    /// Cargo's target folder without an rdma-core of its own.
    results: PathBuf,
    /// Environment of cargo.
    variables: Vec<(&'static str, OsString)>,
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
        let guests = soft_roce::Workspace::new(
            metadata.workspace_root.as_std_path(),
            metadata.target_directory.as_std_path(),
        );
        Ok(Self {
            results: metadata.target_directory.clone().into(),
            metadata,
            xtask,
            guests,
            variables: Vec::new(),
        })
    }

    /// The workspace built with `rdma_core`, in a target folder of its own.
    pub(crate) fn with_rdma_core(mut self, rdma_core: &RdmaCore) -> Self {
        let folder = format!("rdma-core-{}", rdma_core.release());
        self.metadata.target_directory = self.metadata.target_directory.join(folder);
        self.guests = soft_roce::Workspace::new(self.root(), self.target());
        self.variables = rdma_core.variables().into();
        let target = self.target().as_os_str().to_owned();
        self.variables.push(("CARGO_TARGET_DIR", target));
        self
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

    /// The folder for results of several stacks, each with a target folder of its own.
    pub(crate) fn results(&self) -> &Path {
        &self.results
    }

    /// The workspace's folders, for guests.
    pub(crate) fn for_guests(&self) -> &soft_roce::Workspace {
        &self.guests
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

/// Name of a package's library, by which the results of its tests are recorded; the package's name without a library.
pub(crate) fn library(package: &Package) -> &str {
    let mut libraries = package
        .targets
        .iter()
        .filter(|target| target.is_lib() || target.is_cdylib());
    libraries
        .next()
        .map_or(&package.name, |target| &target.name)
}

/// A cargo command in the workspace's root, with the toolchain of the running xtask.
pub(crate) fn cargo(workspace: &Workspace) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace.root());
    let variables = workspace.variables.iter();
    command.envs(variables.map(|(name, value)| (name, value)));
    command
}
