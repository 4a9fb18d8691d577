//! Building the User-Mode Linux kernel from the distribution's kernel source, once for each user.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use indicatif::ProgressStyle;

use super::IS_SUPPORTED;
use crate::architecture::X86_64;
use crate::boot::apt::{self, Ask};
use crate::boot::kernel::{self, Kernel};
use crate::boot::kernel_name::KernelName;
use crate::boot::package_lists::Lists;
use crate::boot::preparation::Progress;
use crate::commands::setup::{self, Group};
use crate::process::{self, Supervised};
use crate::scratch::Scratch;
use crate::workspace;

/// Kernel configuration, merged over `allnoconfig`.
const CONFIG: &str = include_str!("../../guest/uml.config");

/// Series of the kernel without a name, for which the configuration is made.
const DEFAULT_SERIES: &str = "6.12";

/// Package with the source of the newest kernel in a distribution's lists.
const NEWEST_SOURCE: &str = "linux-source";

/// Settings required for a guest to boot. `make` silently drops settings unknown to the source.
const REQUIRED: [&str; 6] = [
    "CONFIG_HOSTFS=y",
    "CONFIG_OVERLAY_FS=y",
    "CONFIG_BLK_DEV_INITRD=y",
    "CONFIG_UML_NET_VECTOR=y",
    "CONFIG_INFINIBAND_USER_ACCESS=m",
    "CONFIG_RDMA_RXE=m",
];

/// A replacement in the source.
#[derive(Hash)]
struct Replacement {
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

/// Corrections of the source. A source without the text to replace stays as it is.
const REPLACEMENTS: [Replacement; 3] = [REGISTER_STATE, GETCPU, GETCPU_EXPORT];

/// Room for a process's extended register state, in bytes. Before Linux 6.13 it is a constant, too small for
/// processors with AMX: a guest's first process is killed there with `ptrace set fp regs failed`. The state in
/// the standard format, `XSAVE` without compaction, has 11008 bytes up to and including AMX.
const REGISTER_STATE: Replacement = Replacement {
    file: "arch/x86/um/user-offsets.c",
    from: "DEFINE_LONGS(HOST_FP_SIZE, 2696);",
    to: "DEFINE_LONGS(HOST_FP_SIZE, 11008);",
};

/// The vDSO's `getcpu`, which Linux has on every x86-64 machine but User-Mode Linux since 7.0. rustix panics at its first
/// use of the vDSO if the function is missing.
const GETCPU: Replacement = Replacement {
    file: "arch/x86/um/vdso/um_vdso.c",
    from: "#include <vdso/gettime.h>\n",
    to: "#include <vdso/gettime.h>\n\
         asm(\".globl __vdso_getcpu\\n__vdso_getcpu:\\n\\tmov $309, %eax\\n\\tsyscall\\n\\tret\\n\");\n",
};

/// The version of [`GETCPU`].
const GETCPU_EXPORT: Replacement = Replacement {
    file: "arch/x86/um/vdso/vdso.lds.S",
    from: "\t\t__vdso_gettimeofday;\n\t\ttime;\n",
    to: "\t\t__vdso_gettimeofday;\n\t\t__vdso_getcpu;\n\t\ttime;\n",
};

/// Number of lines printed by `make` for 6.12, for the progress bar.
const STEPS: u64 = 1700;

/// Disk space needed by the build, in MiB.
const BUILD_MIB: u64 = 2200;

/// Processor time of the build, in seconds, on a processor of 2023.
const BUILD_SECONDS: u64 = 500;

/// Files excluded from extraction: never compiled, and half of the archive's size.
const LEFT_OUT: [&str; 8] = [
    "*/Documentation/*.rst",
    "*/drivers/gpu/*.[ch]",
    "*/drivers/media/*.[ch]",
    "*/drivers/net/ethernet/*.[ch]",
    "*/drivers/net/wireless/*.[ch]",
    "*/sound/*.[ch]",
    "*/tools/testing/*",
    "*/arch/*.dts*",
];

/// The kernel `name`, or the default one, if already built by this user.
pub(crate) fn built(name: Option<&KernelName>) -> Option<Kernel> {
    built_in(&home(name).ok()?)
}

/// The kernel `name`, or the default one; builds it if necessary.
///
/// # Errors
///
/// The source or a build tool is unavailable, the disk is full, or the build fails.
pub(crate) fn ensure(name: Option<&KernelName>, progress: &Progress) -> Result<Kernel> {
    ensure!(
        IS_SUPPORTED,
        "User-Mode Linux is for x86-64 hosts: use --backend qemu"
    );
    let home = home(name)?;
    if let Some(kernel) = built_in(&home) {
        return require(name, kernel);
    }
    let parent = home.parent().context("the cache has no parent folder")?;
    let _lock = kernel::lock(parent)?;
    if let Some(kernel) = built_in(&home) {
        return require(name, kernel);
    }
    build(name, parent, &home, progress).context("the User-Mode Linux kernel cannot be built")?;
    built_in(&home).context("the User-Mode Linux kernel is missing after its build")
}

/// `kernel`, if it has the name. The default one is of another series on a distribution without [`DEFAULT_SERIES`].
fn require(name: Option<&KernelName>, kernel: Kernel) -> Result<Kernel> {
    if let Some(name) = name {
        let release = kernel.release();
        ensure!(
            name.matches(&release),
            "the package lists have no source of {name}, and the default kernel is {release}: leave out --kernel"
        );
    }
    Ok(kernel)
}

/// Time and disk space of a build, as a sentence fragment.
pub(crate) fn price() -> String {
    let processors = thread::available_parallelism().map_or(1, usize::from) as u64;
    let minutes = BUILD_SECONDS.div_ceil(60 * processors.min(16));
    format!(
        "about {minutes} min on this machine, 150 MB to download, and 2 GB of disk space during the build (12 MB after)"
    )
}

/// Folder of the kernel `name` for the current configuration and replacements.
fn home(name: Option<&KernelName>) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    CONFIG.hash(&mut hasher);
    REPLACEMENTS.hash(&mut hasher);
    if let Some(name) = name.filter(|name| !is_default(name)) {
        name.hash(&mut hasher);
    }
    Ok(workspace::require_user_cache()?.join(format!("uml-{:016x}", hasher.finish())))
}

fn is_default(name: &KernelName) -> bool {
    matches!(name, KernelName::Series(series) if series == DEFAULT_SERIES)
}

fn built_in(home: &Path) -> Option<Kernel> {
    let image = home.join("linux");
    let releases = fs::read_dir(home.join("lib/modules")).ok()?;
    let modules = releases.flatten().next()?.path();
    image.is_file().then_some(Kernel {
        image,
        modules,
        siw: None,
    })
}

fn build(name: Option<&KernelName>, parent: &Path, home: &Path, progress: &Progress) -> Result<()> {
    if !apt::is_available() {
        bail!("the build supports only Debian's source packages: use --backend qemu");
    }
    setup::ensure(&[Group::Uml])?;
    eprintln!(
        "Building a User-Mode Linux kernel{} for the guests, once for all workspaces: {}, in {}",
        name.map(|name| format!(", {name},")).unwrap_or_default(),
        price(),
        parent.display()
    );
    // Removes the remains of killed builds first.
    let scratch = Scratch::inside(parent)?;
    require_space(parent)?;
    let source = unpack_source(name, scratch.path())?;
    for replacement in &REPLACEMENTS {
        replacement.apply(&source)?;
    }
    configure(&source)?;
    compile(&source, &scratch.path().join("log"), progress)?;
    let finished = scratch.path().join("finished");
    install(&source, &finished)?;
    fs::rename(&finished, home)
        .with_context(|| format!("cannot put the kernel into {}", home.display()))
}

fn require_space(folder: &Path) -> Result<()> {
    let file_system = rustix::fs::statvfs(folder)?;
    let free = file_system.f_bavail.saturating_mul(file_system.f_frsize) >> 20;
    ensure!(
        free >= BUILD_MIB,
        "{} has {free} MiB of disk space left, and the build needs {BUILD_MIB}: free space, or set XDG_CACHE_HOME to \
         another folder",
        folder.display()
    );
    Ok(())
}

/// The first of `names` in the package lists of `ask`, and the versioned package it depends on, if any.
fn source_packages(names: &[String], ask: Ask<'_>) -> Result<Vec<String>> {
    let offered = names.iter().find(|package| apt::has(package, ask));
    let package =
        offered.with_context(|| format!("apt knows no package {}", names.join(" or ")))?;
    let mut packages = vec![package.to_owned()];
    // The unversioned package only depends on the versioned one.
    packages.extend(apt::closure(package, &["linux-source-"], ask)?);
    Ok(packages)
}

/// The source packages of the kernel `name` in order of preference, and the package lists with one of them.
fn source_of(name: Option<&KernelName>, cache: &Path) -> Result<(Vec<String>, Lists)> {
    let of_series = |series: &str| format!("{NEWEST_SOURCE}-{series}");
    match name {
        None => Ok((
            vec![of_series(DEFAULT_SERIES), NEWEST_SOURCE.to_owned()],
            Lists::System,
        )),
        Some(KernelName::Newest) => Ok((
            vec![NEWEST_SOURCE.to_owned()],
            Lists::newest(cache, &X86_64)?,
        )),
        Some(KernelName::Series(series)) => {
            let package = of_series(series);
            let is_known = apt::has(&package, &apt::ask(&Lists::System));
            let lists = match is_known {
                true => Lists::System,
                false => Lists::newest(cache, &X86_64)?,
            };
            Ok((vec![package], lists))
        }
    }
}

/// Downloads the source package and extracts the source below `folder`.
fn unpack_source(name: Option<&KernelName>, folder: &Path) -> Result<PathBuf> {
    let (names, lists) = source_of(name, &workspace::require_user_cache()?)?;
    let packages = |ask: Ask<'_>| source_packages(&names, ask);
    let files = apt::fetch(&lists, packages, folder)?;
    let unpacked = folder.join("package");
    for file in &files {
        apt::unpack(file, &unpacked)?;
        fs::remove_file(file)?;
    }
    let pattern = unpacked.join("usr/src/linux-source-*.tar.*");
    let archive = glob::glob(&pattern.to_string_lossy())?.flatten().next();
    let archive = archive.context("the source package has no archive in it")?;
    let mut tar = Command::new("tar");
    tar.arg("--wildcards")
        .args(LEFT_OUT.iter().map(|part| format!("--exclude={part}")));
    tar.arg("-xf").arg(&archive).arg("-C").arg(folder);
    process::run(&mut tar)?;
    fs::remove_dir_all(&unpacked)?;
    let mut folders = glob::glob(&folder.join("linux-source-*").to_string_lossy())?.flatten();
    folders.next().context("the archive has no folder in it")
}

impl Replacement {
    /// Applies it to the source.
    fn apply(&self, source: &Path) -> Result<()> {
        let file = source.join(self.file);
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        fs::write(&file, self.in_text(&text))
            .with_context(|| format!("cannot write {}", file.display()))
    }

    fn in_text(&self, text: &str) -> String {
        text.replace(self.from, self.to)
    }
}

fn make(source: &Path) -> Command {
    let mut make = Command::new("make");
    make.current_dir(source).arg("ARCH=um");
    // Flags of an outer make or of the user's builds must not reach the kernel build.
    for name in ["MAKEFLAGS", "MFLAGS", "CFLAGS", "LDFLAGS", "KBUILD_OUTPUT"] {
        make.env_remove(name);
    }
    make
}

/// Merges [`CONFIG`] over `allnoconfig`. An error if the source lacks a [`REQUIRED`] setting.
fn configure(source: &Path) -> Result<()> {
    let quiet = |command: &mut Command| process::run(command.stdout(Stdio::null()));
    quiet(make(source).args(["-s", "allnoconfig"]))?;
    fs::write(source.join("guest.config"), CONFIG)?;
    quiet(
        Command::new("scripts/kconfig/merge_config.sh")
            .current_dir(source)
            .args(["-m", ".config", "guest.config"]),
    )?;
    quiet(make(source).args(["-s", "olddefconfig"]))?;
    let config = fs::read_to_string(source.join(".config"))?;
    let missing: Vec<&str> = REQUIRED
        .into_iter()
        .filter(|setting| !config.lines().any(|line| line == *setting))
        .collect();
    ensure!(
        missing.is_empty(),
        "this kernel source does not support {}: use --backend qemu",
        missing.join(", ")
    );
    Ok(())
}

/// Compiles the kernel and its modules, with a progress bar. The compiler's output goes to `log`.
fn compile(source: &Path, log: &Path, progress: &Progress) -> Result<()> {
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    let mut file = fs::File::create(log)?;
    let mut command = make(source);
    command
        .arg(format!("-j{jobs}"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(file.try_clone()?);
    let mut child = Supervised::spawn(&mut command, &[]).context("cannot start make")?;
    let output = child.child().stdout.take().context("make has no output")?;
    let bar = Progress::bar(STEPS);
    bar.set_style(ProgressStyle::with_template(
        "  {bar:30} {pos}/{len} {elapsed} of about {duration}  {msg}",
    )?);
    bar.enable_steady_tick(Duration::from_secs(1));
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        writeln!(file, "{line}")?;
        // Lines look like `  CC      kernel/fork.o`.
        progress.advance(&bar);
        bar.set_message(
            line.split_whitespace()
                .last()
                .unwrap_or_default()
                .to_owned(),
        );
    }
    bar.finish_and_clear();
    let status = child.wait()?;
    if !status.success() {
        let text = fs::read_to_string(log).unwrap_or_default();
        bail!("make failed ({status})\n{}", last_lines(&text, 30));
    }
    Ok(())
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Installs the kernel, its modules and modprobe's index into `finished`.
fn install(source: &Path, finished: &Path) -> Result<()> {
    fs::create_dir_all(finished)?;
    let mut modules = make(source);
    modules
        .args(["-s", "modules_install", "INSTALL_MOD_STRIP=1"])
        .arg(format!("INSTALL_MOD_PATH={}", finished.display()))
        .stdout(Stdio::null());
    process::run(&mut modules)?;
    for release in fs::read_dir(finished.join("lib/modules"))?.flatten() {
        // Symbolic links to the source, which is deleted after the build.
        for link in ["build", "source"] {
            drop(fs::remove_file(release.path().join(link)));
        }
    }
    fs::copy(source.join("linux"), finished.join("linux"))?;
    process::run(
        Command::new("strip")
            .arg("--strip-debug")
            .arg(finished.join("linux")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_setting_is_in_the_configuration() {
        for setting in REQUIRED {
            assert!(CONFIG.lines().any(|line| line == setting), "{setting}");
        }
    }

    #[test]
    fn configuration_option_is_set_once() {
        let mut names: Vec<&str> = CONFIG
            .lines()
            .filter_map(|line| line.split_once('=').map(|(name, _)| name))
            .collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn register_state_of_amx_fits_in_an_old_source_and_newer_ones_stay() {
        let source = tempfile::tempdir().unwrap();
        let file = source.path().join(REGISTER_STATE.file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let old = "#ifdef FP_XSTATE_MAGIC1\n\tDEFINE_LONGS(HOST_FP_SIZE, 2696);\n#endif\n";
        for (before, after) in [
            (old, old.replace("2696", "11008")),
            ("nothing\n", "nothing\n".to_owned()),
        ] {
            fs::write(&file, before).unwrap();
            REGISTER_STATE.apply(source.path()).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), after);
        }
    }

    #[test]
    fn getcpu_is_added_to_a_source_without_it_and_others_stay() {
        let of = |between: &str| format!("\t\t__vdso_gettimeofday;\n{between}\t\ttime;\n");
        let old = of("\t\tgetcpu;\n\t\t__vdso_getcpu;\n");
        for (before, after) in [(old.clone(), old), (of(""), of("\t\t__vdso_getcpu;\n"))] {
            assert_eq!(GETCPU_EXPORT.in_text(&before), after);
        }
        let code = GETCPU.in_text("#include <vdso/gettime.h>\n#include <linux/time.h>\n");
        assert!(
            code.contains(r#"\n\tmov $309, %eax\n\tsyscall\n"#),
            "{code}"
        );
    }

    #[test]
    fn built_in_of_incomplete_folder_is_none() {
        let home = tempfile::tempdir().unwrap();
        assert!(built_in(home.path()).is_none());
        fs::create_dir_all(home.path().join("lib/modules/6.12.1-rdma")).unwrap();
        assert!(built_in(home.path()).is_none());
        fs::write(home.path().join("linux"), "").unwrap();
        assert_eq!(built_in(home.path()).unwrap().release(), "6.12.1-rdma");
    }

    #[test]
    fn last_lines_of_short_text_is_the_text() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a\n", 2), "a");
    }
}
