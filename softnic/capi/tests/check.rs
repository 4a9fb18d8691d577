//! `softnic check` with a program in C: a fault is reported with function and line, and the corrected program is silent.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    path::Path,
    process::{self, Command, Output},
};

/// Builds a program with debug information.
fn build(folder: &Path, name: &str) {
    let source = format!("{}/tests/check/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let mut compiler = Command::new("cc");
    let compiler = compiler.args(["-g", "-O1", "-Wall", "-o"]);
    let compiler = compiler.arg(folder.join(name)).arg(source).arg("-libverbs");
    assert!(compiler.status().unwrap().success());
}

/// Runs the program `reuse` by `softnic check`, with options of the command and arguments of the program.
fn check(folder: &Path, host: u8, options: &[&str], args: &[&str]) -> Output {
    check_program(&folder.join("reuse"), host, options, args)
}

/// Runs a program by `softnic check`.
fn check_program(program: &Path, host: u8, options: &[&str], args: &[&str]) -> Output {
    let [.., run] = process::id().to_be_bytes();
    let addr = format!("127.{}.40.{host}", 64 | run & 0x3f);
    let mut command = Command::new(env!("CARGO_BIN_EXE_softnic"));
    command
        .args(["check", "--seed", "7", "--addr", &addr])
        .args(options);
    command.arg("--").arg(program).args(args);
    command.output().unwrap()
}

#[cfg_attr(without_programs, ignore = "needs rdma-core's headers and libraries")]
#[test]
fn fault_of_a_program_in_c_is_reported_with_function_and_line() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path(), "reuse");
    let faulty = check(folder.path(), 2, &[], &["early"]);
    let report = String::from_utf8_lossy(&faulty.stderr);
    for expected in [
        "softnic: send memory changed while posted",
        "was 0x00 when request 2, a send of queue pair",
        "is 0x07 before its completion has been polled",
        "posted or made by main (",
        "reuse.c:73",
        "found in a call by main (",
        "rule: ibv_post_send(3)",
        "repeat with SOFTNIC_SEED=7",
    ] {
        assert!(report.contains(expected), "{expected}: {report}");
    }
    assert_eq!(report.matches("softnic: ").count(), 1, "{report}");
    assert_eq!(faulty.stdout, b"done\n", "the streams are flushed");
    assert_eq!(faulty.status.code(), Some(99));

    let other = check(folder.path(), 3, &["--error-exitcode", "3"], &["early"]);
    assert_eq!(other.status.code(), Some(3));
    let correct = check(folder.path(), 4, &[], &[]);
    assert_eq!(correct.status.code(), Some(0), "{correct:?}");
    assert!(correct.stderr.is_empty(), "{correct:?}");
}

#[cfg_attr(without_programs, ignore = "needs rdma-core's headers and libraries")]
#[test]
fn rules_of_an_adversary_are_an_option() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path(), "reuse");
    let correct = check(folder.path(), 5, &["--adversary", "7"], &[]);
    assert_eq!(correct.status.code(), Some(0), "{correct:?}");
    let unknown = check(folder.path(), 6, &["--adversary", "7:kind"], &[]);
    let errors = String::from_utf8_lossy(&unknown.stderr);
    assert!(errors.contains("no rule is named `kind`"), "{errors}");
}

#[cfg_attr(without_programs, ignore = "needs rdma-core's headers and libraries")]
#[test]
fn child_that_uses_objects_of_its_parent_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path(), "fork");
    let program = folder.path().join("fork");
    let faulty = check_program(&program, 7, &[], &[]);
    let report = String::from_utf8_lossy(&faulty.stderr);
    for expected in [
        "softnic: object of the parent used in a child",
        "a child made by fork, uses an object of its parent",
        "found in a call by main (",
        "fork.c:31",
        "rule: ibv_fork_init(3)",
    ] {
        assert!(report.contains(expected), "{expected}: {report}");
    }
    assert_eq!(faulty.stdout, b"99\n", "the exit status of the child");
    let correct = check_program(&program, 8, &[], &["none"]);
    assert_eq!(correct.stdout, b"0\n", "{correct:?}");
    assert!(correct.stderr.is_empty(), "{correct:?}");
}
