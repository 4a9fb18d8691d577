//! Ctrl-C and its relatives: clears everything away, then exits as a shell expects.

use std::thread;

use anyhow::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::process;

/// Installs the handler; from now on a signal leaves no child and no scratch folder behind.
pub(crate) fn install() -> Result<()> {
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
    reason = "the main thread may be waiting for something that never comes"
)]
fn leave(signal: i32) -> ! {
    std::process::exit(128 + signal)
}
