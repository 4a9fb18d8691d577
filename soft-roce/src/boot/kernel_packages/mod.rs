//! Names of the packages with the distribution's kernel and its modules.
//!
//! The names come from apt's lists: they contain the kernel's release. `answers` has excerpts of the lists of two distributions, for
//! the tests.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::architecture::Architecture;
use crate::boot::apt::{self, Ask};
use crate::boot::kernel_name::KernelName;
use crate::boot::package_lists::Lists;
use crate::boot::siw;

#[cfg(test)]
mod tests;

/// The packages with the image, the modules and the headers of the newest kernel, as arguments of apt's download command. The
/// headers are included because a distribution removes all packages of a release together, and a module may have to be built
/// later.
///
/// # Errors
///
/// The package lists have no kernel, or `ask` fails.
pub(crate) fn named(
    os_release: &str,
    architecture: &Architecture,
    ask: Ask<'_>,
) -> Result<Vec<String>> {
    let is_ubuntu = apt::os_release_words(os_release)
        .iter()
        .any(|word| word == "ubuntu");
    let meta = if is_ubuntu {
        "linux-image-generic".to_owned()
    } else {
        architecture.debian_kernel()
    };
    if !apt::has(&meta, ask) {
        bail!("apt knows no package {meta}: give a kernel with --kernel and --modules");
    }
    dependencies(&meta, ask)
}

/// Package that depends on the kernel `name`, if the package lists of `ask` have it.
fn meta_package(name: &KernelName, architecture: &Architecture, ask: Ask<'_>) -> Option<String> {
    let newest = architecture.debian_kernel();
    let KernelName::Series(series) = name else {
        return apt::has(&newest, ask).then_some(newest);
    };
    let of_series = newest.replacen("linux-image", &format!("linux-image-{series}"), 1);
    if apt::has(&of_series, ask) {
        return Some(of_series);
    }
    // The distribution's own series has a package without the number only.
    let version = apt::candidate(&newest, ask).ok()?;
    name.matches(&version).then_some(newest)
}

/// The package lists with the kernel `name` for `architecture`: the system's if possible, for a series.
///
/// # Errors
///
/// No lists have the kernel.
pub(crate) fn lists_with(
    name: &KernelName,
    architecture: &Architecture,
    cache: &Path,
) -> Result<Lists> {
    let system = Lists::of_system(cache, architecture)?;
    if *name != KernelName::Newest && meta_package(name, architecture, &apt::ask(&system)).is_some()
    {
        return Ok(system);
    }
    Lists::newest(cache, architecture)
}

/// The packages with the kernel `name`.
///
/// # Errors
///
/// The package lists do not have the kernel, or `ask` fails.
pub(crate) fn of_name(
    name: &KernelName,
    architecture: &Architecture,
    ask: Ask<'_>,
) -> Result<Vec<String>> {
    let meta = meta_package(name, architecture, ask).with_context(|| {
        format!("neither the system's package lists nor Debian unstable have a kernel {name}")
    })?;
    dependencies(&meta, ask)
}

/// The packages of the kernel that the package `meta` depends on.
fn dependencies(meta: &str, ask: Ask<'_>) -> Result<Vec<String>> {
    let prefixes = [
        "linux-image-",
        "linux-binary-",
        "linux-modules-",
        // Contains `modules.builtin` of Debian's kernels since 7.0.
        "linux-base-",
    ];
    let mut packages = apt::closure(meta, &prefixes, ask)?;
    if packages.is_empty() {
        bail!("the package {meta} names no kernel");
    }
    let releases: BTreeSet<String> = packages
        .iter()
        .filter_map(|package| package.strip_prefix("linux-image-"))
        .map(|release| release.trim_end_matches("-unsigned").to_owned())
        .collect();
    for release in releases {
        packages.extend(siw::header_packages(&release, ask).unwrap_or_default());
    }
    Ok(packages.into_iter().collect())
}
