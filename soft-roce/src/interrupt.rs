//! Signal handler for Ctrl-C, SIGTERM and SIGHUP: cleans up, then exits with 128 plus the signal number.

use std::thread;

use anyhow::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::process;

/// Installs the signal handler. A signal then leaves no child process and no scratch folder behind.
///
/// # Errors
///
/// The signals cannot be handled, or no thread can be started.
pub fn install() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                let _nothing_starts_any_more = process::clear_away();
                leave(signal);
            }
        })?;
    Ok(())
}

#[expect(
    clippy::exit,
    reason = "the main thread may be blocked without a time limit"
)]
fn leave(signal: i32) -> ! {
    std::process::exit(128 + signal)
}
