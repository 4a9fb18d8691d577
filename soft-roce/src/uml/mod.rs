//! User-Mode Linux: a kernel that runs as an ordinary process of the host.
//!
//! Requires neither KVM nor QEMU nor root, and boots to an RDMA device within about 1 s. The kernel is built from the
//! distribution's source package: see [`build`].

pub(crate) mod build;
mod memory;

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::machine::{Launch, Link, Ports};
use crate::sandbox::Writable;
use crate::scratch::Scratch;

/// Kernel parameters: warnings and errors on the console, exit on a panic or restart.
const KERNEL_PARAMETERS: [&str; 7] = [
    "BACKEND=uml",
    "loglevel=5",
    "noreboot",
    "panic=-1",
    "random.trust_cpu=on",
    // No consoles except the kernel's and, for a shell, the terminal.
    "con=null",
    "ssl=null",
];

/// Whether User-Mode Linux runs on hosts of this architecture.
pub(crate) const IS_SUPPORTED: bool = cfg!(target_arch = "x86_64");

/// A User-Mode Linux machine.
#[derive(Clone, Debug)]
pub(crate) struct Machine<'a> {
    /// The kernel, a program of the host.
    pub(crate) program: &'a Path,
    pub(crate) initramfs: &'a Path,
    pub(crate) memory_mib: u32,
    /// Folder of the host with write access for the guest.
    pub(crate) out: &'a Path,
    /// Link to the other guest: one of a pair of datagram sockets, with one frame per datagram.
    pub(crate) link: Option<Link<'a>>,
    /// Whether the guest uses this process's terminal.
    pub(crate) terminal: bool,
}

impl Machine<'_> {
    /// The start of the machine.
    ///
    /// # Errors
    ///
    /// No folder has room for the guest's memory.
    pub(crate) fn launch(&self, ports: &Ports) -> Result<Launch> {
        let private = Scratch::inside(&memory::folder(self.memory_mib)?)?;
        let writable = Writable {
            folders: vec![private.path().to_owned(), self.out.to_owned()],
            files: Vec::new(),
        };
        Ok(Launch {
            command: self.command(ports, private.path()),
            writable,
            private: Some(private),
        })
    }

    /// The command, with the guest's memory and the names of its process in `private`.
    fn command(&self, ports: &Ports, private: &Path) -> Command {
        let mut command = Command::new(self.program);
        command.env("TMPDIR", private);
        let mut names = OsString::from("uml_dir=");
        names.push(private);
        command.arg(names);
        command.args(KERNEL_PARAMETERS);
        command.arg(format!("mem={}M", self.memory_mib));
        let mut initramfs = OsString::from("initrd=");
        initramfs.push(self.initramfs);
        command.arg(initramfs);
        command.arg(channel("con0", &ports.console));
        for (line, port) in ports.ports.iter().enumerate() {
            command.arg(channel(&format!("ssl{line}"), port));
        }
        if self.terminal {
            command.arg("con1=fd:0,fd:1");
        }
        if let Some(Link {
            socket, mac, mtu, ..
        }) = &self.link
        {
            let fd = socket.as_raw_fd();
            command.arg(format!("vec0:transport=fd,fd={fd},mac={mac},mtu={mtu}"));
        }
        command
    }
}

/// A console or serial line on an inherited descriptor.
fn channel(name: &str, fd: &OwnedFd) -> String {
    let fd = fd.as_raw_fd();
    format!("{name}=fd:{fd},fd:{fd}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::PORTS;
    use std::os::unix::net::UnixStream;

    fn descriptor() -> OwnedFd {
        UnixStream::pair().unwrap().0.into()
    }

    fn arguments(link: Option<Link<'_>>, terminal: bool) -> Vec<String> {
        let machine = Machine {
            program: Path::new("/linux"),
            initramfs: Path::new("/a b"),
            memory_mib: 64,
            out: Path::new("/out"),
            link,
            terminal,
        };
        let ports = Ports {
            console: descriptor(),
            ports: std::array::from_fn(|_| descriptor()),
        };
        let command = machine.command(&ports, Path::new("/private"));
        let arguments = command.get_args();
        arguments
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn command_has_a_serial_line_for_each_port() {
        let arguments = arguments(None, false);
        for line in 0..PORTS.len() {
            let line = format!("ssl{line}=fd:");
            assert!(
                arguments.iter().any(|argument| argument.starts_with(&line)),
                "{line} in {arguments:?}"
            );
        }
        assert!(arguments.contains(&"initrd=/a b".to_owned()));
        // Without it, each killed guest leaves a folder in `~/.uml`.
        assert!(arguments.contains(&"uml_dir=/private".to_owned()));
        assert!(
            !arguments
                .iter()
                .any(|argument| argument.starts_with("con1") || argument.starts_with("vec0"))
        );
    }

    #[test]
    fn command_with_link_and_terminal_passes_both() {
        let socket = descriptor();
        let link = Link {
            socket: &socket,
            mac: "52:54:00:09:00:01".to_owned(),
            mtu: 4200,
            pcap: None,
        };
        let arguments = arguments(Some(link), true);
        let wire = format!(
            "vec0:transport=fd,fd={},mac=52:54:00:09:00:01,mtu=4200",
            socket.as_raw_fd()
        );
        assert!(arguments.contains(&wire), "{arguments:?}");
        assert!(arguments.contains(&"con1=fd:0,fd:1".to_owned()));
    }
}
