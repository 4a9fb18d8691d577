//! `cargo soft-roce setup`: required system packages, and their installation.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

use crate::boot::apt;
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
    /// Building pyverbs, with [`RdmaCore`](Self::RdmaCore).
    Pyverbs,
    /// Benchmarks.
    Bench,
    /// Building and running programs for ARM64.
    Arm64,
    /// Guests of ARM64 on another host.
    Arm64Guests,
    /// Additional programs run over RDMA by `test --long`.
    Programs,
}

impl Group {
    /// The groups installed by `setup`: all except [`RdmaCore`](Self::RdmaCore), [`Pyverbs`](Self::Pyverbs) and
    /// [`Arm64Guests`](Self::Arm64Guests), for one option each, and [`Programs`](Self::Programs), whose packages start servers.
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
            Self::Qemu if cfg!(target_arch = "aarch64") => "qemu-arm64",
            Self::Qemu => "qemu",
            Self::Uml => "uml",
            Self::Tools => "tools",
            Self::Build => "build",
            Self::Siw => "siw",
            Self::RdmaCore => "rdma-core",
            Self::Pyverbs => "pyverbs",
            Self::Bench => "bench",
            Self::Arm64 => "arm64",
            Self::Arm64Guests => "arm64-guests",
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
/// A package is missing.
pub fn check(groups: &[Group]) -> Result<()> {
    let entries = entries(groups);
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
/// A package cannot be installed, or is missing on a machine without apt.
pub fn ensure(groups: &[Group]) -> Result<()> {
    // With everything installed, only a few files are looked up.
    if !apt::is_available() {
        return without_apt(groups);
    }
    let entries = entries(groups);
    let absent = missing(&entries);
    if absent.is_empty() {
        return Ok(());
    }
    eprintln!("Not installed yet: {}", absent.join(" "));
    apt::install(&absent)?;
    let still: Vec<&str> = entries
        .iter()
        .filter(|e| !is_there(e.probe))
        .map(|e| e.probe)
        .collect();
    if !still.is_empty() {
        bail!(
            "{} was installed, yet these are missing: {}",
            absent.join(" "),
            still.join(" ")
        );
    }
    Ok(())
}

/// The packages of `group` that are missing, or the files on a machine without apt.
pub(crate) fn absent(group: Group) -> Vec<&'static str> {
    let has_apt = apt::is_available();
    let entries = entries(&[group]).into_iter();
    let absent = entries.filter(|entry| !is_there(entry.probe));
    let mut names: Vec<&str> = absent
        .map(|entry| if has_apt { entry.package } else { entry.probe })
        .collect();
    names.dedup();
    names
}

fn without_apt(groups: &[Group]) -> Result<()> {
    let entries = entries(groups);
    let absent: Vec<&str> = entries
        .iter()
        .map(|entry| entry.probe)
        .filter(|probe| !is_there(probe))
        .collect();
    if absent.is_empty() {
        return Ok(());
    }
    bail!(
        "not installed: {}\napt-get is not on PATH, so install them by hand; on Debian they come with the packages {}",
        absent.join(" "),
        missing(&entries).join(" "),
    )
}

/// The packages of some groups.
fn entries(groups: &[Group]) -> Vec<Entry<'static>> {
    let is_in = |entry: &Entry<'_>| groups.iter().any(|group| group.name() == entry.group);
    apt::PACKAGES
        .lines()
        .filter_map(parse)
        .filter(is_in)
        .collect()
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
    fn package_list_parses_and_covers_every_group() {
        assert!(apt::PACKAGES.lines().all(|line| parse(line).is_some()));
        let others = [
            Group::RdmaCore,
            Group::Pyverbs,
            Group::Arm64Guests,
            Group::Programs,
        ];
        for group in Group::ALL.iter().chain(&others) {
            assert!(!entries(&[*group]).is_empty(), "{group:?}");
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
