//! Start and end messages of the tools.

#![expect(clippy::print_stdout, reason = "of programs for the terminal")]

use std::process::ExitCode;

use crate::pingpong::options::finish;

/// Runs a program, and prints the start and end messages of rdmacm-utils.
pub fn with_messages(program: &str, run: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    println!("{program}: start");
    let outcome = run();
    println!("{program}: end {}", if outcome.is_ok() { 0 } else { -1 });
    finish(outcome)
}
