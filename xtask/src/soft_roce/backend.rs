//! What guests run on: User-Mode Linux, or QEMU with or without KVM.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use super::guest::Guest;
use super::kernel::{Kernel, Source};
use super::machine::{Link, Machine};
use super::qemu::{self, Accelerator};
use super::{Device, accelerator, counter, image, initramfs, uml};
use crate::process;
use crate::setup::{self, Group};

/// What guests are to run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// KVM where a guest answers under it, then a User-Mode Linux that has been built, then QEMU's emulation.
    #[default]
    Auto,
    /// User-Mode Linux, built first if need be: a kernel that is a process.
    Uml,
    /// QEMU, with the distribution's own kernel.
    Qemu,
}

impl Backend {
    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Uml => "uml",
            Self::Qemu => "qemu",
        }
    }
}

/// The environment variable that names the backend where no option does.
pub(crate) const VARIABLE: &str = "SOFT_ROCE_BACKEND";

/// What differs between the machines of a run's guests.
#[derive(Clone, Debug)]
pub(super) struct Settings<'a> {
    pub(super) memory_mib: u32,
    /// Processors; what suits the device unless given.
    pub(super) cpus: Option<u32>,
    pub(super) device: Device,
    /// The host's folder that guests may write to.
    pub(super) out: &'a Path,
    pub(super) terminal: bool,
}

/// A backend that is ready to start guests.
#[derive(Debug)]
pub(super) enum Engine {
    Uml {
        kernel: Kernel,
        initramfs: PathBuf,
    },
    Qemu {
        program: PathBuf,
        accelerator: Accelerator,
        kernel: Kernel,
        image: PathBuf,
        initramfs: PathBuf,
        /// The frequency of emulated processors' counter in kHz, if it tells the time.
        counter: Option<u64>,
    },
}

impl Engine {
    /// Makes the backend ready: fetches or builds its kernel and packs the initramfs, below `cache`.
    pub(super) fn prepare(
        backend: Backend,
        source: &Source,
        settings: &Settings<'_>,
        cache: &Path,
    ) -> Result<Self> {
        let wants_qemu = matches!(source, Source::Files { .. }) || settings.cpus > Some(1);
        match backend {
            Backend::Uml => {
                ensure!(
                    !wants_qemu,
                    "--backend uml has its own kernel, with one processor: leave out --kernel and --cpus, or take \
                     --backend qemu"
                );
                Self::uml(uml::build::ensure()?, cache)
            }
            Backend::Auto if !wants_qemu && !accelerator::may_answer() => {
                match uml::build::built() {
                    Some(kernel) => Self::uml(kernel, cache),
                    None => {
                        advise(cache);
                        Self::qemu(source, settings, cache)
                    }
                }
            }
            Backend::Auto if !wants_qemu => {
                let engine = Self::qemu(source, settings, cache)?;
                match (&engine, uml::build::built()) {
                    (
                        Self::Qemu {
                            accelerator: Accelerator::Tcg,
                            ..
                        },
                        Some(kernel),
                    ) => Self::uml(kernel, cache),
                    _ => Ok(engine),
                }
            }
            Backend::Auto | Backend::Qemu => Self::qemu(source, settings, cache),
        }
    }

    fn uml(kernel: Kernel, cache: &Path) -> Result<Self> {
        setup::ensure(&[Group::Guest])?;
        let initramfs = initramfs::ensure(cache, &kernel, &busybox()?, initramfs::UML)?;
        Ok(Self::Uml { kernel, initramfs })
    }

    fn qemu(source: &Source, settings: &Settings<'_>, cache: &Path) -> Result<Self> {
        setup::ensure(&[Group::Guest, Group::Qemu])?;
        let kernel = Kernel::ensure(source, settings.device, cache)?;
        let image = image::ensure(cache, &kernel.image)?;
        let initramfs = initramfs::ensure(cache, &kernel, &busybox()?, initramfs::QEMU)?;
        let program = process::find_program("qemu-system-x86_64")
            .context("qemu-system-x86_64 is not on PATH")?;
        let mut engine = Self::Qemu {
            program: program.clone(),
            accelerator: Accelerator::Kvm,
            kernel,
            image,
            initramfs,
            counter: counter::frequency_khz(),
        };
        let chosen = accelerator::choose(cache, &program, || {
            Guest::answers(&engine.machine(settings, None))
        })?;
        if let Self::Qemu { accelerator, .. } = &mut engine {
            *accelerator = chosen;
        }
        Ok(engine)
    }

    /// The machine of one guest.
    pub(super) fn machine<'a>(
        &'a self,
        settings: &Settings<'a>,
        link: Option<Link<'a>>,
    ) -> Machine<'a> {
        let &Settings {
            memory_mib,
            cpus,
            device,
            out,
            terminal,
        } = settings;
        match self {
            Self::Uml { kernel, initramfs } => Machine::Uml(uml::Machine {
                program: &kernel.image,
                initramfs,
                memory_mib,
                link,
                terminal,
            }),
            Self::Qemu {
                program,
                accelerator,
                image,
                initramfs,
                counter,
                ..
            } => Machine::Qemu(qemu::Machine {
                accelerator: *accelerator,
                qemu: program.clone(),
                kernel: image,
                initramfs,
                memory_mib,
                cpus: cpus.unwrap_or(device.cpus()),
                counter: *counter,
                out,
                link,
                terminal,
            }),
        }
    }

    pub(super) fn kernel(&self) -> &Kernel {
        match self {
            Self::Uml { kernel, .. } | Self::Qemu { kernel, .. } => kernel,
        }
    }

    /// Whether guests are User-Mode Linux, whose wire carries datagrams.
    pub(super) fn is_uml(&self) -> bool {
        matches!(self, Self::Uml { .. })
    }

    /// The variables of the guest's scripts that name the backend and a shell's terminal.
    pub(super) fn guest_names(&self) -> [(&'static str, &'static str); 2] {
        let [backend, terminal] = if self.is_uml() {
            ["uml", "/dev/tty1"]
        } else {
            ["qemu", "/dev/hvc0"]
        };
        [("BACKEND", backend), ("TERMINAL", terminal)]
    }

    /// How guests' instructions are carried out, in words.
    pub(super) fn describe(&self) -> &'static str {
        match self {
            Self::Uml { .. } => "User-Mode Linux",
            Self::Qemu {
                accelerator: Accelerator::Kvm,
                ..
            } => "with KVM",
            Self::Qemu { .. } => "emulated",
        }
    }
}

/// Builds the User-Mode Linux kernel where a run that chooses its backend would use it: for suites of tests, which
/// gain more than the build takes. Where it cannot be built, QEMU serves.
pub(crate) fn prepare_for_many_runs(backend: Backend) -> Result<()> {
    let would_use = backend == Backend::Auto && !accelerator::may_answer();
    if backend == Backend::Uml {
        uml::build::ensure()?;
    } else if would_use && let Err(error) = uml::build::ensure() {
        eprintln!(
            "note: {error:#}\nGuests are emulated by QEMU instead, which takes several times as long."
        );
    }
    Ok(())
}

/// Says once, for each `cache`, what building a User-Mode Linux kernel would bring.
fn advise(cache: &Path) {
    let said = cache.join("uml-advice");
    if said.exists() || fs::create_dir_all(cache).is_err() {
        return;
    }
    eprintln!(
        "note: guests are emulated here, and take 10 to 30 s to boot. `--backend uml` boots them in one second, after \
         building a kernel once: {}",
        uml::build::price()
    );
    // Where nothing can be written, it is said again.
    drop(fs::write(said, ""));
}

fn busybox() -> Result<PathBuf> {
    let names = ["busybox", "busybox-static"];
    let found = names.iter().find_map(|name| process::find_program(name));
    found.context("busybox is not on PATH")
}
