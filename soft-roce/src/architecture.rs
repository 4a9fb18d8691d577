//! Processor architecture of QEMU's guests: the emulator, its machine, and the names of the distributions' kernels.
//!
//! A guest has the architecture of the programs in its [root](crate::root): the host's, unless a folder was given. A port adds an
//! [`Architecture`] here, and its packages to `packages`. On other hosts everything but guests works.

use std::env::consts::ARCH;

use anyhow::{Result, bail};
use object::elf::{EM_AARCH64, EM_X86_64};

/// Needs of QEMU and of the distributions for guests of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Architecture {
    /// Name in [`ARCH`].
    name: &'static str,
    /// Machine in the header of ELF files.
    elf: u16,
    /// QEMU's program.
    pub(crate) qemu: &'static str,
    /// Argument of `-machine`.
    pub(crate) machine: &'static str,
    /// Argument of `-cpu` under emulation.
    pub(crate) emulated_cpu: &'static str,
    /// Kernel parameters for the console, and for a shorter boot of this machine.
    pub(crate) kernel_parameters: &'static str,
    /// Name in Debian.
    pub(crate) debian: &'static str,
}

/// x86-64 hosts.
pub(crate) const X86_64: Architecture = Architecture {
    name: "x86_64",
    elf: EM_X86_64,
    qemu: "qemu-system-x86_64",
    machine: "q35",
    // Emulation has no `-cpu host`. Five-level page tables only slow it down.
    emulated_cpu: "max,la57=off",
    kernel_parameters: "console=ttyS0 mitigations=off 8250.nr_uarts=1 no_timer_check",
    debian: "amd64",
};

/// ARM64 hosts.
pub(crate) const AARCH64: Architecture = Architecture {
    name: "aarch64",
    elf: EM_AARCH64,
    qemu: "qemu-system-aarch64",
    // The newest interrupt controller that the host has; under emulation, QEMU's newest.
    machine: "virt,gic-version=max",
    // The architected signatures of pointers take half of the emulation's time.
    emulated_cpu: "max,pauth-impdef=on",
    kernel_parameters: "console=ttyAMA0 mitigations=off",
    debian: "arm64",
};

impl Architecture {
    /// Whether this host runs programs of the architecture.
    pub(crate) fn is_native(&self) -> bool {
        self.name == ARCH
    }

    /// Package of Debian that depends on the newest kernel.
    pub(crate) fn debian_kernel(&self) -> String {
        format!("linux-image-{}", self.debian)
    }

    /// The architecture of an ELF file with this machine in its header.
    pub(crate) fn of_elf(machine: u16) -> Option<&'static Self> {
        [&X86_64, &AARCH64]
            .into_iter()
            .find(|one| one.elf == machine)
    }
}

/// The architecture of this host and its guests.
///
/// # Errors
///
/// There are no guests for the host's architecture.
pub(crate) fn native() -> Result<&'static Architecture> {
    of(ARCH)
}

fn of(name: &str) -> Result<&'static Architecture> {
    match name {
        "x86_64" => Ok(&X86_64),
        "aarch64" => Ok(&AARCH64),
        _ => bail!(
            "guests need an x86-64 or ARM64 host, and this host is {name}: `cargo test` runs the tests that need no guest, on \
             devices of softnic"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_without_guests_is_named_in_the_error() {
        for one in [&X86_64, &AARCH64] {
            assert_eq!(of(one.name).unwrap(), one);
            assert_eq!(Architecture::of_elf(one.elf), Some(one));
        }
        let error = of("riscv64").unwrap_err().to_string();
        assert!(error.contains("this host is riscv64"), "{error}");
    }
}
