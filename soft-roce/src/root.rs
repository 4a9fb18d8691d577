//! Root file system of the guests: the host's, or a folder with programs of another release or architecture.
//!
//! From another root, guests see the host's files by the paths that they [show](crate::shown).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::FileHeader;

use crate::architecture::{self, Architecture};
use crate::process;

/// Root file system of the guests.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    pub(crate) folder: PathBuf,
    /// A program linked statically, for the initramfs.
    pub(crate) busybox: PathBuf,
    /// Of the programs.
    pub(crate) architecture: &'static Architecture,
}

impl Root {
    /// The host's root.
    ///
    /// # Errors
    ///
    /// There are no guests for the host's architecture, or busybox is missing.
    pub(crate) fn of_host() -> Result<Self> {
        let architecture = architecture::native()?;
        let names = ["busybox", "busybox-static"];
        let busybox = names.iter().find_map(|name| process::find_program(name));
        Ok(Self {
            folder: "/".into(),
            busybox: busybox.context("busybox is not on PATH")?,
            architecture,
        })
    }

    /// The root in `folder`, with the architecture of its busybox.
    ///
    /// # Errors
    ///
    /// The folder has no busybox, or there are no guests for its architecture.
    pub(crate) fn at(folder: &Path) -> Result<Self> {
        let folder = folder
            .canonicalize()
            .with_context(|| format!("--root {}: cannot find it", folder.display()))?;
        let mut found = ["bin/busybox", "usr/bin/busybox"]
            .map(|name| folder.join(name))
            .into_iter();
        let busybox = found.find(|file| file.is_file()).with_context(|| {
            format!(
                "--root {}: it has no bin/busybox; install the package busybox-static there",
                folder.display()
            )
        })?;
        let image = fs::read(&busybox)?;
        let header = FileHeader64::<Endianness>::parse(&*image);
        let machine = header.and_then(|header| Ok(header.e_machine(header.endian()?)));
        let architecture = machine
            .ok()
            .and_then(Architecture::of_elf)
            .with_context(|| {
                format!(
                    "--root {}: guests are x86-64 or ARM64, and {} is neither",
                    folder.display(),
                    busybox.display()
                )
            })?;
        Ok(Self {
            folder,
            busybox,
            architecture,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::architecture::AARCH64;

    #[test]
    fn root_has_the_architecture_of_its_busybox() {
        let folder = tempfile::tempdir().unwrap();
        let refused = || Root::at(folder.path()).unwrap_err().to_string();
        assert!(refused().contains("busybox-static"), "{}", refused());
        let busybox = folder.path().join("bin/busybox");
        fs::create_dir(folder.path().join("bin")).unwrap();
        fs::write(&busybox, "#!/bin/sh").unwrap();
        assert!(refused().contains("neither"), "{}", refused());
        // A header: class 64, little-endian, version 1; type 2, the machine, version 1.
        let mut header = [0; 64];
        header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        header[16..24].copy_from_slice(&[2, 0, 183, 0, 1, 0, 0, 0]);
        fs::write(&busybox, header).unwrap();
        let root = Root::at(folder.path()).unwrap();
        assert_eq!(root.architecture, &AARCH64);
        assert_eq!(root.busybox, busybox.canonicalize().unwrap());
        assert!(Root::at(&folder.path().join("none")).is_err());
    }
}
