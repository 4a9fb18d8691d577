//! Names of the packages with the distribution's kernel and its modules.
//!
//! The names come from the package manager's lists: on Debian and Ubuntu they contain the kernel's release, and the other
//! distributions have split their kernels into different packages over time. `answers` has excerpts of the lists of several
//! distributions, for the tests.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::architecture;
use crate::distribution::{self, Ask, Manager};
use crate::kernel_name::KernelName;
use crate::package_lists::Lists;
use crate::siw;

#[cfg(test)]
mod tests;

/// Packages of a kernel of Fedora. Before Fedora 38, `kernel-core` has the files of `kernel-modules-core`.
const FEDORA: [&str; 4] = [
    "kernel-core",
    "kernel-modules-core",
    "kernel-modules",
    "kernel-modules-extra",
];

/// Kernels of Arch in order of preference, each a single package.
const ARCH: [&str; 2] = ["linux", "linux-lts"];

/// Packages of a kernel of openSUSE. Only Leap and SUSE Linux Enterprise have more than the first.
const SUSE: [&str; 3] = [
    "kernel-default",
    "kernel-default-extra",
    "kernel-default-optional",
];

/// The packages with the newest kernel, as arguments of the manager's download command.
///
/// # Errors
///
/// The package lists have no kernel, or `ask` fails.
pub(crate) fn named(manager: Manager, os_release: &str, ask: Ask<'_>) -> Result<Vec<String>> {
    match manager {
        Manager::Apt => of_debian(os_release, ask),
        Manager::Dnf => of_fedora(ask),
        Manager::Pacman => of_arch(ask),
        Manager::Zypper => of_suse(ask),
    }
}

/// Image, modules and headers of the Debian or Ubuntu kernel. The headers are included because a distribution removes all
/// packages of a release together, and a module may have to be built later.
fn of_debian(os_release: &str, ask: Ask<'_>) -> Result<Vec<String>> {
    let is_ubuntu = distribution::os_release_words(os_release)
        .iter()
        .any(|word| word == "ubuntu");
    let meta = if is_ubuntu {
        "linux-image-generic"
    } else {
        architecture::native()?.debian_kernel
    };
    if !distribution::apt_has(meta, ask) {
        return Err(unknown("apt", meta));
    }
    dependencies(meta, ask)
}

/// Package that depends on the kernel `name`, if the package lists of `ask` have it.
fn meta_package(name: &KernelName, ask: Ask<'_>) -> Option<String> {
    let newest = architecture::native().ok()?.debian_kernel;
    let KernelName::Series(series) = name else {
        return distribution::apt_has(newest, ask).then(|| newest.to_owned());
    };
    let of_series = newest.replacen("linux-image", &format!("linux-image-{series}"), 1);
    if distribution::apt_has(&of_series, ask) {
        return Some(of_series);
    }
    // The distribution's own series has a package without the number only.
    let version = distribution::apt_candidate(newest, ask).ok()?;
    name.matches(&version).then(|| newest.to_owned())
}

/// The package lists with the kernel `name`: the system's if possible, for a series.
///
/// # Errors
///
/// The package manager is not apt, or no lists have the kernel.
pub(crate) fn lists_with(manager: Manager, name: &KernelName, cache: &Path) -> Result<Lists> {
    ensure!(
        manager == Manager::Apt,
        "kernels by name are Debian's: give files with --kernel and --modules"
    );
    let system = Lists::System;
    if *name != KernelName::Newest && meta_package(name, &distribution::ask(&system)).is_some() {
        return Ok(system);
    }
    Lists::newest(cache)
}

/// The packages with the kernel `name`.
///
/// # Errors
///
/// The package lists do not have the kernel, or `ask` fails.
pub(crate) fn of_name(name: &KernelName, ask: Ask<'_>) -> Result<Vec<String>> {
    let meta = meta_package(name, ask).with_context(|| {
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
    let mut packages = distribution::apt_closure(meta, &prefixes, ask)?;
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

/// The packages of one version: a mirror in the middle of an update has packages of several.
fn of_fedora(ask: Ask<'_>) -> Result<Vec<String>> {
    let query = [
        "dnf",
        "--quiet",
        "repoquery",
        "--latest-limit=1",
        "--queryformat",
        r"%{name} %{version}-%{release}\n",
    ];
    let answer = ask(&[&query[..], &FEDORA].concat())
        .with_context(|| unknown("dnf", FEDORA[0]).to_string())?;
    let offered: Vec<(&str, &str)> = answer
        .lines()
        .filter_map(|line| line.trim().split_once(' '))
        .filter(|(name, _)| FEDORA.contains(name))
        .collect();
    let (_, newest) = offered
        .iter()
        .find(|(name, _)| *name == FEDORA[0])
        .ok_or_else(|| unknown("dnf", FEDORA[0]))?;
    let packages = offered.iter().filter(|(_, version)| version == newest);
    Ok(packages
        .map(|(name, version)| format!("{name}-{version}"))
        .collect())
}

fn of_arch(ask: Ask<'_>) -> Result<Vec<String>> {
    let is_offered = |package: &&str| {
        // pacman fails for an unknown package.
        let answer = ask(&["pacman", "-Si", package]).unwrap_or_default();
        let names = answer
            .lines()
            .filter_map(|line| line.split_once(':'))
            .filter(|(field, _)| field.trim() == "Name");
        names.into_iter().any(|(_, name)| name.trim() == *package)
    };
    let package = ARCH.into_iter().find(is_offered);
    let package = package.ok_or_else(|| unknown("pacman", &ARCH.join(" or ")))?;
    Ok(vec![package.to_owned()])
}

fn of_suse(ask: Ask<'_>) -> Result<Vec<String>> {
    let search = [
        "zypper",
        "--non-interactive",
        "--quiet",
        "search",
        "--match-exact",
        "--type",
        "package",
    ];
    // zypper fails if it finds none of the packages.
    let answer = ask(&[&search[..], &SUSE].concat())
        .with_context(|| unknown("zypper", SUSE[0]).to_string())?;
    let offered: BTreeSet<&str> = answer
        .lines()
        .filter_map(|line| line.split('|').nth(1))
        .map(str::trim)
        .collect();
    if !offered.contains(SUSE[0]) {
        return Err(unknown("zypper", SUSE[0]));
    }
    let packages = SUSE.into_iter().filter(|package| offered.contains(package));
    Ok(packages.map(str::to_owned).collect())
}

fn unknown(manager: &str, package: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "{manager} knows no package {package}: give a kernel with --kernel and --modules"
    )
}
