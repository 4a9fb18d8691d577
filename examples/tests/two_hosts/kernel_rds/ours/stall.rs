//! A reader that stops in the middle of messages.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Result, ensure};

/// Stops this process until its device has sent RNR NAKs for a while. The peer waits for a TCP connection to the
/// server's address before it sends; only a stopped process is connected.
pub(super) fn stall(at: SocketAddr) -> Result<()> {
    let local = rustix::process::getpid();
    let counter = "cat /sys/class/infiniband/*/ports/1/hw_counters/send_rnr_err";
    let script = format!(
        "until grep -q '^State:.*stopped' /proc/{local}/status; do sleep 0.1; done; before=$({counter}); \
         busybox nc -l -p {port} < /dev/null > /dev/null; for i in $(seq 600); do [ $({counter}) = $before ] || break; sleep 0.1; done; \
         sleep 3; kill -CONT {local}; [ $({counter}) != $before ]",
        local = local.as_raw_nonzero(),
        port = at.port(),
    );
    let mut waits = Command::new("sh").args(["-c", &script]).spawn()?;
    rustix::process::kill_process(local, rustix::process::Signal::STOP)?;
    ensure!(waits.wait()?.success(), "no message came too early");
    Ok(())
}
