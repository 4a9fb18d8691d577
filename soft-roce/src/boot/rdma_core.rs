//! A build of rdma-core in place of the installed one: by a folder, or built once for each user from the source package of
//! Debian unstable.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::architecture;
use crate::boot::apt;
use crate::boot::kernel;
use crate::boot::package_lists::Lists;
use crate::commands::setup::{self, Group};
use crate::process;
use crate::run::quote;
use crate::scratch::Scratch;
use crate::workspace;

/// Environment variable with the default of `--rdma-core`.
pub const VARIABLE: &str = "SOFT_ROCE_RDMA_CORE";

/// Name of the build from the newest source package.
const NEWEST: &str = "newest";

/// Folders with libraries, relative to the folder of a build or of an installation.
const LIBRARY_PLACES: [&str; 6] = [
    "lib",
    "build/lib",
    "lib64",
    "lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
];

/// Settings of the build: programs and libraries that work in the build's folder, without manual pages and pyverbs, which
/// need further packages.
const SETTINGS: [&str; 4] = [
    "-DIN_PLACE=1",
    "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
    "-DNO_MAN_PAGES=1",
    "-DNO_PYVERBS=1",
];

/// A build of rdma-core: libraries, providers, header files and programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaCore {
    /// Folder of `bin`.
    prefix: PathBuf,
    libraries: PathBuf,
    release: String,
}

impl RdmaCore {
    /// The build in a folder, or with the name `newest` the one of Debian unstable, which is built first if necessary.
    ///
    /// # Errors
    ///
    /// The folder has no build of rdma-core with a provider for Soft-RoCE, or the build fails.
    pub fn find(name: &Path) -> Result<Self> {
        if is_name(name) {
            newest()
        } else {
            Self::at(name)
        }
    }

    /// The build or installation in `folder`.
    fn at(folder: &Path) -> Result<Self> {
        let folder = folder
            .canonicalize()
            .with_context(|| format!("no rdma-core at {}", folder.display()))?;
        let mut layouts = LIBRARY_PLACES
            .iter()
            .map(|layout| (layout, folder.join(layout)));
        let found = layouts.find(|(_, libraries)| libraries.join("libibverbs.so.1").exists());
        let (layout, libraries) = found.with_context(|| {
            format!(
                "{} has no build of rdma-core: none of {} has libibverbs.so.1",
                folder.display(),
                LIBRARY_PLACES.join(", ")
            )
        })?;
        ensure!(
            has_provider(&libraries),
            "the rdma-core in {} has no provider for Soft-RoCE: build it with providers/rxe",
            folder.display()
        );
        let release = release(&libraries.join("libibverbs.so.1"))?;
        let (prefix, _) = layout.rsplit_once("lib").unwrap_or_default();
        Ok(Self {
            prefix: folder.join(prefix.trim_end_matches('/')),
            libraries,
            release,
        })
    }

    /// The release, such as `65.0`.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Folder of the build, an argument of [`find`](Self::find).
    pub fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// Folder of the programs.
    pub fn programs(&self) -> PathBuf {
        self.prefix.join("bin")
    }

    /// A search path with the programs first.
    pub(crate) fn search_path(&self, rest: &str) -> String {
        format!("{}:{rest}", self.programs().display())
    }

    /// Variables for programs that load the libraries, and for build scripts that look for them with pkg-config.
    pub fn variables(&self) -> [(&'static str, OsString); 2] {
        [
            ("LD_LIBRARY_PATH", self.libraries.clone().into()),
            ("PKG_CONFIG_PATH", self.libraries.join("pkgconfig").into()),
        ]
    }

    /// A guest's command that opens the way to the libraries for its other users, from a private home folder too. The host's
    /// folders do not change: the guest's root is an overlay.
    pub(crate) fn make_reachable(&self) -> Result<String> {
        let ways = self.libraries.ancestors().map(quote);
        let ways: Vec<_> = ways.collect::<Result<_>>()?;
        Ok(format!("chmod a+x {}\n", ways.join(" ")))
    }

    /// Folders that a guest needs.
    pub(crate) fn folders(&self) -> [PathBuf; 2] {
        [self.prefix.clone(), self.libraries.clone()]
    }
}

/// Whether an argument of `--rdma-core` is a name, not a folder.
pub(crate) fn is_name(argument: &Path) -> bool {
    argument == Path::new(NEWEST)
}

/// Whether a provider for Soft-RoCE is beside the libraries, as in a build, or below them, as in an installation.
fn has_provider(libraries: &Path) -> bool {
    let mut patterns = ["librxe-rdmav*.so", "libibverbs/librxe-rdmav*.so"].into_iter();
    patterns.any(|pattern| {
        let pattern = libraries.join(pattern);
        glob::glob(&pattern.to_string_lossy()).is_ok_and(|mut files| files.next().is_some())
    })
}

/// The release in the name of a library's file, `libibverbs.so.1.18.65.0`.
fn release(library: &Path) -> Result<String> {
    let file = library.canonicalize()?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let numbers: Vec<&str> = name.split('.').skip(4).collect();
    ensure!(
        !numbers.is_empty(),
        "{name} has no release of rdma-core in its name"
    );
    Ok(numbers.join("."))
}

/// The build from the source package of Debian unstable.
fn newest() -> Result<RdmaCore> {
    let cache = workspace::user_cache()
        .context("neither XDG_CACHE_HOME nor HOME names a folder for rdma-core")?;
    let home = cache.join(format!("rdma-core-{NEWEST}"));
    // Written last: a build stays in its folder, because the libraries contain the path.
    let finished = home.join("finished");
    if !finished.exists() {
        let _lock = kernel::lock(&cache)?;
        if !finished.exists() {
            build(&cache, &home).context("the newest rdma-core cannot be built")?;
            fs::write(&finished, "")?;
        }
    }
    RdmaCore::at(&home)
}

/// Downloads the source, and builds it in `home`.
fn build(cache: &Path, home: &Path) -> Result<()> {
    if !apt::is_available() {
        bail!("the source is a package of Debian: build rdma-core, and give its folder");
    }
    setup::ensure(&[Group::RdmaCore])?;
    eprintln!(
        "Building the newest rdma-core, once for all workspaces, in {}",
        home.display()
    );
    if home.exists() {
        fs::remove_dir_all(home)?;
    }
    let scratch = Scratch::inside(cache)?;
    let archive =
        Lists::newest(cache, architecture::native()?)?.fetch_source("rdma-core", scratch.path())?;
    fs::create_dir_all(home)?;
    process::run(
        Command::new("tar")
            .args(["--strip-components=1", "-xf"])
            .arg(&archive)
            .arg("-C")
            .arg(home),
    )?;
    let folder = home.join("build");
    fs::create_dir(&folder)?;
    // Errors are on standard error, and ninja's on standard output.
    process::run(
        Command::new("cmake")
            .args(["-GNinja", ".."])
            .args(SETTINGS)
            .current_dir(&folder)
            .stdout(Stdio::null()),
    )?;
    process::output(Command::new("ninja").current_dir(&folder)).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder with the files of a build whose libraries are in `layout`.
    fn build(layout: &str, provider: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let libraries = root.path().join(layout);
        fs::create_dir_all(libraries.join("libibverbs")).unwrap();
        fs::write(libraries.join("libibverbs.so.1.18.65.0"), "").unwrap();
        symlink("libibverbs.so.1.18.65.0", libraries.join("libibverbs.so.1")).unwrap();
        fs::write(libraries.join(provider), "").unwrap();
        root
    }

    #[test]
    fn builds_and_installations_are_found_with_their_programs() {
        for (layout, provider, programs) in [
            ("lib", "librxe-rdmav65.so", "bin"),
            ("build/lib", "librxe-rdmav65.so", "build/bin"),
            (
                "usr/lib/x86_64-linux-gnu",
                "libibverbs/librxe-rdmav65.so",
                "usr/bin",
            ),
        ] {
            let root = build(layout, provider);
            let folder = root.path().canonicalize().unwrap();
            let found = RdmaCore::at(root.path()).unwrap();
            assert_eq!(found.release(), "65.0");
            assert_eq!(found.programs(), folder.join(programs), "{layout}");
            let [(_, libraries), (_, pkgconfig)] = found.variables();
            assert_eq!(libraries, folder.join(layout));
            assert_eq!(pkgconfig, folder.join(layout).join("pkgconfig"));
            let reachable = found.make_reachable().unwrap();
            let ways: Vec<_> = reachable.split_whitespace().collect();
            assert_eq!(ways[..2], ["chmod", "a+x"]);
            for way in [folder.join(layout), folder.clone(), "/".into()] {
                assert!(ways.contains(&&*way.to_string_lossy()), "{reachable}");
            }
        }
    }

    #[test]
    fn folder_without_a_build_or_without_the_provider_is_refused() {
        let empty = tempfile::tempdir().unwrap();
        let error = RdmaCore::at(empty.path()).unwrap_err().to_string();
        assert!(error.contains("build/lib"), "{error}");
        let other = build("lib", "libmlx5-rdmav65.so");
        let error = RdmaCore::at(other.path()).unwrap_err().to_string();
        assert!(error.contains("providers/rxe"), "{error}");
        let absent = RdmaCore::find(&empty.path().join("absent")).unwrap_err();
        assert!(absent.to_string().contains("no rdma-core at"), "{absent}");
    }
}
