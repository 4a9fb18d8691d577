//! Running one command on each of two guests.

use std::process::Command;

/// What the two commands printed.
pub(crate) struct Printed {
    pub(crate) a: Vec<String>,
    pub(crate) b: Vec<String>,
}

/// Runs `a` and `b` on two guests with a device of that kind. Both must succeed.
pub(crate) fn run(device: &str, a: &str, b: &str) -> Printed {
    let xtask = std::env::var_os("XTASK").expect("run these tests with `cargo xtask test`");
    let output = Command::new(xtask)
        .args([
            "soft-roce",
            "run",
            "--timeout",
            "60",
            "--device",
            device,
            "--a",
            a,
            "--b",
            b,
        ])
        .output()
        .expect("xtask cannot be run");
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
