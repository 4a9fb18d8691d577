//! Processor architecture of QEMU's guests: the emulator, its machine, and the names of the distributions' kernels.
//!
//! A guest has its host's architecture, because it runs the host's programs. A port adds an [`Architecture`] here, its
//! packages to `packages`, and its counter to [`crate::counter`]. On other hosts everything but guests works.

use std::env::consts::ARCH;

use anyhow::{Result, bail};

/// Needs of QEMU and of the distributions for guests of an architecture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Architecture {
    /// QEMU's program.
    pub(crate) qemu: &'static str,
    /// Argument of `-machine`.
    pub(crate) machine: &'static str,
    /// Argument of `-cpu` under emulation.
    pub(crate) emulated_cpu: &'static str,
    /// Kernel parameters for the console, and for a shorter boot of this machine.
    pub(crate) kernel_parameters: &'static str,
    /// Package of Debian that depends on the newest kernel.
    pub(crate) debian_kernel: &'static str,
}

/// x86-64 hosts.
pub(crate) const X86_64: Architecture = Architecture {
    qemu: "qemu-system-x86_64",
    machine: "q35",
    // Emulation has no `-cpu host`. Five-level page tables only slow it down.
    emulated_cpu: "max,la57=off",
    kernel_parameters: "console=ttyS0 mitigations=off 8250.nr_uarts=1 no_timer_check",
    debian_kernel: "linux-image-amd64",
};

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
        _ => bail!(
            "guests need an x86-64 host, and this host is {name}: `cargo test` runs the tests that need no guest, on devices of \
             softnic"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_without_guests_is_named_in_the_error() {
        assert_eq!(of("x86_64").unwrap().qemu, X86_64.qemu);
        let error = of("aarch64").unwrap_err().to_string();
        assert!(error.contains("this host is aarch64"), "{error}");
    }
}
