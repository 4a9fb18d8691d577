//! Runs one command on each of two guests.

#![expect(clippy::print_stdout, reason = "why a run was not the first")]

use std::{
    fmt::Display,
    process::{Command, Output},
};

/// Output of the two commands.
pub(crate) struct Printed {
    pub(crate) a: Vec<String>,
    pub(crate) b: Vec<String>,
}

/// Prefixes a command's lines with a name, and prints the exit code last.
pub(crate) fn named(name: impl Display, command: &str) -> String {
    format!("{{ {command} 2>&1; echo \"exit $?\"; }} | sed 's/^/{name}: /'")
}

/// Lines starting with a name, without the name.
pub(crate) fn lines_of(lines: &[String], name: impl Display) -> Vec<&str> {
    let prefix = format!("{name}: ");
    lines
        .iter()
        .filter_map(|line| line.strip_prefix(&prefix))
        .collect()
}

/// Runs `a` and `b` on two guests with a device of kind `device`. Both must succeed.
pub(crate) fn run(device: &str, a: &str, b: &str) -> Printed {
    run_for(120, device, a, b)
}

/// Like [`run`], with a timeout in seconds.
pub(crate) fn run_for(seconds: u32, device: &str, a: &str, b: &str) -> Printed {
    run_with(&["--device", device], seconds, a, b)
}

/// Like [`run_for`], with further options of `soft-roce run`.
pub(crate) fn run_with(options: &[&str], seconds: u32, a: &str, b: &str) -> Printed {
    printed(repeated(options, seconds, a, b))
}

/// Like [`run_with`], of commands that a guest's kernel may not survive. `None` if one crashed, or hung after b had printed
/// the line `sign`.
pub(crate) fn run_unless_kernel_dies(
    options: &[&str],
    seconds: u32,
    a: &str,
    b: &str,
    sign: &str,
) -> Option<Printed> {
    let output = start(options, seconds, a, b);
    let text = String::from_utf8_lossy(&output.stdout);
    let has_sign = text
        .lines()
        .any(|line| line.strip_prefix("b| ") == Some(sign));
    let hangs = has_sign && output.status.code() == Some(TIMED_OUT);
    (!hangs && !is_at_fault(&output)).then(|| printed(output))
}

/// Output of the two commands. Runs affected by known faults of kernels are repeated.
fn repeated(options: &[&str], seconds: u32, a: &str, b: &str) -> Output {
    let start = || start(options, seconds, a, b);
    let mut output = start();
    for _ in 0..2 {
        let is_kernels = match output.status.code() {
            // The kernel's `siw_accept` answers the peer before listening to the socket, so a fast peer and a
            // slow guest can wait for each other without end.
            Some(TIMED_OUT) => options.contains(&"siw"),
            // Rare: a process of User-Mode Linux is killed while the guest powers off, after the commands.
            Some(AT_FAULT) if complaints_contain(&output, "while the guest was powering off") => {
                true
            }
            // Rare: a kernel with RDS in use reports `BUG:`, because `rds_rdma_free_op` releases pages, which
            // can sleep, in atomic context. Often no further output follows, and a program's exit code for
            // this condition becomes the run's.
            Some(_) => options.contains(&"--rds") && is_at_fault(&output),
            None => false,
        };
        if is_kernels {
            println!(
                "once more, after:\n{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            output = start();
        }
    }
    output
}

/// Like [`run_with`], but both commands run concurrently on one guest with a single address. Round trips take
/// a tenth of the time.
pub(crate) fn run_on_one(options: &[&str], seconds: u32, a: &str, b: &str) -> Printed {
    let both = format!(
        "( {a}\n) > /tmp/said.a & ( {b}\n) > /tmp/said.b && wait $! && \
         sed 's/^/a| /' /tmp/said.a && sed 's/^/b| /' /tmp/said.b"
    );
    // Each side polls on a processor of its own.
    let output = soft_roce(seconds, Some("2"), options)
        .args(["--", &reachable(&both)])
        .output();
    printed(output.expect("xtask cannot be run"))
}

/// Exit code of a run after the timeout.
const TIMED_OUT: i32 = 124;

/// Exit code of a run with a fault of a guest's kernel, and no failed command.
const AT_FAULT: i32 = 125;

/// Variable with the machine of the guests.
const BACKEND: &str = "SOFT_ROCE_BACKEND";

/// Variable with the kernel of the stack.
const KERNEL: &str = "SOFT_ROCE_KERNEL";

/// Options for the distribution's kernel instead of User-Mode Linux 6.12 or the kernel of the stack.
pub(crate) const LINUX_6_1: &[&str] = &["--backend", "qemu"];

/// Whether a guest's kernel is at fault. The exit code may be that of a command.
fn is_at_fault(output: &Output) -> bool {
    output.status.code() == Some(AT_FAULT) || complaints_contain(output, "the kernel is at fault")
}

/// Whether the run's complaints about its guests contain this text.
fn complaints_contain(output: &Output, text: &str) -> bool {
    String::from_utf8_lossy(&output.stderr).contains(text)
}

/// A text as one word of a shell.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Root of this checkout, from the folder of a package with tests on two hosts.
fn root() -> &'static str {
    let package = env!("CARGO_MANIFEST_DIR");
    let root = package.strip_suffix("/examples");
    root.or_else(|| package.strip_suffix("/softnic/capi"))
        .unwrap_or(package)
}

/// Link to [`root`] in the guests.
const LINK: &str = "/tmp/checkout";

/// A command that names programs and libraries of this checkout by a link without spaces and quotation marks. `LD_PRELOAD`
/// supports neither.
pub(crate) fn by_link(command: &str) -> String {
    command.replace(root(), LINK)
}

/// A command [`by_link`], after making the link.
fn reachable(command: &str) -> String {
    format!("ln -sfn {} {LINK}\n{}", quoted(root()), by_link(command))
}

fn start(options: &[&str], seconds: u32, a: &str, b: &str) -> Output {
    // Under emulation, a second processor costs more time than saved. With the kernel's RDS, a second one is
    // needed for races between threads of both.
    let cpus = (!options.contains(&"--rds")).then_some("1");
    soft_roce(seconds, cpus, options)
        .args(["--a", &reachable(a), "--b", &reachable(b)])
        .output()
        .expect("xtask cannot be run")
}

/// The program for guests, without a command.
fn soft_roce(seconds: u32, cpus: Option<&str>, options: &[&str]) -> Command {
    let xtask = std::env::var_os("XTASK").expect("run these tests with `cargo xtask test`");
    let mut command = Command::new(xtask);
    command.args(["soft-roce", "run", "--timeout", &seconds.to_string()]);
    if let Some(cpus) = cpus {
        command.args(["--cpus", cpus]);
    }
    // Soft-iWARP of User-Mode Linux's default, 6.12, completes one of thirty sends twice, or with an error, when the
    // peer disconnects right after receiving; the distribution's 6.1 and Linux 7.2 do not.
    let is_default_uml = std::env::var(BACKEND).is_ok_and(|backend| backend == "uml")
        && std::env::var(KERNEL).map_or(true, |kernel| kernel == "6.12");
    let mut options = options.to_vec();
    if options.contains(&"siw") && is_default_uml {
        options.extend(["--kernel", "newest"]);
    }
    if options.ends_with(LINUX_6_1) {
        command.env_remove(KERNEL);
    }
    command.args(options);
    command
}

fn printed(output: Output) -> Printed {
    let stdout = String::from_utf8(output.stdout).expect("the guests printed something else");
    let stderr = String::from_utf8_lossy(&output.stderr);
    // A log may keep only the first line of a failure.
    let last = |prefix: &str| {
        let mut lines = stdout.lines().rev();
        lines.find(|line| line.starts_with(prefix)).unwrap_or("-")
    };
    assert!(
        output.status.success(),
        "{}; {}; {}; {}\n{stdout}\n{stderr}",
        output.status,
        last("a| "),
        last("b| "),
        stderr.lines().last().unwrap_or("-")
    );
    let of = |prefix: &str| {
        stdout
            .lines()
            .filter_map(|line| line.strip_prefix(prefix))
            .map(str::to_owned)
            .collect()
    };
    Printed {
        a: of("a| "),
        b: of("b| "),
    }
}
