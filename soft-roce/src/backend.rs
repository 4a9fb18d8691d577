//! The machine of the guests: User-Mode Linux, or QEMU with or without KVM.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use crate::architecture::{self, Architecture};
use crate::boot::kernel::{Kernel, Source};
use crate::boot::kernel_name::KernelName;
use crate::boot::preparation::Progress;
use crate::boot::{image, initramfs};
use crate::commands::setup::{self, Group};
use crate::guest::Guest;
use crate::machine::{Link, Machine};
use crate::process;
use crate::qemu::{self, Accelerator};
use crate::root::Root;
use crate::{Device, accelerator, counter, uml};

/// Choice of the guests' machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// QEMU if KVM works, else User-Mode Linux if built, else QEMU's emulation.
    #[default]
    Auto,
    /// User-Mode Linux: a kernel that runs as a process; built first if necessary.
    Uml,
    /// QEMU, with the distribution's kernel.
    Qemu,
}

impl Backend {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Uml => "uml",
            Self::Qemu => "qemu",
        }
    }
}

/// Environment variable with the default of `--backend`.
pub const VARIABLE: &str = "SOFT_ROCE_BACKEND";

/// Options of a guest's machine.
#[derive(Clone, Debug)]
pub(crate) struct Settings<'a> {
    pub(crate) memory_mib: u32,
    /// Number of processors; the default depends on the device.
    pub(crate) cpus: Option<u32>,
    pub(crate) device: Device,
    pub(crate) root: &'a Root,
    /// Folder of the host with write access for guests.
    pub(crate) out: &'a Path,
    pub(crate) terminal: bool,
}

/// A prepared backend, ready to start guests.
#[derive(Debug)]
pub(crate) enum PreparedBackend {
    Uml {
        kernel: Kernel,
        initramfs: PathBuf,
    },
    Qemu {
        architecture: &'static Architecture,
        program: PathBuf,
        accelerator: Accelerator,
        kernel: Kernel,
        image: PathBuf,
        initramfs: PathBuf,
        /// Frequency of the emulated time-stamp counter in kHz, if usable as the guest's clock.
        counter: Option<u64>,
    },
}

impl PreparedBackend {
    /// Prepares the backend: fetches or builds the kernel and packs the initramfs, below `cache`.
    pub(crate) fn prepare(
        backend: Backend,
        source: &Source,
        settings: &Settings<'_>,
        cache: &Path,
    ) -> Result<Self> {
        let is_foreign = !settings.root.architecture.is_native();
        let wants_qemu =
            matches!(source, Source::Files { .. }) || settings.cpus > Some(1) || is_foreign;
        let name = name(source);
        match backend {
            Backend::Uml => {
                ensure!(
                    settings.cpus.is_none_or(|cpus| cpus == 1),
                    "--backend uml has one processor: leave out --cpus, or use --backend qemu"
                );
                ensure!(
                    !is_foreign,
                    "--backend uml has the host's architecture, and the programs of --root have another: use --backend qemu"
                );
                let kernel = match source {
                    Source::Files { image, modules } => Kernel::from_files(image, modules)?,
                    Source::Distribution | Source::Named(_) => {
                        uml::build::ensure(name, &Progress::drawn())?
                    }
                };
                Self::uml(kernel, settings, cache)
            }
            Backend::Auto if uml::IS_SUPPORTED && !wants_qemu && !accelerator::may_answer() => {
                match uml::build::built(name) {
                    Some(kernel) => Self::uml(kernel, settings, cache),
                    None => {
                        advise(cache);
                        Self::qemu(source, settings, cache)
                    }
                }
            }
            Backend::Auto if !wants_qemu => {
                let prepared = Self::qemu(source, settings, cache)?;
                match (&prepared, uml::build::built(name)) {
                    (
                        Self::Qemu {
                            accelerator: Accelerator::Tcg,
                            ..
                        },
                        Some(kernel),
                    ) => Self::uml(kernel, settings, cache),
                    _ => Ok(prepared),
                }
            }
            Backend::Auto | Backend::Qemu => Self::qemu(source, settings, cache),
        }
    }

    fn uml(kernel: Kernel, settings: &Settings<'_>, cache: &Path) -> Result<Self> {
        let busybox = &settings.root.busybox;
        let initramfs = initramfs::ensure(cache, &kernel, busybox, initramfs::UML)?;
        Ok(Self::Uml { kernel, initramfs })
    }

    fn qemu(source: &Source, settings: &Settings<'_>, cache: &Path) -> Result<Self> {
        let Root {
            busybox,
            architecture,
            ..
        } = settings.root;
        let program = qemu_of(architecture)?;
        let kernel = Kernel::ensure(source, architecture, settings.device, cache)?;
        let image = image::ensure(cache, &kernel.image)?;
        let initramfs = initramfs::ensure(cache, &kernel, busybox, initramfs::QEMU)?;
        let mut prepared = Self::Qemu {
            architecture,
            program: program.clone(),
            accelerator: Accelerator::Kvm,
            kernel,
            image,
            initramfs,
            counter: counter::frequency_khz().filter(|_| architecture.is_native()),
        };
        let chosen = match architecture.is_native() {
            true => accelerator::choose(cache, &program, || {
                Guest::answers(&prepared.machine(settings, None))
            })?,
            false => Accelerator::Tcg,
        };
        if let Self::Qemu { accelerator, .. } = &mut prepared {
            *accelerator = chosen;
        }
        Ok(prepared)
    }

    /// The machine of one guest.
    pub(crate) fn machine<'a>(
        &'a self,
        settings: &Settings<'a>,
        link: Option<Link<'a>>,
    ) -> Machine<'a> {
        let &Settings {
            memory_mib,
            cpus,
            device,
            root,
            out,
            terminal,
        } = settings;
        match self {
            Self::Uml { kernel, initramfs } => Machine::Uml(uml::Machine {
                program: &kernel.image,
                initramfs,
                memory_mib,
                out,
                link,
                terminal,
            }),
            Self::Qemu {
                architecture,
                program,
                accelerator,
                image,
                initramfs,
                counter,
                ..
            } => Machine::Qemu(qemu::Machine {
                architecture,
                accelerator: *accelerator,
                qemu: program.clone(),
                kernel: image,
                initramfs,
                memory_mib,
                cpus: cpus.unwrap_or(device.cpus()),
                counter: *counter,
                root: &root.folder,
                out,
                link,
                terminal,
            }),
        }
    }

    pub(crate) fn kernel(&self) -> &Kernel {
        match self {
            Self::Uml { kernel, .. } | Self::Qemu { kernel, .. } => kernel,
        }
    }

    /// Whether guests run User-Mode Linux; the wire then carries datagrams.
    pub(crate) fn is_uml(&self) -> bool {
        matches!(self, Self::Uml { .. })
    }

    /// Variables of the guest's scripts: the backend, and the terminal of a shell.
    pub(crate) fn guest_names(&self) -> [(&'static str, &'static str); 2] {
        let [backend, terminal] = if self.is_uml() {
            ["uml", "/dev/tty1"]
        } else {
            ["qemu", "/dev/hvc0"]
        };
        [("BACKEND", backend), ("TERMINAL", terminal)]
    }

    /// The execution mode, for messages.
    pub(crate) fn describe(&self) -> &'static str {
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

/// The kernel's name; `None` for the default kernel of a backend, and for files.
fn name(source: &Source) -> Option<&KernelName> {
    match source {
        Source::Named(name) => Some(name),
        Source::Distribution | Source::Files { .. } => None,
    }
}

/// Checks that this host has guests.
///
/// # Errors
///
/// There are no guests for the host's architecture.
pub fn require_host() -> Result<()> {
    architecture::native().map(drop)
}

/// Builds the User-Mode Linux kernel of `source` if `backend` would use it, and returns the backend with the choice of
/// User-Mode Linux made explicit. For test suites, where the build saves more time than it costs. If the build fails, `Auto`
/// falls back to QEMU.
///
/// # Errors
///
/// [`Backend::Uml`] was chosen, and the kernel cannot be built.
pub fn prepare_for_many_runs(backend: Backend, source: &Source) -> Result<Backend> {
    prepare(backend, source, &Progress::drawn())
}

/// [`prepare_for_many_runs`], with a progress bar of the caller.
pub(crate) fn prepare(backend: Backend, source: &Source, progress: &Progress) -> Result<Backend> {
    require_host()?;
    if !needs_uml(backend, source) {
        return Ok(backend);
    }
    match uml::build::ensure(name(source), progress) {
        Err(error) if backend == Backend::Auto => {
            eprintln!(
                "note: {error:#}\nGuests are emulated by QEMU instead, several times slower."
            );
            Ok(backend)
        }
        built => built.map(|_| Backend::Uml),
    }
}

/// Installs the packages of the build of [`prepare_for_many_runs`], if there is a build.
pub(crate) fn install_for_many_runs(backend: Backend, source: &Source) -> Result<()> {
    let is_built = uml::build::built(name(source)).is_some();
    if !needs_uml(backend, source) || is_built {
        return Ok(());
    }
    match setup::ensure(&[Group::Uml]) {
        // The build reports the lack.
        Err(_) if backend == Backend::Auto => Ok(()),
        other => other,
    }
}

/// Whether guests run in User-Mode Linux, with a kernel built for this user.
fn needs_uml(backend: Backend, source: &Source) -> bool {
    let is_uml = match backend {
        Backend::Uml => true,
        Backend::Auto => uml::IS_SUPPORTED && !accelerator::may_answer(),
        Backend::Qemu => false,
    };
    is_uml && !matches!(source, Source::Files { .. })
}

/// Prints advice about building the User-Mode Linux kernel, once for each `cache`.
fn advise(cache: &Path) {
    let marker = cache.join("uml-advice");
    if marker.exists() || fs::create_dir_all(cache).is_err() {
        return;
    }
    eprintln!(
        "note: guests are emulated here, and take 10 to 30 s to boot. `--backend uml` boots in 1 s, after building a \
         kernel once: {}",
        uml::build::price()
    );
    // If the marker cannot be written, the note is repeated in the next run.
    drop(fs::write(marker, ""));
}

/// QEMU's program for guests of an architecture; installed if it is missing, for the host's.
fn qemu_of(architecture: &Architecture) -> Result<PathBuf> {
    if architecture.is_native() {
        setup::ensure(&[Group::Qemu])?;
    }
    let name = architecture.qemu;
    process::find_program(name).with_context(|| {
        format!("{name} is not on PATH: on Debian it is in qemu-system-x86 or qemu-system-arm")
    })
}
