//! Finds a C library: by environment variables, else by pkg-config. Shared by the -sys crates.

use std::env;
use std::path::{Path, PathBuf};

/// A required library.
pub(crate) struct LibrarySpec {
    /// Linker name, without `lib`.
    pub name: &'static str,
    /// pkg-config name.
    pub package: &'static str,
    /// Minimum version, as in the `.pc` file of rdma-core 39.
    pub at_least: &'static str,
    /// Prefix of the overriding environment variables: `IBVERBS` in `IBVERBS_LIB_DIR`.
    pub prefix: &'static str,
    /// Debian package with the header files.
    pub debian: &'static str,
}

/// Include folders and version of a library.
#[derive(Default)]
pub(crate) struct Found {
    pub include: Vec<PathBuf>,
    /// Version as in the `.pc` file, `1.14.44.0`: ABI level, then rdma-core's version.
    pub version: Option<String>,
}

impl Found {
    /// Release of rdma-core: 44 in `1.14.44.0`. `None` for a vendor's version scheme.
    pub(crate) fn release(&self) -> Option<u32> {
        let release = self.version.as_deref()?.split('.').nth(2)?.parse().ok()?;
        (release < 1000).then_some(release)
    }
}

/// Finds `spec`, and with `link` prints instructions for the linker. The error message lists the packages to install.
pub(crate) fn find(spec: &LibrarySpec, link: bool) -> Result<Found, String> {
    let include = variable(spec, "INCLUDE_DIR");
    let lib = variable(spec, "LIB_DIR");
    let version = variable(spec, "VERSION");
    if include.is_none() && lib.is_none() {
        let library = pkg_config::Config::new()
            .atleast_version(spec.at_least)
            .cargo_metadata(link)
            .probe(spec.package)
            .map_err(|error| missing(spec, &error))?;
        return Ok(Found {
            include: library.include_paths,
            version: version.or(Some(library.version)),
        });
    }
    if let Some(lib) = lib.filter(|_| link) {
        println!("cargo::rustc-link-search=native={lib}");
    }
    if link {
        println!("cargo::rustc-link-lib={}", spec.name);
    }
    Ok(Found {
        include: include.map(PathBuf::from).into_iter().collect(),
        version,
    })
}

/// Whether the environment has a folder of headers, and none of the library.
pub(crate) fn has_headers_only(spec: &LibrarySpec) -> bool {
    variable(spec, "INCLUDE_DIR").is_some() && variable(spec, "LIB_DIR").is_none()
}

/// Lets cargo run the script again once a package adds a `.pc` file.
pub(crate) fn watch() {
    let target = env::var("TARGET").unwrap_or_default();
    let debian = format!("/usr/lib/{}", target.replace("-unknown", ""));
    let in_debian = format!("{debian}/pkgconfig");
    // Before the first development package, Debian has only the folder above.
    let in_debian = Some(in_debian).filter(|folder| Path::new(folder).exists());
    let folders = [
        in_debian.unwrap_or(debian),
        "/usr/lib64/pkgconfig".to_owned(),
        "/usr/lib/pkgconfig".to_owned(),
        "/usr/local/lib/pkgconfig".to_owned(),
    ];
    for folder in folders {
        // Cargo runs a script on every build if a path does not exist.
        if Path::new(&folder).exists() {
            println!("cargo::rerun-if-changed={folder}");
        }
    }
}

fn variable(spec: &LibrarySpec, suffix: &str) -> Option<String> {
    let name = format!("{}_{suffix}", spec.prefix);
    println!("cargo::rerun-if-env-changed={name}");
    env::var(name).ok()
}

fn missing(spec: &LibrarySpec, error: &pkg_config::Error) -> String {
    let LibrarySpec {
        name,
        package,
        prefix,
        debian,
        ..
    } = spec;
    format!(
        "{package} of rdma-core 39 or newer was not found. Install it with its header files:\n\
         \n    Debian, Ubuntu    apt install {debian} pkg-config\
         \n    Fedora, RHEL      dnf install rdma-core-devel pkgconf-pkg-config\
         \n    Arch              pacman -S rdma-core pkgconf\
         \n    SUSE              zypper install rdma-core-devel pkgconf-pkg-config\n\
         \nor set {prefix}_LIB_DIR and {prefix}_INCLUDE_DIR to the folders of lib{name}.so and of the \
         header files.\n\n{error}"
    )
}
