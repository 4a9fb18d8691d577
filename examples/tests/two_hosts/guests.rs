//! Running one command on each of two guests.

#![expect(clippy::print_stdout, reason = "why a run was not the first")]

use std::{
    fmt::Display,
    process::{Command, Output},
};

/// What the two commands printed.
pub(crate) struct Printed {
    pub(crate) a: Vec<String>,
    pub(crate) b: Vec<String>,
}

/// A command whose lines begin with a name, and whose exit code is the last of them.
pub(crate) fn named(name: impl Display, command: &str) -> String {
    format!("{{ {command} 2>&1; echo \"exit $?\"; }} | sed 's/^/{name}: /'")
}

/// The lines that begin with a name, without it.
pub(crate) fn lines_of(lines: &[String], name: impl Display) -> Vec<&str> {
    let prefix = format!("{name}: ");
    lines
        .iter()
        .filter_map(|line| line.strip_prefix(&prefix))
        .collect()
}

/// Runs `a` and `b` on two guests with a device of that kind. Both must succeed.
pub(crate) fn run(device: &str, a: &str, b: &str) -> Printed {
    run_for(120, device, a, b)
}

/// As [`run`], but for so many seconds at most.
pub(crate) fn run_for(seconds: u32, device: &str, a: &str, b: &str) -> Printed {
    run_with(&["--device", device], seconds, a, b)
}

/// As [`run_for`], with what `soft-roce run` is to be told besides.
pub(crate) fn run_with(options: &[&str], seconds: u32, a: &str, b: &str) -> Printed {
    let start = || start(options, seconds, a, b);
    let mut output = start();
    for _ in 0..2 {
        let is_kernels = match output.status.code() {
            // The kernel's `siw_accept` answers the peer before it listens to it, so a peer that is
            // quick, and a guest that is slow, can wait for each other for ever.
            Some(TIMED_OUT) => options.contains(&"siw"),
            // Seen once in many runs: the kernel whose RDS has been in use says `BUG:`. It gives pages back
            // where it must not wait, and waits for one (`rds_rdma_free_op`). Often nothing comes any more then,
            // and a program's exit code for that is the run's.
            Some(code) => {
                options.contains(&"--rds") && (code == AT_FAULT || tells_of_a_fault(&output))
            }
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
    printed(output)
}

/// As [`run_with`], but both commands run on one guest at once, whose two addresses are then the same.
/// Messages get there and back in a tenth of the time.
pub(crate) fn run_on_one(options: &[&str], seconds: u32, a: &str, b: &str) -> Printed {
    let both = format!(
        "( {a}\n) > /tmp/said.a & ( {b}\n) > /tmp/said.b && wait $! && \
         sed 's/^/a| /' /tmp/said.a && sed 's/^/b| /' /tmp/said.b"
    );
    // Each side polls on a processor of its own.
    let output = soft_roce(seconds, Some("2"), options)
        .args(["--", &both])
        .output();
    printed(output.expect("xtask cannot be run"))
}

/// The exit code of a run that takes too long.
const TIMED_OUT: i32 = 124;

/// The exit code of a run in which a guest's kernel is at fault, and no command has failed.
const AT_FAULT: i32 = 125;

/// The options for the distribution's kernel instead of User-Mode Linux' 6.12.
pub(crate) const LINUX_6_1: &[&str] = &["--backend", "qemu"];

/// Whether a guest's kernel was at fault before a command failed.
fn tells_of_a_fault(output: &Output) -> bool {
    String::from_utf8_lossy(&output.stderr).contains("the kernel is at fault")
}

fn start(options: &[&str], seconds: u32, a: &str, b: &str) -> Output {
    // Emulated, a second processor costs more than it helps. With the kernel's RDS it is there for the threads of both
    // to get in each other's way.
    let cpus = (!options.contains(&"--rds")).then_some("1");
    soft_roce(seconds, cpus, options)
        .args(["--a", a, "--b", b])
        .output()
        .expect("xtask cannot be run")
}

/// The program that runs guests, without what they are to do.
fn soft_roce(seconds: u32, cpus: Option<&str>, options: &[&str]) -> Command {
    let xtask = std::env::var_os("XTASK").expect("run these tests with `cargo xtask test`");
    let mut command = Command::new(xtask);
    command.args(["soft-roce", "run", "--timeout", &seconds.to_string()]);
    if let Some(cpus) = cpus {
        command.args(["--cpus", cpus]);
    }
    // Soft-iWARP of Linux 6.12 completes one send of thirty twice, or with an error, when the peer disconnects right
    // after it has received; that of the distribution's 6.1 does not.
    if options.contains(&"siw") {
        command.args(LINUX_6_1);
    }
    command.args(options);
    command
}

fn printed(output: Output) -> Printed {
    let stdout = String::from_utf8(output.stdout).expect("the guests printed something else");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}\n{stdout}\n{stderr}",
        output.status
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
