//! `softnic check` with a program in C: a fault is reported with function and line, and the corrected program is silent.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "other tests use the rest")]
mod program;

use std::{
    path::{Path, PathBuf},
    process::Output,
};

use program::{addr, compile, source};

/// Builds a program.
fn build(folder: &Path, name: &str) -> PathBuf {
    compile(folder, &source(name), &["-O1", "-Wall"])
}

/// Runs a program on a host by `softnic check`, with options of the command and arguments of the program.
fn check(program: &Path, host: u8, options: &[&str], args: &[&str]) -> Output {
    let options = [&["--seed", "7"], options].concat();
    program::check(addr(50, host), &options, program, args)
}

#[cfg_attr(without_programs, ignore = "needs rdma-core's headers and libraries")]
#[test]
fn fault_of_a_program_in_c_is_reported_with_function_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path(), "reuse");
    let faulty = check(&program, 2, &[], &["early"]);
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

    let other = check(&program, 3, &["--error-exitcode", "3"], &["early"]);
    assert_eq!(other.status.code(), Some(3));
    let correct = check(&program, 4, &[], &[]);
    assert_eq!(correct.status.code(), Some(0), "{correct:?}");
    assert!(correct.stderr.is_empty(), "{correct:?}");
}

#[cfg_attr(without_programs, ignore = "needs rdma-core's headers and libraries")]
#[test]
fn rules_of_an_adversary_are_an_option() {
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path(), "reuse");
    let correct = check(&program, 5, &["--adversary", "7"], &[]);
    assert_eq!(correct.status.code(), Some(0), "{correct:?}");
    let unknown = check(&program, 6, &["--adversary", "7:kind"], &[]);
    let errors = String::from_utf8_lossy(&unknown.stderr);
    assert!(errors.contains("no rule is named `kind`"), "{errors}");
}

#[cfg_attr(without_programs, ignore = "needs rdma-core's headers and libraries")]
#[test]
fn child_that_uses_objects_of_its_parent_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path(), "fork");
    let faulty = check(&program, 7, &[], &[]);
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
    let correct = check(&program, 8, &[], &["none"]);
    assert_eq!(correct.stdout, b"0\n", "{correct:?}");
    assert!(correct.stderr.is_empty(), "{correct:?}");
}
