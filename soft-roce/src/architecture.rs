//! Processor architecture of QEMU's guests: the emulator, its machine, and the names of the distributions' kernels.
//!
//! A guest has its host's architecture, because it runs the host's programs. A port adds an [`Architecture`] here, its
//! packages to `packages`, and its counter to [`super::counter`].

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

/// The architecture of this host and its guests.
#[cfg(target_arch = "x86_64")]
pub(crate) const NATIVE: Architecture = Architecture {
    qemu: "qemu-system-x86_64",
    machine: "q35",
    // Emulation has no `-cpu host`. Five-level page tables only slow it down.
    emulated_cpu: "max,la57=off",
    kernel_parameters: "console=ttyS0 mitigations=off 8250.nr_uarts=1 no_timer_check",
    debian_kernel: "linux-image-amd64",
};

#[cfg(not(target_arch = "x86_64"))]
compile_error!("`cargo soft-roce` has guests for x86-64 only: see `architecture.rs`");
