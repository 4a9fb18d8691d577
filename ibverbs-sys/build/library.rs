//! Finds a C library: the environment first, then pkg-config. Shared by both -sys crates.

use std::env;
use std::path::PathBuf;

/// A library the crate links against.
pub(crate) struct Wanted {
    /// Its name for the linker, without `lib`.
    pub name: &'static str,
    /// Its name for pkg-config.
    pub package: &'static str,
    /// The oldest version, as its `.pc` file counts: that of rdma-core 39.
    pub at_least: &'static str,
    /// The variables that replace pkg-config start with this: `IBVERBS_LIB_DIR`.
    pub prefix: &'static str,
    /// The Debian package with its header files.
    pub debian: &'static str,
}

/// Where the library's header files are, and its version.
#[derive(Default)]
pub(crate) struct Found {
    pub include: Vec<PathBuf>,
    /// As the `.pc` file has it, `1.14.44.0`: the ABI level, then rdma-core's version.
    pub version: Option<String>,
}

impl Found {
    /// rdma-core's release, 44 in `1.14.44.0`; vendors put other things there.
    pub(crate) fn release(&self) -> Option<u32> {
        let release = self.version.as_deref()?.split('.').nth(2)?.parse().ok()?;
        (release < 1000).then_some(release)
    }
}

/// Prints the linker's instructions for `wanted`. `Err` is a text that says what to install.
pub(crate) fn find(wanted: &Wanted) -> Result<Found, String> {
    let include = variable(wanted, "INCLUDE_DIR");
    let lib = variable(wanted, "LIB_DIR");
    let version = variable(wanted, "VERSION");
    if include.is_none() && lib.is_none() {
        let library = pkg_config::Config::new()
            .atleast_version(wanted.at_least)
            .probe(wanted.package)
            .map_err(|error| missing(wanted, &error))?;
        return Ok(Found {
            include: library.include_paths,
            version: version.or(Some(library.version)),
        });
    }
    if let Some(lib) = lib {
        println!("cargo::rustc-link-search=native={lib}");
    }
    println!("cargo::rustc-link-lib={}", wanted.name);
    Ok(Found {
        include: include.map(PathBuf::from).into_iter().collect(),
        version,
    })
}

fn variable(wanted: &Wanted, suffix: &str) -> Option<String> {
    let name = format!("{}_{suffix}", wanted.prefix);
    println!("cargo::rerun-if-env-changed={name}");
    env::var(name).ok()
}

fn missing(wanted: &Wanted, error: &pkg_config::Error) -> String {
    let Wanted {
        name,
        package,
        prefix,
        debian,
        ..
    } = wanted;
    format!(
        "{package} of rdma-core 39 or newer was not found. Install it with its header files:\n\
         \n    Debian, Ubuntu    apt install {debian} pkg-config\
         \n    Fedora, RHEL      dnf install rdma-core-devel pkgconf-pkg-config\
         \n    Arch              pacman -S rdma-core pkgconf\
         \n    SUSE              zypper install rdma-core-devel pkgconf-pkg-config\n\
         \nor say where lib{name}.so and the header files are with {prefix}_LIB_DIR and \
         {prefix}_INCLUDE_DIR.\n\n{error}"
    )
}
