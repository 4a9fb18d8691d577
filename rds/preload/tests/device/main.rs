//! Programs for the kernel's sockets, over a real device on one host.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{env, os::unix::fs::symlink, path::Path, process::Command};

/// Runs a part of `calls.c`, and checks for success.
fn call(part: &str) {
    let address = env::var("A").expect("this test runs in the guest: `cargo xtask test`");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/device/calls.c");
    let program = env::temp_dir().join("rds-calls");
    // Its folder is this guest's, and empty at first.
    if !program.exists() {
        let built = Command::new("cc")
            .args([
                "-std=gnu11",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-O2",
                "-pthread",
            ])
            .arg("-o")
            .arg(&program)
            .arg(source)
            .status()
            .unwrap();
        assert!(built.success());
    }
    // It is built beside this test program. A link, because the entries of `LD_PRELOAD` end at spaces and colons.
    let library = env::current_exe()
        .unwrap()
        .with_file_name("librdspreload.so");
    let link = env::temp_dir().join("librdspreload.so");
    if !link.exists() {
        symlink(library, &link).unwrap();
    }
    let ran = Command::new(program)
        .args([part, &address])
        .env("LD_PRELOAD", link)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{part}: {}: {errors}", ran.status);
    assert_eq!(ran.stdout, b"all is well\n");
}

#[test]
fn poll_for_write_is_woken_beside_other_pollers() {
    call("writers");
}

#[test]
fn poll_without_events_sleeps() {
    call("idle");
}

#[test]
fn ppoll_is_ended_by_unmasked_signals() {
    call("masks");
}

#[test]
fn library_threads_block_all_signals() {
    call("threads");
}

#[test]
fn blocked_call_is_restarted_only_with_sa_restart() {
    call("handlers");
}

#[test]
fn values_at_the_limits_have_the_results_of_the_kernel() {
    call("limits");
}

#[test]
fn bad_pointers_fail_with_efault_and_change_nothing() {
    call("pointers");
}

#[test]
fn cancelled_threads_leave_no_lock_behind() {
    call("cancellation");
}
