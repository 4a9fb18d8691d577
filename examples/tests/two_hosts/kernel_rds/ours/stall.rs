//! A reader that stops in the middle of messages.

use std::process::Command;

use anyhow::{Result, ensure};

/// Stops this process until its device has sent RNR NAKs for a while.
pub(super) fn stall() -> Result<()> {
    let own = rustix::process::getpid();
    let counter = "cat /sys/class/infiniband/*/ports/1/hw_counters/send_rnr_err";
    let script = format!(
        "before=$({counter}); for i in $(seq 600); do [ $({counter}) = $before ] || break; sleep 0.1; done; \
         sleep 3; kill -CONT {own}; [ $({counter}) != $before ]",
        own = own.as_raw_nonzero()
    );
    let mut waits = Command::new("sh").args(["-c", &script]).spawn()?;
    rustix::process::kill_process(own, rustix::process::Signal::STOP)?;
    ensure!(waits.wait()?.success(), "no message came too early");
    Ok(())
}
