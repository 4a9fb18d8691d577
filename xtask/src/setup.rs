//! `cargo xtask setup`: required system packages, and their installation.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

use crate::distribution::Manager;
use crate::process;

/// A group of packages; first column of the lists in `ci/packages`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
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
    /// Benchmarks.
    Bench,
    /// Additional programs run over RDMA by `test --long`.
    Programs,
}

impl Group {
    /// The groups installed by `setup`: all except [`Programs`](Self::Programs), whose packages start servers.
    pub(crate) const ALL: &[Self] = &[
        Self::Guest,
        Self::Qemu,
        Self::Uml,
        Self::Tools,
        Self::Build,
        Self::Siw,
        Self::Bench,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Qemu => "qemu",
            Self::Uml => "uml",
            Self::Tools => "tools",
            Self::Build => "build",
            Self::Siw => "siw",
            Self::Bench => "bench",
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

/// Prints the state of each package. An error if a package is missing.
pub(crate) fn check() -> Result<()> {
    let entries = entries(Group::ALL, list()?);
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
            "missing: {}\n`cargo xtask setup` installs these packages",
            missing.join(" ")
        );
    }
    println!("everything is there");
    Ok(())
}

/// Installs the missing packages of `groups`, after printing their names.
pub(crate) fn ensure(groups: &[Group]) -> Result<()> {
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

fn list() -> Result<&'static str> {
    match Manager::detect() {
        Some(manager) => Ok(manager.package_list()),
        None => bail!(
            "none of apt-get, dnf, pacman and zypper is on PATH: see ci/packages for what is needed"
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
            for group in Group::ALL.iter().chain(&[Group::Programs]) {
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
}
