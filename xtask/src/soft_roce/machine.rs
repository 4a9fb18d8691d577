//! What guests of both kinds have in common: connections to xtask, and an end of the wire.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::{qemu, uml};

/// One end of the wire between two guests.
#[derive(Clone, Debug)]
pub(crate) struct Link<'a> {
    pub(crate) socket: &'a OwnedFd,
    pub(crate) mac: &'a str,
    pub(crate) mtu: u32,
    /// Where QEMU records the packets.
    pub(crate) pcap: Option<&'a Path>,
}

/// The guest's ends of its connections to xtask, in the order of [`PORTS`], after the kernel's console.
#[derive(Debug)]
pub(crate) struct Ports {
    pub(crate) console: OwnedFd,
    pub(crate) ports: [OwnedFd; PORTS.len()],
}

/// The names of a guest's ports, which `ci/guest/init` knows as well. The guest reads commands from `control`, where it
/// reports back, and the command's input from `stdin`, in the chunks of [`super::input`]; it writes to the other two.
pub(crate) const PORTS: [&str; 4] = ["control", "stdin", "stdout", "stderr"];

/// A guest's machine.
#[derive(Clone, Debug)]
pub(crate) enum Machine<'a> {
    /// A kernel that is a process.
    Uml(uml::Machine<'a>),
    /// A kernel in an emulator.
    Qemu(qemu::Machine<'a>),
}

impl Machine<'_> {
    /// The command that starts the machine; it inherits the descriptors of `ports` and of the link.
    pub(crate) fn command(&self, ports: &Ports) -> Result<Command> {
        match self {
            Self::Uml(machine) => machine.command(ports),
            Self::Qemu(machine) => Ok(machine.command(ports)),
        }
    }

    /// The socket of the link to the other guest.
    pub(crate) fn wire(&self) -> Option<&OwnedFd> {
        let link = match self {
            Self::Uml(machine) => machine.link.as_ref(),
            Self::Qemu(machine) => machine.link.as_ref(),
        };
        link.map(|link| link.socket)
    }

    /// Whether the terminal is the guest's.
    pub(crate) fn terminal(&self) -> bool {
        match self {
            Self::Uml(machine) => machine.terminal,
            Self::Qemu(machine) => machine.terminal,
        }
    }
}
