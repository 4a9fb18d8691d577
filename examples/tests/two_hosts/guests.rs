//! Running one command on each of two guests.

use std::process::{Command, Output};

/// What the two commands printed.
pub(crate) struct Printed {
    pub(crate) a: Vec<String>,
    pub(crate) b: Vec<String>,
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
    // The kernel's `siw_accept` answers the peer before it listens to it, so a peer that is quick,
    // and a guest that is slow, can wait for each other for ever.
    for _ in 0..2 {
        if options.contains(&"siw") && output.status.code() == Some(TIMED_OUT) {
            output = start();
        }
    }
    printed(output)
}

/// The exit code of a run that takes too long.
const TIMED_OUT: i32 = 124;

fn start(options: &[&str], seconds: u32, a: &str, b: &str) -> Output {
    let xtask = std::env::var_os("XTASK").expect("run these tests with `cargo xtask test`");
    Command::new(xtask)
        .args(["soft-roce", "run", "--timeout", &seconds.to_string()])
        .args(options)
        .args(["--a", a, "--b", b])
        .output()
        .expect("xtask cannot be run")
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
