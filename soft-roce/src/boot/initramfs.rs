//! The guest's initramfs: busybox, the kernel modules, and the two scripts of `guest`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cpio::newc;

use crate::boot::cache;
use crate::boot::kernel::Kernel;
use crate::boot::modules::{Module, ModuleTree};

const INIT: &str = include_str!("../../guest/init");
const AGENT: &str = include_str!("../../guest/agent");

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;

/// Soft-RoCE, in both kinds of kernels. The checksum modules of this group and of [`SIW`] are requested by name at run
/// time and appear in no dependency list: see [`OPTIONAL`].
const RXE: Group = (
    "rxe",
    &["crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm"],
    Presence::Needed,
);
/// Modules of Soft-iWARP, in both kinds of kernels.
const SIW: [&str; 5] = [
    "crc32c_generic",
    "libcrc32c",
    "siw",
    "ib_uverbs",
    "rdma_ucm",
];
/// The kernel's RDS, in both kinds of kernels.
const RDS: Group = ("rds", &["rds", "rds_rdma"], Presence::IfThere);

/// Module groups of a distribution's kernel, in load order; the guest's scripts refer to the groups by name.
pub(crate) const QEMU: &[Group] = &[
    ("first", &["virtio_pci", "virtio_console"], Presence::Needed),
    (
        "mount",
        &["9pnet_virtio", "9p", "overlay"],
        Presence::Needed,
    ),
    (
        "network",
        &["virtio_net", "dummy", "veth"],
        Presence::Needed,
    ),
    RXE,
    ("siw", &SIW, Presence::IfThere),
    RDS,
];

/// Modules absent from newer kernels: the checksums are built in since Linux 6.16.
pub(crate) const OPTIONAL: [&str; 3] = ["crc32_generic", "crc32c_generic", "libcrc32c"];

/// Name, modules and presence of a module group.
type Group = (&'static str, &'static [&'static str], Presence);

/// Module groups of a User-Mode Linux kernel. The RDMA core is modular there too: the load order of its clients decides
/// the order of their device-removal callbacks.
pub(crate) const UML: &[Group] = &[
    ("first", &[], Presence::Needed),
    ("mount", &[], Presence::Needed),
    ("network", &[], Presence::Needed),
    RXE,
    ("siw", &SIW, Presence::Needed),
    RDS,
];

/// Whether a kernel without a group's modules is usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Needed,
    IfThere,
}

/// Returns the initramfs for `kernel`, built in `folder` unless cached.
pub(crate) fn ensure(
    folder: &Path,
    kernel: &Kernel,
    busybox: &Path,
    groups: &[Group],
) -> Result<PathBuf> {
    let siw = kernel.siw.as_deref().map(cache::identity).transpose()?;
    let files = (
        cache::identity(&kernel.image)?,
        siw,
        cache::identity(busybox)?,
        &kernel.modules,
    );
    let names: Vec<_> = groups
        .iter()
        .map(|(name, modules, _)| (name, modules))
        .collect();
    cache::ensure(folder, "initramfs", (files, INIT, AGENT, names), || {
        build(kernel, busybox, groups)
    })
}

fn build(kernel: &Kernel, busybox: &Path, groups: &[Group]) -> Result<Vec<u8>> {
    let mut tree = ModuleTree::scan(&kernel.modules)?;
    if let Some(siw) = &kernel.siw {
        tree.insert(siw);
    }
    let mut archive = Archive::default();
    for folder in ["bin", "modules"] {
        archive.add(folder, DIRECTORY, &[])?;
    }
    let busybox =
        fs::read(busybox).with_context(|| format!("cannot read {}", busybox.display()))?;
    archive.add("bin/busybox", PROGRAM, &busybox)?;
    archive.add("init", PROGRAM, INIT.as_bytes())?;
    archive.add("agent", FILE, AGENT.as_bytes())?;

    let mut packed: Vec<String> = Vec::new();
    for (group, names, presence) in groups {
        let names = present(names, |name| tree.has(name));
        let are_present = names.iter().all(|name| tree.has(name));
        let modules = if are_present || *presence == Presence::Needed {
            tree.load_order(&names)?
        } else {
            Vec::new()
        };
        archive.add(
            &format!("modules/order.{group}"),
            FILE,
            order_file(&modules).as_bytes(),
        )?;
        for module in modules {
            if !packed.contains(&module.name) {
                archive.add(&format!("modules/{}.ko", module.name), FILE, &module.image)?;
                packed.push(module.name);
            }
        }
    }
    archive.finish().context("cannot pack the initramfs")
}

/// The modules of a group, without optional modules absent from the kernel.
fn present<'a>(names: &[&'a str], has: impl Fn(&str) -> bool) -> Vec<&'a str> {
    let names = names.iter().copied();
    names
        .filter(|name| has(name) || !OPTIONAL.contains(name))
        .collect()
}

fn order_file(modules: &[Module]) -> String {
    modules
        .iter()
        .map(|module| format!("{0} {0}.ko\n", module.name))
        .collect()
}

/// A cpio archive in the kernel's initramfs format.
#[derive(Debug, Default)]
struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, contents: &[u8]) -> io::Result<()> {
        self.inode += 1;
        let length = u32::try_from(contents.len()).map_err(io::Error::other)?;
        let entry = newc::Builder::new(name).ino(self.inode).mode(mode).nlink(1);
        let mut writer = entry.write(&mut self.bytes, length);
        writer.write_all(contents)?;
        writer.finish()?;
        Ok(())
    }

    fn finish(mut self) -> io::Result<Vec<u8>> {
        newc::trailer(&mut self.bytes)?;
        Ok(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::PORTS;

    #[test]
    fn archive_entries_read_back_unchanged() {
        let mut archive = Archive::default();
        archive.add("bin", DIRECTORY, &[]).unwrap();
        archive.add("bin/tool", PROGRAM, b"#!x").unwrap();
        let bytes = archive.finish().unwrap();

        let reader = newc::Reader::new(bytes.as_slice()).unwrap();
        assert_eq!(
            (reader.entry().name(), reader.entry().mode()),
            ("bin", DIRECTORY)
        );
        let rest = reader.finish().unwrap();
        let mut reader = newc::Reader::new(rest).unwrap();
        assert_eq!(
            (reader.entry().name(), reader.entry().mode()),
            ("bin/tool", PROGRAM)
        );
        let mut contents = String::new();
        io::Read::read_to_string(&mut reader, &mut contents).unwrap();
        assert_eq!(contents, "#!x");
    }

    #[test]
    fn present_leaves_out_only_optional_modules() {
        let rxe = ["crc32_generic", "rdma_rxe"];
        assert_eq!(present(&rxe, |_| true), rxe);
        assert_eq!(present(&rxe, |_| false), ["rdma_rxe"]);
    }

    #[test]
    fn init_script_lists_the_same_ports() {
        let ports = format!("\nports=\"{}\"\n", PORTS.join(" "));
        assert!(INIT.contains(&ports), "{ports}");
    }

    #[test]
    fn archive_finish_appends_the_trailer() {
        let bytes = Archive::default().finish().unwrap();
        assert!(bytes.windows(10).any(|window| window == b"TRAILER!!!"));
    }
}
