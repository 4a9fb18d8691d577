//! Common parts of both kinds of guest machines: connections to this process, and the wire.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::sandbox::{Sandbox, Writable};
use crate::scratch::Scratch;
use crate::{qemu, uml};

/// A guest's end of the wire or of the switch.
#[derive(Clone, Debug)]
pub(crate) struct Link<'a> {
    pub(crate) socket: &'a OwnedFd,
    pub(crate) mac: String,
    pub(crate) mtu: u32,
    /// File for QEMU's packet capture.
    pub(crate) pcap: Option<&'a Path>,
}

/// The start of a machine.
#[derive(Debug)]
pub(crate) struct Launch {
    /// The command. Its process inherits the descriptors of the ports and of the link.
    pub(crate) command: Command,
    /// Files that the process writes.
    pub(crate) writable: Writable,
    /// Folder of the process's own, which has to outlive it.
    pub(crate) private: Option<Scratch>,
}

impl Launch {
    /// The command, confined to the files that its process writes, and the process's folder.
    ///
    /// # Errors
    ///
    /// The kernel cannot confine the process.
    pub(crate) fn confined(mut self) -> Result<(Command, Option<Scratch>)> {
        if let Some(sandbox) = Sandbox::new(&self.writable)? {
            sandbox.confine(&mut self.command);
        }
        Ok((self.command, self.private))
    }
}

/// The guest's ends of its connections: the console, and one port for each name in [`PORTS`].
#[derive(Debug)]
pub(crate) struct Ports {
    pub(crate) console: OwnedFd,
    pub(crate) ports: [OwnedFd; PORTS.len()],
}

/// Names of a guest's ports; `guest/init` has the same list. The guest reads commands from `control` and writes
/// messages to it, reads the command's input from `stdin` in the chunks of [`crate::input`], and writes to the other
/// two.
pub(crate) const PORTS: [&str; 4] = ["control", "stdin", "stdout", "stderr"];

/// The machine of a guest.
#[derive(Clone, Debug)]
pub(crate) enum Machine<'a> {
    /// A kernel that runs as a process.
    Uml(uml::Machine<'a>),
    /// A kernel in QEMU.
    Qemu(qemu::Machine<'a>),
}

impl Machine<'_> {
    /// The start of the machine, with `ports`.
    ///
    /// # Errors
    ///
    /// No folder has room for the guest's memory, or a file for its packets cannot be made.
    pub(crate) fn launch(&self, ports: &Ports) -> Result<Launch> {
        match self {
            Self::Uml(machine) => machine.launch(ports),
            Self::Qemu(machine) => machine.launch(ports),
        }
    }

    /// Socket of the link to the other guest.
    pub(crate) fn wire(&self) -> Option<&OwnedFd> {
        let link = match self {
            Self::Uml(machine) => machine.link.as_ref(),
            Self::Qemu(machine) => machine.link.as_ref(),
        };
        link.map(|link| link.socket)
    }

    /// Whether the guest uses this process's terminal.
    pub(crate) fn terminal(&self) -> bool {
        match self {
            Self::Uml(machine) => machine.terminal,
            Self::Qemu(machine) => machine.terminal,
        }
    }
}
