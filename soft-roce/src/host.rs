//! A software RDMA device on this machine itself, where the running kernel has the driver.
//!
//! Much faster than a guest, and without isolation: a bug in the kernel driver can crash this machine.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::Device;
use crate::boot::rdma_core::RdmaCore;
use crate::commands::setup::{self, Group};
use crate::event::Host;
use crate::process::{self, Supervised, Undo};
use crate::run::{WIRE_MTU, search_path};
use crate::workspace::Workspace;

/// Settings of one command that runs beside a device of this machine.
#[derive(Debug)]
pub(crate) struct HostRun {
    pub(crate) device: Device,
    pub(crate) mtu: Option<u32>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) rdma_core: Option<RdmaCore>,
    pub(crate) environment: Vec<(String, String)>,
}

/// Exit code of timeout(1).
const TIMED_OUT: u8 = 124;

impl HostRun {
    /// Creates the device, runs the script, then removes the device and the interface.
    pub(crate) fn execute(&self, workspace: &Workspace, script: &str) -> Result<ExitCode> {
        if !rustix::process::geteuid().is_root() {
            bail!(
                "--on host changes this machine's network: run it as root, or leave it out to use a guest"
            );
        }
        setup::ensure(&[Group::Guest])?;
        self.load_modules()?;
        // Guards, dropped in reverse order: device first, then interface.
        let _interface = self.interface()?;
        let _device = self.rdma_device()?;
        let mut command = self.command(workspace, script)?;
        let mut child = Supervised::spawn(&mut command, &[]).context("cannot start /bin/sh")?;
        let status = match self
            .timeout
            .and_then(|timeout| Instant::now().checked_add(timeout))
        {
            Some(deadline) => child.wait_until(deadline)?,
            None => Some(child.wait()?),
        };
        drop(child);
        let Some(status) = status else {
            eprintln!("timeout: the command was stopped; --timeout gives it longer");
            return Ok(ExitCode::from(TIMED_OUT));
        };
        Ok(ExitCode::from(
            status
                .code()
                .and_then(|code| u8::try_from(code).ok())
                .unwrap_or(1),
        ))
    }

    fn load_modules(&self) -> Result<()> {
        for module in [self.device.module(), "ib_uverbs", "rdma_ucm"] {
            process::output(process::system_command("modprobe").arg(module)).with_context(|| {
                format!(
                    "this machine's kernel cannot load {module}: leave out --on host to use a guest"
                )
            })?;
        }
        Ok(())
    }

    /// Creates a dummy or veth interface for the device, so that no existing interface is changed.
    fn interface(&self) -> Result<Undo> {
        let back = ["ip", "link", "del", INTERFACE];
        let created = match self.device {
            Device::Rxe => Undo::after(&["ip", "link", "add", INTERFACE, "type", "dummy"], &back),
            Device::Siw => Undo::after(
                &[
                    "ip", "link", "add", INTERFACE, "type", "veth", "peer", "name", PEER,
                ],
                &back,
            ),
        };
        let created =
            created.context("cannot make an interface; leave out --on host to use a guest")?;
        let mtu = self.mtu.unwrap_or(WIRE_MTU).to_string();
        let mut lines = vec![format!("link set {INTERFACE} mtu {mtu} up")];
        if self.device == Device::Siw {
            lines.push(format!("link set {PEER} mtu {mtu} up"));
        }
        lines.push(format!(
            "address add {}/24 dev {INTERFACE}",
            Host::A.address()
        ));
        lines.push(format!(
            "address add {}/64 dev {INTERFACE} nodad",
            Host::A.address6()
        ));
        for line in lines {
            process::output(process::system_command("ip").args(line.split(' ')))?;
        }
        Ok(created)
    }

    fn rdma_device(&self) -> Result<Undo> {
        let add = [
            "rdma",
            "link",
            "add",
            self.device.instance(),
            "type",
            self.device.name(),
            "netdev",
            INTERFACE,
        ];
        Undo::after(&add, &["rdma", "link", "del", self.device.instance()])
            .context("cannot make the RDMA device; is there one already? See `rdma link`")
    }

    fn command(&self, workspace: &Workspace, script: &str) -> Result<Command> {
        let out = workspace.out();
        std::fs::create_dir_all(&out)?;
        let mut command = Command::new("/bin/sh");
        // The working directory and the standard input are inherited.
        command.args(["-c", &format!("ulimit -l unlimited\n{script}")]);
        let mut path = search_path(workspace);
        if let Some(rdma_core) = &self.rdma_core {
            path = rdma_core.search_path(&path);
            command.envs(rdma_core.variables());
        }
        command.env("PATH", path);
        command
            .env("HOST", "a")
            .env("HOSTS", "a")
            .env("WORKSPACE", workspace.root())
            .env("OUT", out);
        command.env("RDMA_DEVICE", self.device.instance());
        command.envs(Host::A.variables());
        command.envs(self.environment.iter().cloned());
        Ok(command)
    }
}

const INTERFACE: &str = "softroce0";
const PEER: &str = "softroce1";
