//! Programs that say when they start, and how they have ended.

#![expect(clippy::print_stdout, reason = "of programs for the terminal")]

use std::process::ExitCode;

use crate::pingpong::options::finish;

/// Runs a program in the words of rdmacm-utils.
pub fn announced(program: &str, run: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    println!("{program}: start");
    let outcome = run();
    println!("{program}: end {}", if outcome.is_ok() { 0 } else { -1 });
    finish(outcome)
}
