//! The keeper as a process of its own: no child of the program that has started it, and without the program's descriptors.

use std::{
    env, io,
    net::IpAddr,
    os::fd::AsFd,
    process::{Command, Stdio},
};

use anyhow::{Context, Result};
use rustix::process::setsid;

/// Option of the second process.
pub(super) const DETACHED: &str = "--detached";

/// The first descriptor after standard error.
const FIRST: libc::c_uint = 3;

/// Starts the keeper in a second process, whose parent ends at once: the program has no child that it does not expect. The
/// standard input is the connection to the program.
pub(super) fn detach(addr: IpAddr) -> Result<()> {
    close_others();
    let command = env::current_exe().context("cannot find the command's own file")?;
    let mut keeper = Command::new(command);
    keeper.args(["keeper", DETACHED, &addr.to_string()]);
    keeper.stdin(Stdio::inherit());
    keeper.stdout(Stdio::null()).stderr(Stdio::null());
    // No folder of the program is in use.
    keeper.current_dir("/");
    keeper.spawn().context("cannot start the keeper")?;
    Ok(())
}

/// The connection to the first program, in the second process.
pub(super) fn connection() -> Result<std::os::fd::OwnedFd> {
    // Signals from the program's terminal do not end the keeper. Fails for the leader of a group, which this process is not.
    let _session = setsid();
    let connection = io::stdin().as_fd().try_clone_to_owned();
    connection.context("the standard input is no connection to a program")
}

/// Closes descriptors inherited from the program: others may wait for their end.
fn close_others() {
    let flags: libc::c_uint = 0;
    // SAFETY: takes integers. This process has just started, and has opened no descriptor.
    unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, flags) };
}
