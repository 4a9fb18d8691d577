//! The guest's kernel: the distribution's package, extracted below the target folder and never installed.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::FlockOperation;

use crate::architecture::{self, Architecture};
use crate::boot::apt::{self, Ask};
use crate::boot::kernel_name::KernelName;
use crate::boot::package_lists::Lists;
use crate::boot::{kernel_packages, modules, siw};
use crate::device::Device;
use crate::process;
use crate::scratch::Scratch;

/// Source of a guest's kernel.
#[derive(Clone, Debug, Default)]
pub enum Source {
    /// The distribution's package, downloaded once.
    #[default]
    Distribution,
    /// A kernel of Debian's packages, by name; downloaded once, or built for User-Mode Linux.
    Named(KernelName),
    /// Files of the caller.
    Files {
        /// The bootable image.
        image: PathBuf,
        /// Folder of the modules, or a folder with `lib/modules/RELEASE` below.
        modules: PathBuf,
    },
}

/// Environment variable with the default of `--kernel`.
pub const VARIABLE: &str = "SOFT_ROCE_KERNEL";

/// Environment variable with the default of `--modules`.
pub const MODULES_VARIABLE: &str = "SOFT_ROCE_MODULES";

/// The kernel's name in an argument that is either a name or a path.
pub(crate) fn name(argument: &Path) -> Option<KernelName> {
    argument.to_str()?.parse().ok()
}

impl Source {
    /// The kernel of the options `--kernel` and `--modules`.
    ///
    /// # Errors
    ///
    /// An image without modules.
    pub fn chosen(kernel: Option<&Path>, modules: Option<&Path>) -> Result<Self> {
        let Some(kernel) = kernel else {
            return Ok(Self::Distribution);
        };
        match (name(kernel), modules) {
            (Some(name), None) => Ok(Self::Named(name)),
            (Some(name), Some(_)) => {
                bail!("--kernel {name} has its own modules: leave out --modules")
            }
            (None, Some(modules)) => Ok(Self::Files {
                image: kernel.to_owned(),
                modules: modules.to_owned(),
            }),
            (None, None) => bail!(
                "--kernel {} is neither a series such as 6.12 nor `newest`; an image needs --modules too",
                kernel.display()
            ),
        }
    }
}

/// A bootable kernel and its modules.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// The bootable image.
    pub(crate) image: PathBuf,
    /// The folder `lib/modules/RELEASE`.
    pub(crate) modules: PathBuf,
    /// `siw.ko`, if built out of tree.
    pub(crate) siw: Option<PathBuf>,
}

impl Kernel {
    /// Finds or downloads the kernel below `cache`, and ensures a module for `device`.
    pub(crate) fn ensure(
        source: &Source,
        architecture: &Architecture,
        device: Device,
        cache: &Path,
    ) -> Result<Self> {
        let mut kernel = match source {
            Source::Files { image, modules } => Self::from_files(image, modules)?,
            Source::Distribution => Self::from_packages(None, architecture, cache)?,
            Source::Named(name) => Self::from_packages(Some(name), architecture, cache)?,
        };
        // A module is built for this host's architecture only.
        let can_build = device == Device::Siw && architecture.is_native();
        if can_build && !kernel.has_module(device.module()) {
            if let Source::Distribution = source {
                kernel = Self::with_headers(kernel, cache)?;
            }
            let lists = match source {
                Source::Named(KernelName::Newest) => Lists::newest(cache, architecture)?,
                _ => Lists::System,
            };
            kernel.siw = Some(siw::ensure(&kernel, &lists, cache)?);
        } else {
            kernel.require_module(device.module())?;
        }
        Ok(kernel)
    }

    /// Release of the kernel, as in `uname -r`.
    pub(crate) fn release(&self) -> String {
        self.modules
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    }

    pub(crate) fn from_files(image: &Path, modules: &Path) -> Result<Self> {
        let image = image
            .canonicalize()
            .with_context(|| format!("no kernel image at {}", image.display()))?;
        let modules = modules
            .canonicalize()
            .with_context(|| format!("no modules at {}", modules.display()))?;
        let modules = module_folder(&modules).unwrap_or(modules);
        if !modules.join("kernel").is_dir() {
            bail!(
                "{} is not a kernel's lib/modules/RELEASE: it has no folder `kernel`",
                modules.display()
            );
        }
        Ok(Self {
            image,
            modules,
            siw: None,
        })
    }

    /// The kernel of the distribution's packages: the named one, else the newest.
    fn from_packages(
        name: Option<&KernelName>,
        architecture: &Architecture,
        cache: &Path,
    ) -> Result<Self> {
        let foreign = (!architecture.is_native()).then_some(architecture.debian);
        let name_of_kernel = name.map(KernelName::to_string);
        let words = ["kernel"].into_iter().chain(foreign);
        let words: Vec<&str> = words.chain(name_of_kernel.as_deref()).collect();
        let home = cache.join(words.join("-"));
        if let Ok(kernel) = Self::unpacked(&home) {
            return Ok(kernel);
        }
        let _lock = lock(cache)?;
        Self::unpacked(&home).or_else(|_| {
            fetch(name, architecture, &home).with_context(|| match name {
                Some(name) => format!("cannot download the kernel {name}"),
                None => "cannot download the distribution's kernel".to_owned(),
            })?;
            Self::unpacked(&home)
        })
    }

    /// The kernel in `cache`. Downloads a newer kernel if `siw` is neither built nor can be built, because the
    /// distribution has removed the headers.
    fn with_headers(kernel: Self, cache: &Path) -> Result<Self> {
        if siw::can_be_built(&kernel, cache) {
            return Ok(kernel);
        }
        let home = cache.join("kernel");
        let _lock = lock(cache)?;
        // Another run may have replaced the kernel before this run got the lock.
        let kernel = Self::unpacked(&home)?;
        if siw::can_be_built(&kernel, cache) {
            return Ok(kernel);
        }
        eprintln!(
            "The distribution has no headers of the kernel {} any more: replacing it",
            kernel.release()
        );
        let scratch = Scratch::inside(cache)?;
        let old = scratch.path().join("old");
        fs::rename(&home, &old)?;
        if let Err(error) = fetch(None, architecture::native()?, &home) {
            fs::rename(&old, &home)?;
            return Err(error.context("cannot replace the distribution's kernel"));
        }
        Self::unpacked(&home)
    }

    /// The kernel extracted into `home`.
    pub(crate) fn unpacked(home: &Path) -> Result<Self> {
        let modules = module_folder(home)
            .with_context(|| format!("no kernel modules below {}", home.display()))?;
        let image = image_in(&home.join("boot"))
            .or_else(|| image_in(&modules))
            .with_context(|| format!("no kernel image below {}", home.display()))?;
        Ok(Self {
            image,
            modules,
            siw: None,
        })
    }

    fn has_module(&self, name: &str) -> bool {
        find_module(&self.modules.join("kernel"), name)
            || modules::has_built_in(&self.modules, name)
    }

    fn require_module(&self, name: &str) -> Result<()> {
        if self.has_module(name) {
            return Ok(());
        }
        let release = self.release();
        let hint = if release.contains("cloud") || release.contains("kvm") {
            "cloud flavours are built without it; use the generic flavour"
        } else {
            "use a kernel with CONFIG_RDMA_RXE=m, or leave out --kernel and --modules for the distribution's kernel"
        };
        bail!("the kernel {release} has no module {name}: {hint}")
    }
}

/// Locks `cache` against other runs until the result is dropped. Blocks while another run holds the lock.
pub(crate) fn lock(cache: &Path) -> Result<File> {
    fs::create_dir_all(cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let file = File::create(cache.join("lock"))?;
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        eprintln!("Another run is fetching the kernel; waiting for it.");
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
    }
    Ok(file)
}

/// Folders with the modules of kernels, in distributions with and without `/lib`.
const MODULE_PLACES: [&str; 2] = ["lib/modules", "usr/lib/modules"];

/// `lib/modules/RELEASE` below `root`, or below its `usr`. A folder is preferred to a link.
fn module_folder(root: &Path) -> Option<PathBuf> {
    let folders = MODULE_PLACES
        .iter()
        .filter_map(|prefix| fs::read_dir(root.join(prefix)).ok())
        .flatten()
        .flatten();
    folders
        .map(|entry| entry.path())
        .filter(|path| path.join("kernel").is_dir())
        .min_by_key(|path| path.is_symlink())
}

fn image_in(folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder)
        .ok()?
        .flatten()
        .map(|entry| entry.path());
    files.into_iter().find(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name == "vmlinuz" || name.starts_with("vmlinuz-")
    })
}

fn find_module(folder: &Path, name: &str) -> bool {
    let Ok(entries) = fs::read_dir(folder) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let file_name = entry.file_name();
        let file_name = file_name.to_string_lossy();
        let stem = file_name
            .split_once(".ko")
            .map(|(stem, _)| stem.replace('-', "_"));
        stem.is_some_and(|stem| stem == name)
            || entry.file_type().is_ok_and(|kind| kind.is_dir()) && find_module(&entry.path(), name)
    })
}

/// Downloads a kernel by name, or the distribution's newest, and extracts its packages into `home`.
fn fetch(name: Option<&KernelName>, architecture: &Architecture, home: &Path) -> Result<()> {
    ensure!(
        apt::is_available(),
        "apt-get is not on PATH: give a kernel with --kernel and --modules"
    );
    let parent = home.parent().context("the cache has no parent folder")?;
    let lists = match name {
        Some(name) => kernel_packages::lists_with(name, architecture, parent)?,
        None => Lists::of_system(parent, architecture)?,
    };
    let os_release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let packages = |ask: Ask<'_>| match name {
        Some(name) => kernel_packages::of_name(name, architecture, ask),
        None => kernel_packages::named(&os_release, architecture, ask),
    };
    let scratch = Scratch::inside(parent)?;
    eprintln!("Downloading the guest's kernel, once");
    let files = apt::fetch(&lists, packages, scratch.path())?;
    let unpacked = scratch.path().join("unpacked");
    eprintln!("Unpacking the kernel into {}", home.display());
    for file in &files {
        apt::unpack(file, &unpacked)?;
    }
    // Packages lack modprobe's index, used by commands in the guest.
    index(&unpacked)?;
    fs::rename(&unpacked, home)
        .with_context(|| format!("cannot put the kernel into {}", home.display()))
}

/// Writes the index of modprobe for the modules in `root`.
fn index(root: &Path) -> Result<()> {
    let Some(modules) = module_folder(root) else {
        return Ok(());
    };
    merge_module_folders(root, &modules)?;
    let release = modules.file_name().unwrap_or_default();
    process::run(
        process::system_command("depmod")
            .arg("-b")
            .arg(root)
            .arg(release),
    )
}

/// Makes the kernel's folder of modules available in both places: packages have either, and depmod searches
/// `lib/modules` or `usr/lib/modules` by its build. Files of the other place move to `modules`.
fn merge_module_folders(root: &Path, modules: &Path) -> Result<()> {
    let release = modules.file_name().unwrap_or_default();
    for (prefix, up) in MODULE_PLACES.into_iter().zip(["../..", "../../.."]) {
        let other = root.join(prefix).join(release);
        if other == modules {
            continue;
        }
        for entry in fs::read_dir(&other).into_iter().flatten() {
            let entry = entry?;
            let merged = modules.join(entry.file_name());
            if !merged.exists() {
                fs::rename(entry.path(), merged)?;
            }
        }
        if other.exists() {
            fs::remove_dir_all(&other)?;
        }
        fs::create_dir_all(root.join(prefix))?;
        symlink(Path::new(up).join(modules.strip_prefix(root)?), other)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::architecture::X86_64;

    fn kernel_tree(release: &str, module: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let modules = root
            .path()
            .join("lib/modules")
            .join(release)
            .join("kernel/drivers");
        fs::create_dir_all(&modules).unwrap();
        fs::create_dir_all(root.path().join("boot")).unwrap();
        fs::write(modules.join(module), "").unwrap();
        fs::write(
            root.path().join("boot").join(format!("vmlinuz-{release}")),
            "",
        )
        .unwrap();
        root
    }

    #[test]
    fn unpacked_of_package_tree_finds_image_and_modules() {
        let root = kernel_tree("6.1.0-1-amd64", "rdma_rxe.ko.xz");
        let kernel = Kernel::unpacked(root.path()).unwrap();
        assert_eq!(kernel.release(), "6.1.0-1-amd64");
        assert!(kernel.has_module("rdma_rxe"));
        assert!(!kernel.has_module("siw"));
    }

    #[test]
    fn cloud_kernel_without_rxe_is_refused_with_advice() {
        let root = kernel_tree("6.1.0-1-cloud-amd64", "dummy.ko");
        let source = Source::Files {
            image: root.path().join("boot/vmlinuz-6.1.0-1-cloud-amd64"),
            modules: root.path().to_owned(),
        };
        let error = Kernel::ensure(&source, &X86_64, Device::Rxe, root.path())
            .unwrap_err()
            .to_string();
        assert!(error.contains("no module rdma_rxe"), "{error}");
        assert!(error.contains("generic flavour"), "{error}");
    }

    #[test]
    fn chosen_kernel_is_a_name_or_an_image_with_modules() {
        let chosen = |kernel: &str, modules: Option<&str>| {
            Source::chosen(Some(Path::new(kernel)), modules.map(Path::new))
        };
        let series = KernelName::Series("6.12".to_owned());
        assert!(matches!(chosen("6.12", None).unwrap(), Source::Named(name) if name == series));
        assert!(matches!(
            chosen("/linux", Some("/m")).unwrap(),
            Source::Files { .. }
        ));
        let error = chosen("/linux", None).unwrap_err().to_string();
        assert!(
            error.contains("/linux") && error.contains("--modules"),
            "{error}"
        );
        let error = chosen("6.12", Some("/m")).unwrap_err().to_string();
        assert!(error.contains("leave out --modules"), "{error}");
        assert!(matches!(
            Source::chosen(None, None).unwrap(),
            Source::Distribution
        ));
    }

    #[test]
    fn modules_are_in_both_places_after_a_merge() {
        for (modules, other) in [
            ("lib/modules/7.0.1", "usr/lib/modules/7.0.1"),
            ("usr/lib/modules/7.0.1", "lib/modules/7.0.1"),
        ] {
            for has_list in [false, true] {
                let root = tempfile::tempdir().unwrap();
                let (modules, other) = (root.path().join(modules), root.path().join(other));
                fs::create_dir_all(modules.join("kernel")).unwrap();
                fs::write(modules.join("kernel/rdma_rxe.ko"), "").unwrap();
                fs::write(root.path().join("vmlinuz"), "").unwrap();
                if has_list {
                    fs::create_dir_all(&other).unwrap();
                    fs::write(other.join("modules.builtin"), "kernel/ipv6.ko\n").unwrap();
                }
                merge_module_folders(root.path(), &modules).unwrap();
                // The tree moves into the cache afterwards.
                let moved = tempfile::tempdir().unwrap();
                let home = moved.path().join("kernel");
                fs::rename(root.path(), &home).unwrap();
                for prefix in MODULE_PLACES.map(|prefix| home.join(prefix).join("7.0.1")) {
                    assert!(prefix.join("kernel/rdma_rxe.ko").is_file(), "{prefix:?}");
                    assert_eq!(
                        prefix.join("modules.builtin").is_file(),
                        has_list,
                        "{prefix:?}"
                    );
                }
                assert!(!module_folder(&home).unwrap().is_symlink());
            }
        }
    }
}
