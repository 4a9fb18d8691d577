//! `cargo soft-roce setup`: required system packages, and their installation.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

use crate::distribution::Manager;
use crate::process;

/// A group of packages; first column of the lists in `packages`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Setting up a guest's RDMA device.
    Guest,
    /// Running guests in QEMU.
    Qemu,
    /// Building the User-Mode Linux kernel.
    Uml,
    /// Reference programs for tests in a guest.
    Tools,
    /// Building the workspace.
    Build,
    /// Building the `siw` kernel module.
    Siw,
    /// Building rdma-core.
    RdmaCore,
    /// Benchmarks.
    Bench,
    /// Building and running programs for ARM64.
    Arm64,
    /// Additional programs run over RDMA by `test --long`.
    Programs,
}

impl Group {
    /// The groups installed by `setup`: all except [`RdmaCore`](Self::RdmaCore), for `--rdma-core` only, and
    /// [`Programs`](Self::Programs), whose packages start servers.
    pub const ALL: &[Self] = &[
        Self::Guest,
        Self::Qemu,
        Self::Uml,
        Self::Tools,
        Self::Build,
        Self::Siw,
        Self::Bench,
        Self::Arm64,
    ];

    /// The groups of guests, installed by `cargo soft-roce setup`.
    pub const OF_GUESTS: &[Self] = &[Self::Guest, Self::Qemu, Self::Uml, Self::Siw];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Qemu => "qemu",
            Self::Uml => "uml",
            Self::Tools => "tools",
            Self::Build => "build",
            Self::Siw => "siw",
            Self::RdmaCore => "rdma-core",
            Self::Bench => "bench",
            Self::Arm64 => "arm64",
            Self::Programs => "programs",
        }
    }
}

/// A line of a package list.
#[derive(Debug, PartialEq, Eq)]
struct Entry<'a> {
    group: &'a str,
    package: &'a str,
    probe: &'a str,
}

/// Prints the state of each package of `groups`. An error if a package is missing.
///
/// # Errors
///
/// A package is missing, or the package manager is unknown.
pub fn check(groups: &[Group]) -> Result<()> {
    let entries = entries(groups, list()?);
    for entry in &entries {
        let state = if is_there(entry.probe) {
            "ok"
        } else {
            "missing"
        };
        println!(
            "{state:8} {:8} {} ({})",
            entry.group, entry.package, entry.probe
        );
    }
    let missing = missing(&entries);
    if !missing.is_empty() {
        bail!(
            "missing: {}\nThe command without --check installs these packages",
            missing.join(" ")
        );
    }
    println!("everything is there");
    Ok(())
}

/// Installs the missing packages of `groups`, after printing their names.
///
/// # Errors
///
/// A package cannot be installed, or the package manager is unknown.
pub fn ensure(groups: &[Group]) -> Result<()> {
    // With everything installed, only a few files are looked up.
    let Some(manager) = Manager::detect() else {
        return without_manager(groups);
    };
    let entries = entries(groups, manager.package_list());
    let absent = missing(&entries);
    if absent.is_empty() {
        return Ok(());
    }
    if let Some(entry) = entries
        .iter()
        .find(|entry| entry.package == "-" && !is_there(entry.probe))
    {
        eprintln!(
            "note: {} has no package with {}; commands that use it will fail",
            manager.program(),
            entry.probe
        );
    }
    let packages: Vec<&str> = absent
        .into_iter()
        .filter(|package| *package != "-")
        .collect();
    if packages.is_empty() {
        return Ok(());
    }
    eprintln!("Not installed yet: {}", packages.join(" "));
    manager.install(&packages)?;
    let still: Vec<&str> = entries
        .iter()
        .filter(|e| e.package != "-" && !is_there(e.probe))
        .map(|e| e.probe)
        .collect();
    if !still.is_empty() {
        bail!(
            "{} was installed, yet these are missing: {}",
            packages.join(" "),
            still.join(" ")
        );
    }
    Ok(())
}

/// The packages of `group` that are missing, or the files if no package is known.
pub(crate) fn absent(group: Group) -> Vec<&'static str> {
    let manager = Manager::detect();
    let list = manager.unwrap_or(Manager::Apt).package_list();
    let entries = entries(&[group], list).into_iter();
    let absent = entries.filter(|entry| !is_there(entry.probe));
    let mut names: Vec<&str> = absent
        .map(|entry| {
            let has_package = manager.is_some() && entry.package != "-";
            if has_package {
                entry.package
            } else {
                entry.probe
            }
        })
        .collect();
    names.dedup();
    names
}

fn list() -> Result<&'static str> {
    match Manager::detect() {
        Some(manager) => Ok(manager.package_list()),
        None => bail!(
            "none of apt-get, dnf, pacman and zypper is on PATH: see the package lists of cargo-soft-roce"
        ),
    }
}

fn without_manager(groups: &[Group]) -> Result<()> {
    let entries = entries(groups, Manager::Apt.package_list());
    let absent: Vec<&str> = entries
        .iter()
        .map(|entry| entry.probe)
        .filter(|probe| !is_there(probe))
        .collect();
    if absent.is_empty() {
        return Ok(());
    }
    bail!(
        "not installed: {}\nNone of apt-get, dnf, pacman and zypper is on PATH, so install them by hand; \
         on Debian they come with the packages {}",
        absent.join(" "),
        missing(&entries).join(" "),
    )
}

fn entries<'a>(groups: &[Group], list: &'a str) -> Vec<Entry<'a>> {
    let wanted = |entry: &Entry<'_>| groups.iter().any(|group| group.name() == entry.group);
    list.lines().filter_map(parse).filter(wanted).collect()
}

fn parse(line: &str) -> Option<Entry<'_>> {
    let mut words = line.split_whitespace();
    let (group, package, probe) = (words.next()?, words.next()?, words.next()?);
    (!group.starts_with('#')).then_some(Entry {
        group,
        package,
        probe,
    })
}

/// The packages of the unsatisfied entries, without duplicates.
fn missing<'a>(entries: &[Entry<'a>]) -> Vec<&'a str> {
    let absent: BTreeSet<&str> = entries
        .iter()
        .filter(|e| !is_there(e.probe))
        .map(|e| e.package)
        .collect();
    absent.into_iter().collect()
}

fn is_there(probe: &str) -> bool {
    if !probe.contains('/') {
        return process::find_program(probe).is_some();
    }
    glob::glob(probe).is_ok_and(|mut files| files.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_list_of_each_manager_parses_and_covers_every_group() {
        for manager in [Manager::Apt, Manager::Dnf, Manager::Pacman, Manager::Zypper] {
            let list = manager.package_list();
            assert!(
                list.lines().all(|line| parse(line).is_some()),
                "{manager:?}"
            );
            for group in Group::ALL.iter().chain(&[Group::RdmaCore, Group::Programs]) {
                assert!(
                    !entries(&[*group], list).is_empty(),
                    "{manager:?} {group:?}"
                );
            }
        }
    }

    #[test]
    fn probe_with_slash_is_a_file_pattern() {
        assert!(is_there("/etc/os-*"));
        assert!(!is_there("/etc/no-such-file-*"));
    }

    #[test]
    fn probe_without_slash_is_a_program() {
        assert!(is_there("sh"));
        assert!(!is_there("no-such-program-anywhere"));
    }

    #[test]
    fn files_of_rdma_core_are_found_in_the_packages_that_have_them() {
        // The packages are those of rdma-core's own files for building them.
        for (manager, package, file) in [
            (
                Manager::Apt,
                "ibverbs-providers",
                "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so",
            ),
            (
                Manager::Dnf,
                "libibverbs",
                "/usr/lib64/libibverbs/librxe-rdmav34.so",
            ),
            (
                Manager::Pacman,
                "rdma-core",
                "/usr/lib/libibverbs/librxe-rdmav34.so",
            ),
            (
                Manager::Zypper,
                "libibverbs",
                "/usr/lib64/libibverbs/librxe-rdmav34.so",
            ),
            (Manager::Dnf, "libibverbs-utils", "ibv_devinfo"),
            (Manager::Zypper, "libibverbs-utils", "ibv_devinfo"),
            (Manager::Dnf, "librdmacm-utils", "rping"),
            (Manager::Zypper, "librdmacm-utils", "rping"),
            (
                Manager::Dnf,
                "rdma-core-devel",
                "/usr/include/infiniband/verbs.h",
            ),
            (
                Manager::Zypper,
                "rdma-core-devel",
                "/usr/include/rdma/rdma_cma.h",
            ),
        ] {
            let entries = manager.package_list().lines().filter_map(parse);
            let finds = |probe: &str| glob::Pattern::new(probe).unwrap().matches(file);
            let found: Vec<&str> = entries
                .filter(|entry| finds(entry.probe))
                .map(|entry| entry.package)
                .collect();
            assert_eq!(found, [package], "{manager:?} {file}");
        }
    }
}
