//! Folders of a workspace with guests.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cargo_metadata::MetadataCommand;

/// The folders of a run: the workspace of its programs, and the user's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workspace {
    root: PathBuf,
    target: PathBuf,
    cache: PathBuf,
}

impl Workspace {
    /// A workspace with this root and target folder.
    ///
    /// Kernels and boot images are cached for all workspaces of a user, in `$XDG_CACHE_HOME/soft-roce` or
    /// `$HOME/.cache/soft-roce`; without either variable, in the target folder.
    pub fn new(root: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Self {
        let target = target.into();
        let cache = user_cache().unwrap_or_else(|| target.join("soft-roce"));
        Self {
            root: root.into(),
            target,
            // The cache folder itself has scratch folders of kernel builds, removed by the next build.
            cache: cache.join("guests"),
        }
    }

    /// A workspace in a test, with a cache of its own.
    #[cfg(test)]
    pub(crate) fn with_cache(root: &Path, cache: &Path) -> Self {
        Self {
            root: root.to_owned(),
            target: root.join("target"),
            cache: cache.to_owned(),
        }
    }

    /// The workspace of the working directory, from `cargo metadata`. Outside of a workspace: the working directory,
    /// and a target folder in the cache.
    ///
    /// # Errors
    ///
    /// The working directory does not exist any more, cargo cannot describe the workspace in it, or outside of a workspace
    /// the user has no cache.
    pub fn load() -> Result<Self> {
        let folder = env::current_dir()
            .context("the working directory does not exist any more: change to another")?;
        let has_manifest = |folder: &Path| folder.join("Cargo.toml").is_file();
        if !folder.ancestors().any(has_manifest) {
            // No folder with a known name below /tmp: another user could have made it.
            return Ok(Self::new(folder, require_user_cache()?.join("target")));
        }
        // Without resolving dependencies, nothing is downloaded.
        let metadata = MetadataCommand::new()
            .no_deps()
            .exec()
            .context("cargo cannot describe the workspace")?;
        Ok(Self::new(
            metadata.workspace_root,
            metadata.target_directory,
        ))
    }

    /// The folder of the workspace's `Cargo.toml`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Cargo's target folder.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The folder that guests can write to: `$OUT`.
    pub fn out(&self) -> PathBuf {
        self.target.join("soft-roce/out")
    }

    /// The cache of kernels and boot images.
    pub(crate) fn cache(&self) -> &Path {
        &self.cache
    }
}

/// The user's cache folder of this crate, for all workspaces.
pub(crate) fn user_cache() -> Option<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty());
    let folder = variable("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")));
    Some(folder?.join("soft-roce"))
}

/// The user's cache folder.
///
/// # Errors
///
/// No variable names it.
pub(crate) fn require_user_cache() -> Result<PathBuf> {
    user_cache().context(
        "neither XDG_CACHE_HOME nor HOME names a folder for kernels and results: set one of them",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_is_in_the_target_folder_and_the_cache_is_shared() {
        let [one, two] =
            ["/one", "/two"].map(|root| Workspace::new(root, Path::new(root).join("t")));
        assert_eq!(one.out(), Path::new("/one/t/soft-roce/out"));
        if user_cache().is_some() {
            assert_eq!(one.cache(), two.cache());
        }
    }
}
