//! The stage *ARM64* of `ci`: the workspace is checked for this architecture, and tests without a kernel's device run under QEMU's
//! emulation of its instructions.
//!
//! The emulation keeps the memory order of x86-64: orders that only ARM64 has are the subject of loom and Miri.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use soft_roce::backend::Backend;
use soft_roce::setup::{self, Group};
use soft_roce::{Run, process};

use super::guests::device_script;
use super::{Options, Program, Suite, with_brief_suite};
use crate::left_out;
use crate::outcomes::Outcomes;
use crate::output;
use crate::stack::Stack;
use crate::stage::{Counts, Stages};
use crate::workspace::Workspace;

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// The cross compiler, which is the linker too.
const COMPILER: &str = "aarch64-linux-gnu-gcc";

const EMULATOR: &str = "qemu-aarch64";

/// Folder of the C library for ARM64, in Debian's packages.
const ROOT: &str = "/usr/aarch64-linux-gnu";

/// Folders of rdma-core's headers, which are those of all architectures, below `/usr/include`.
const HEADERS: [&str; 2] = ["infiniband", "rdma"];

/// Packages without a device, whose tests run.
const PACKAGES: [&str; 2] = ["rdma-rsocket-proto", "rdma-rds-proto"];

/// Integration tests of these packages, besides the unit tests.
const TESTS: [&str; 2] = ["simulator", "fuzz"];

/// Integration tests of softnic that run, besides the unit tests: its engine, its connection manager, and the device tests of
/// `verbs`.
const TESTS_OF_SOFTNIC: [&str; 3] = ["engine", "manager", "verbs_suite"];

/// The -sys crates: package, and folder.
const BINDINGS: [(&str, &str); 4] = [
    ("rdma-ibverbs-sys", "ibverbs-sys"),
    ("rdmacm-sys", "rdmacm-sys"),
    ("rdma-efa-sys", "efa-sys"),
    ("rdma-mlx5-sys", "mlx5-sys"),
];

/// Runs the stage, if the tools are there; otherwise prints the reason.
pub(crate) fn run_stage(workspace: &Workspace, stages: &mut Stages) {
    if let Err(error) = require() {
        output::print(format_args!("nothing was built for ARM64: {error:#}"));
        return;
    }
    with_brief_suite(workspace, |suite| {
        stages.test("ARM64", |counts| suite.arm64(counts));
    });
}

/// Requires the tools, and installs Rust's standard library for the target.
fn require() -> Result<()> {
    if cfg!(target_arch = "aarch64") {
        bail!("this host is one, where the other stages test it");
    }
    for tool in [COMPILER, EMULATOR] {
        ensure!(
            process::find_program(tool).is_some(),
            "{tool} is not installed"
        );
    }
    let mut list = Command::new("rustup");
    list.args(["target", "list", "--installed"]);
    if process::output(&mut list)?
        .lines()
        .any(|line| line == TARGET)
    {
        return Ok(());
    }
    process::run(Command::new("rustup").args(["target", "add", TARGET]))
        .context("rustup cannot install the target's standard library")
}

/// Packages with device tests that run in a guest of this architecture.
const IN_GUEST: [&str; 4] = ["rdma-verbs", "rdma-cm", "rdma-rsocket", "rdma-rds"];

/// Packages of the guest's root file system.
const IN_ROOT: [&str; 15] = [
    "busybox-static",
    "coreutils",
    "dash",
    "grep",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "kmod",
    "libgcc-s1",
    "libibverbs-dev",
    "librdmacm-dev",
    "mount",
    "rdmacm-utils",
    "sed",
    "util-linux",
];

/// Folders of libraries in the guest's root file system.
const LIBRARIES: [&str; 2] = ["lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu"];

/// Runs the device tests in a guest, under the emulation of a whole machine.
pub(super) fn run_in_guest(
    workspace: &Workspace,
    options: &Options,
    stack: &Stack,
    stages: &mut Stages,
) -> Result<()> {
    setup::ensure(&[Group::Arm64, Group::Arm64Guests])?;
    require()?;
    let options = &Options {
        backend: Backend::Qemu,
        ..options.clone()
    };
    let suite = Suite {
        workspace,
        options,
        stack,
    };
    stages.test("ARM64 guest", |counts| suite.arm64_guest(counts));
    Ok(())
}

/// The guest's root file system in `target`, made if it is not there with these packages.
fn root(target: &Path) -> Result<PathBuf> {
    let packages = IN_ROOT.join(",");
    let (root, list) = (
        target.join("arm64-root"),
        target.join("arm64-root.packages"),
    );
    if fs::read_to_string(&list).is_ok_and(|found| found == packages) {
        return Ok(root);
    }
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("cannot remove {}", root.display()))?;
    }
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let suite = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let suite = suite.context("this system is not Debian, whose packages are in the root")?;
    let mut command = Command::new("mmdebstrap");
    command.args(["--quiet", "--architectures=arm64", "--variant=extract"]);
    command
        .arg(format!("--include={packages}"))
        .arg(suite)
        .arg(&root);
    process::run(&mut command)?;
    fs::write(&list, packages)?;
    Ok(root)
}

impl Suite<'_> {
    fn arm64_guest(&self, counts: &mut Counts) -> Result<()> {
        let root = root(self.workspace.target())?;
        let [core, libraries] = LIBRARIES.map(|folder| root.join(folder).display().to_string());
        let mut tests = self.cross();
        tests.args([
            "test", "--locked", "--no-run", "--target", TARGET, "--test", "device",
        ]);
        tests.args(IN_GUEST.iter().flat_map(|name| ["--package", name]));
        tests
            .arg("--target-dir")
            .arg(self.workspace.target().join("arm64-guest"));
        for name in ["IBVERBS", "RDMACM", "EFA", "MLX5"] {
            tests.env(format!("{name}_LIB_DIR"), &libraries);
            tests.env(format!("{name}_INCLUDE_DIR"), root.join("usr/include"));
        }
        let flags = format!("-Clink-arg=-Wl,-rpath-link={core}:{libraries}");
        tests.env(format!("{}_RUSTFLAGS", cargo_name()), flags);
        let mut programs = self.build(&mut tests, |test| test == "device")?;
        programs.sort_by(|a, b| a.library.cmp(&b.library));
        let limit = self.limit(60, 120);
        let filter: Vec<&str> = self.options.filter.as_deref().into_iter().collect();
        let plan = |programs: &[Program]| {
            let script = device_script(programs, |_| filter.clone(), limit / 2)?;
            Ok(Run::single(script)
                .memory_mib(2048)
                .root(root.clone())
                .timeout(limit))
        };
        self.in_guests(&programs, plan, counts, &mut Outcomes::default())
    }

    fn arm64(&self, counts: &mut Counts) -> Result<()> {
        let mut check = self.cross();
        check.args([
            "check",
            "--quiet",
            "--locked",
            "--workspace",
            "--target",
            TARGET,
        ]);
        process::run(&mut check)?;
        let mut tests = self.cross();
        tests.args(["test", "--locked", "--no-fail-fast", "--target", TARGET]);
        tests.args(PACKAGES.iter().flat_map(|name| ["--package", name]));
        tests.arg("--lib");
        tests.args(TESTS.iter().flat_map(|name| ["--test", name]));
        self.run_counting(&mut tests, counts, &mut Outcomes::default())?;
        let mut tests = self.cross();
        tests.args(["test", "--locked", "--no-fail-fast", "--target", TARGET]);
        tests.args(["--package", "softnic", "--lib"]);
        tests.args(TESTS_OF_SOFTNIC.iter().flat_map(|name| ["--test", name]));
        tests.arg("--");
        tests.args(left_out::arguments(left_out::Run::Arm64, "softnic"));
        self.run_counting(&mut tests, counts, &mut Outcomes::default())?;
        self.bindings_for_arm64(counts)
    }

    /// Compares the bindings with the headers, as the C compiler for ARM64 reads them: the layout of each type, and the
    /// checked-in definitions.
    fn bindings_for_arm64(&self, counts: &mut Counts) -> Result<()> {
        let target = self.workspace.target().join("arm64");
        let include = headers(&target)?;
        let mut tests = self.cross();
        tests.args(["test", "--locked", "--no-fail-fast", "--test", "layout"]);
        tests.args(BINDINGS.iter().flat_map(|(name, _)| ["--package", name]));
        tests.args(["--target", TARGET, "--features", "bindgen", "--target-dir"]);
        tests.arg(&target);
        for name in ["IBVERBS", "RDMACM", "EFA", "MLX5"] {
            tests.env(format!("{name}_INCLUDE_DIR"), &include);
        }
        tests.env("CC", COMPILER).env("CC_RUNNER", runner());
        self.run_counting(&mut tests, counts, &mut Outcomes::default())?;
        for (package, folder) in BINDINGS {
            let path = self.workspace.root().join(folder).join("src/bindings.rs");
            let checked_in = read(&path)?;
            let generated = read(&newest_bindings(&target, package)?)?;
            ensure!(
                definitions(&checked_in) == definitions(&generated),
                "{} has other definitions than the headers on ARM64",
                path.display()
            );
        }
        Ok(())
    }

    /// A cargo command that builds for ARM64, and runs programs in the emulator.
    fn cross(&self) -> Command {
        let mut cargo = self.cargo();
        cargo.env(format!("{}_LINKER", cargo_name()), COMPILER);
        cargo.env(format!("{}_RUNNER", cargo_name()), runner());
        cargo.env(format!("CC_{}", TARGET.replace('-', "_")), COMPILER);
        cargo
    }
}

/// Prefix of cargo's variables for the target.
fn cargo_name() -> String {
    let name = TARGET.replace('-', "_");
    format!("CARGO_TARGET_{}", name.to_uppercase())
}

/// The command that runs a program for ARM64.
fn runner() -> String {
    format!("{EMULATOR} -L {ROOT}")
}

/// A folder with rdma-core's headers only: headers of the C library beside them are those of this host.
fn headers(target: &Path) -> Result<PathBuf> {
    let folder = target.join("include");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for name in HEADERS {
        let link = folder.join(name);
        if !link.exists() {
            symlink(Path::new("/usr/include").join(name), &link)
                .with_context(|| format!("cannot create {}", link.display()))?;
        }
    }
    Ok(folder)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The bindings that the last build of a package generated.
fn newest_bindings(target: &Path, package: &str) -> Result<PathBuf> {
    let builds = target.join(TARGET).join("debug/build");
    let folders = fs::read_dir(&builds)
        .with_context(|| format!("cannot read {}", builds.display()))?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(package));
    let files = folders.map(|entry| entry.path().join("out/bindings.rs"));
    let newest = files
        .filter_map(|file| Some((file.metadata().ok()?.modified().ok()?, file)))
        .max();
    newest
        .map(|(_, file)| file)
        .with_context(|| format!("no bindings of {package} were generated"))
}

/// The text of bindings without comments, white space and commas, which depend on rustfmt, and without the assertions of
/// layouts, which the compiler checks.
fn definitions(bindings: &str) -> String {
    let mut blocks = bindings.split("const _: () = {");
    let first = blocks.next().unwrap_or_default().to_owned();
    let rest = blocks.filter_map(|block| block.split_once("};"));
    let text = rest.fold(first, |text, (_, after)| text + after);
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(line))
        .filter(|line| !line.contains("#[cfg(target_arch") && !line.contains("#[allow(clippy"));
    let characters = lines.flat_map(str::chars);
    characters
        .filter(|c| !c.is_whitespace() && *c != ',')
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_differ_by_a_field_and_not_by_layout_or_format() {
        let checked_in = "// rdma-core 44\npub struct a {\n    pub x: u8,\n}\n#[cfg(target_arch = \"x86_64\")]\n\
            const _: () = {\n    [\"Size of a\"][size_of::<a>() - 1usize];\n};\npub struct b;\n";
        let generated = "pub struct a { pub x: u8 }\nconst _: () = { [\"Size of a\"][size_of::<a>() - 2usize]; };\n\
            pub struct b;";
        assert_eq!(definitions(checked_in), definitions(generated));
        let other = generated.replace("u8", "u16");
        assert_ne!(definitions(checked_in), definitions(&other));
    }
}
