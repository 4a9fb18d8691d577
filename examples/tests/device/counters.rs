//! Output of `counters`.

use std::process::{Command, Output};

fn counters(args: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_counters"));
    program.args(args).output().unwrap()
}

#[test]
fn counters_prints_the_requested_number_of_tables() {
    let output = counters(&["-n", "3", "-i", "0.01", "--all"]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}");
    let titles = printed.lines().filter(|line| line.contains("per second"));
    assert_eq!(titles.count(), 3, "{printed}");
}

#[test]
fn counters_of_a_missing_device_fails() {
    let output = counters(&["-d", "no such device", "-n", "1"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("no RDMA device has this name"), "{error}");
    assert!(!output.status.success());
}
