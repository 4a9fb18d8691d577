//! Programs of the kernel's sockets, over a real device: what needs one host only.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{env, path::Path, process::Command};

/// Runs a part of `calls.c`, which says that all is well.
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
    // It is built beside this test program.
    let library = env::current_exe().unwrap();
    let ran = Command::new(program)
        .args([part, &address])
        .env("LD_PRELOAD", library.with_file_name("librdspreload.so"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{part}: {}: {errors}", ran.status);
    assert_eq!(ran.stdout, b"all is well\n");
}

#[test]
fn who_waits_to_send_is_woken_whatever_others_ask_for() {
    call("writers");
}

#[test]
fn who_waits_for_what_does_not_come_sleeps() {
    call("idle");
}

#[test]
fn signals_that_are_let_through_while_waiting_end_that() {
    call("masks");
}

#[test]
fn no_thread_of_the_library_takes_the_programs_signals() {
    call("threads");
}

#[test]
fn a_handler_ends_a_call_unless_calls_go_on_after_it() {
    call("handlers");
}
