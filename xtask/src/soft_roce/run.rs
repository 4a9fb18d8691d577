//! The plan of a run: commands, guests and options.

use std::fmt::Write;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::backend::{Backend, Engine, Settings};
use super::event::{Event, Host};
use super::guest::Guest;
use super::kernel::{Kernel, Source};
use super::machine::Link;
use super::report::Outcome;
use super::runner::{GuestRun, RunPolicy, Runner};
use super::shown::{self, Shown};
use super::{Device, wire};
use crate::workspace::Workspace;

/// The end condition of a run of two commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Until {
    /// Stop when both commands have exited.
    #[default]
    Both,
    /// Stop when the command on host a exits. The other command is stopped, and its failure counts too.
    A,
    /// Stop when the command on host b exits. The other command is stopped, and its failure counts too.
    B,
}

/// A plan: one or two commands, and the options of their guests.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    commands: Vec<String>,
    device: Device,
    timeout: Option<Duration>,
    memory_mib: u32,
    cpus: Option<u32>,
    mtu: Option<u32>,
    backend: Backend,
    kernel: Source,
    rds: Vec<Host>,
    pcap: Option<PathBuf>,
    environment: Vec<(String, String)>,
    folder: Option<PathBuf>,
    shown: Vec<PathBuf>,
    stdin: bool,
    until: Until,
    keep_going: bool,
    by_line: bool,
    terminal: bool,
}

/// MTU of the wire: the largest RoCE path MTU, 4096, and the headers.
pub(super) const WIRE_MTU: u32 = 4200;

/// Maximum number of starts of the guests when their boot fails.
const BOOT_ATTEMPTS: u32 = 3;

/// Addresses of the guests, by the name of the variable in a command.
pub(super) const ADDRESSES: [(&str, &str); 4] = [
    ("A", "10.9.0.1"),
    ("B", "10.9.0.2"),
    ("A6", "fd09::1"),
    ("B6", "fd09::2"),
];

/// Environment variables of the caller that are passed to a command.
const PASSED_ON: [&str; 4] = ["RUST_BACKTRACE", "RUST_LOG", "LONG", "TERM"];

impl Run {
    /// A plan of one command on one guest.
    pub(crate) fn single(command: impl Into<String>) -> Self {
        Self {
            commands: vec![command.into()],
            device: Device::default(),
            timeout: None,
            memory_mib: 1024,
            cpus: None,
            mtu: None,
            backend: Backend::default(),
            kernel: Source::default(),
            rds: Vec::new(),
            pcap: None,
            environment: Vec::new(),
            folder: None,
            shown: Vec::new(),
            stdin: false,
            until: Until::default(),
            keep_going: false,
            by_line: false,
            terminal: false,
        }
    }

    /// A plan of two commands on two guests joined by a wire. Both start when both guests are up.
    pub(crate) fn pair(a: impl Into<String>, b: impl Into<String>) -> Self {
        let mut run = Self::single(a);
        run.commands.push(b.into());
        run.by_line()
    }

    /// An interactive shell on one guest, on this process's terminal.
    pub(crate) fn shell() -> Self {
        let mut run = Self::single("exec \"$(command -v bash || echo sh)\"");
        run.terminal = true;
        run
    }

    /// Sets the kind of RDMA device.
    pub(crate) fn device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// Limits the duration of the commands, excluding the boot.
    pub(crate) fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// Sets the memory of each guest, in MiB.
    pub(crate) fn memory_mib(mut self, memory_mib: u32) -> Self {
        self.memory_mib = memory_mib;
        self
    }

    /// Sets the number of processors of each guest; the default depends on the device.
    pub(crate) fn cpus(mut self, cpus: impl Into<Option<u32>>) -> Self {
        self.cpus = cpus.into();
        self
    }

    /// Sets the MTU of the network interface; the default is 4200.
    pub(crate) fn mtu(mut self, mtu: impl Into<Option<u32>>) -> Self {
        self.mtu = mtu.into();
        self
    }

    /// Selects the machine: QEMU or User-Mode Linux.
    pub(crate) fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Selects the guests' kernel.
    pub(crate) fn kernel(mut self, kernel: Source) -> Self {
        self.kernel = kernel;
        self
    }

    /// Loads the kernel's RDS over RDMA on these hosts.
    pub(crate) fn rds(mut self, hosts: &[Host]) -> Self {
        self.rds = hosts.to_vec();
        self
    }

    /// Records the packets of the wire to a pcap file.
    pub(crate) fn pcap(mut self, file: impl Into<Option<PathBuf>>) -> Self {
        self.pcap = file.into();
        self
    }

    /// Adds an environment variable to the commands.
    pub(crate) fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Sets the working directory of the commands; the default is the workspace's root.
    pub(crate) fn folder(mut self, folder: PathBuf) -> Self {
        self.folder = Some(folder);
        self
    }

    /// Makes files of this machine visible to the commands in guests with a separate root file system.
    pub(crate) fn showing(mut self, paths: Vec<PathBuf>) -> Self {
        self.shown = paths;
        self
    }

    /// Connects this process's standard input to a single command. Otherwise, and for two commands, standard input is
    /// empty.
    pub(crate) fn stdin(mut self, stdin: bool) -> Self {
        self.stdin = stdin;
        self
    }

    /// Sets the end condition of two commands.
    pub(crate) fn until(mut self, until: Until) -> Self {
        self.until = until;
        self
    }

    /// Keeps the other command running after one has failed.
    pub(crate) fn keep_going(mut self, keep_going: bool) -> Self {
        self.keep_going = keep_going;
        self
    }

    /// Delivers output line by line.
    pub(crate) fn by_line(mut self) -> Self {
        self.by_line = true;
        self
    }

    /// Executes the plan and calls `on_event` for each event. Blocks until the guests have exited.
    pub(crate) fn execute(
        self,
        workspace: &Workspace,
        on_event: &mut dyn FnMut(&Event),
    ) -> Result<Outcome> {
        self.refuse_nonsense()?;
        let cache = workspace.soft_roce();
        let out = cache.join("out");
        fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
        require_memory(u64::from(self.memory_mib) * self.commands.len() as u64)?;
        let settings = Settings {
            memory_mib: self.memory_mib,
            cpus: self.cpus,
            device: self.device,
            out: &out,
            terminal: self.terminal,
        };
        let engine = Engine::prepare(self.backend, &self.kernel, &settings, &cache)?;
        let mut attempts = 1;
        loop {
            let outcome = self.attempt(workspace, &engine, &settings, on_event)?;
            match outcome.boot_failure().filter(|_| attempts < BOOT_ATTEMPTS) {
                Some(failure) => eprintln!("note: {failure}. Starting again"),
                None => return Ok(outcome),
            }
            attempts += 1;
        }
    }

    /// Starts the guests and runs the commands once.
    fn attempt(
        &self,
        workspace: &Workspace,
        engine: &Engine,
        settings: &Settings<'_>,
        on_event: &mut dyn FnMut(&Event),
    ) -> Result<Outcome> {
        // The packet recorder must outlive the guests.
        let (wire, _recorder) = if engine.is_uml() {
            wire::pair(self.pcap.as_deref())?
        } else {
            let (a, b) = UnixStream::pair()?;
            ([a.into(), b.into()], None)
        };
        let (sender, messages) = mpsc::channel();
        let mut guests = Vec::new();
        for (index, host) in self.hosts().iter().enumerate() {
            let machine = engine.machine(settings, self.link(*host, &wire));
            let configuration = self.configuration(*host, workspace, engine)?;
            let script = self.script(index, *host, workspace)?;
            let guest = Guest::start(&machine, index, &sender)?;
            guests.push(GuestRun::new(*host, guest, configuration, script));
        }
        drop((sender, wire));
        let policy = RunPolicy {
            backend: engine.describe(),
            timeout: self.timeout,
            until: self.until,
            keep_going: self.keep_going,
            by_line: self.by_line,
        };
        Runner::new(policy, guests).run(&messages, on_event)
    }

    fn hosts(&self) -> &'static [Host] {
        if self.commands.len() == 1 {
            &[Host::A]
        } else {
            &[Host::A, Host::B]
        }
    }

    fn refuse_nonsense(&self) -> Result<()> {
        if self.commands.len() == 1 {
            if self.pcap.is_some() {
                bail!(
                    "--pcap needs two guests: a single guest's traffic to itself never reaches a wire"
                );
            }
            if self.rds.contains(&Host::B) {
                bail!("--rds b needs two guests: a run of one command has no host b");
            }
        }
        if self.mtu.is_some_and(|mtu| !(1280..=65535).contains(&mtu)) {
            bail!("--mtu must be from 1280, the minimum of IPv6, to 65535");
        }
        Ok(())
    }

    fn link<'a>(&'a self, host: Host, wire: &'a [OwnedFd; 2]) -> Option<Link<'a>> {
        let mtu = self.mtu.unwrap_or(WIRE_MTU);
        let (socket, mac) = match host {
            Host::A => (&wire[0], "52:54:00:09:00:01"),
            Host::B => (&wire[1], "52:54:00:09:00:02"),
        };
        // One capture records both directions.
        let pcap = self.pcap.as_deref().filter(|_| host == Host::A);
        (self.commands.len() > 1).then_some(Link {
            socket,
            mac,
            mtu,
            pcap,
        })
    }

    /// The shell script with the guest's settings, for the guest's init and agent.
    fn configuration(&self, host: Host, workspace: &Workspace, engine: &Engine) -> Result<String> {
        let mut text = String::new();
        let mut set = |name: &str, value: &str| -> Result<()> {
            writeln!(text, "{name}={}", shlex::try_quote(value)?)?;
            Ok(())
        };
        set("HOST", &host.to_string())?;
        set("GUESTS", &self.commands.len().to_string())?;
        set("DEVICE", self.device.name())?;
        set("MTU", &self.mtu.unwrap_or(WIRE_MTU).to_string())?;
        set("RDS", if self.rds.contains(&host) { "1" } else { "" })?;
        set("OUT", &workspace.soft_roce().join("out").to_string_lossy())?;
        set("STDIN", if self.stdin { "1" } else { "" })?;
        let shown = self.shown(workspace, Some(engine.kernel()));
        set("SHOWN", &lines(&shown)?)?;
        set("KERNEL_MODULES", &engine.kernel().modules.to_string_lossy())?;
        for (name, value) in engine.guest_names() {
            set(name, value)?;
        }
        set("PATH", &search_path(workspace))?;
        for (name, address) in ADDRESSES {
            set(name, address)?;
        }
        if self.terminal {
            let size = rustix::termios::tcgetwinsize(std::io::stdin())
                .ok()
                .filter(|size| size.ws_row > 0);
            let (rows, columns) = size.map_or((24, 80), |size| (size.ws_row, size.ws_col));
            set("SHELL_ROWS", &rows.to_string())?;
            set("SHELL_COLUMNS", &columns.to_string())?;
        }
        Ok(text)
    }

    fn working_directory<'a>(&'a self, workspace: &'a Workspace) -> &'a Path {
        self.folder.as_deref().unwrap_or(workspace.root())
    }

    /// The paths that a guest mounts: the checkout, the kernel modules and the caller's files.
    fn shown(&self, workspace: &Workspace, kernel: Option<&Kernel>) -> Vec<Shown> {
        let folders = [
            workspace.root(),
            workspace.target(),
            self.working_directory(workspace),
        ];
        let modules = kernel.map(|kernel| kernel.modules.clone());
        let folders = folders.map(Path::to_owned).into_iter().chain(modules);
        shown::list(folders.chain(self.shown.iter().cloned()))
    }

    /// The first path in a command that exists on this machine and is not mounted in the guests.
    pub(super) fn first_hidden(&self, workspace: &Workspace) -> Option<PathBuf> {
        let shown = self.shown(workspace, None);
        let mut hidden = self
            .commands
            .iter()
            .map(|command| shown::first_hidden(command, &shown));
        hidden.find_map(|path| path.map(Path::to_owned))
    }

    /// The shell script that sets the environment and runs the command.
    fn script(&self, index: usize, host: Host, workspace: &Workspace) -> Result<String> {
        let root = workspace.root().to_string_lossy();
        let mut text = String::new();
        let mut export = |name: &str, value: &str| -> Result<()> {
            writeln!(text, "export {name}={}", shlex::try_quote(value)?)?;
            Ok(())
        };
        export("PATH", &search_path(workspace))?;
        export("HOME", "/root")?;
        export("LANG", "C.UTF-8")?;
        export("HOST", &host.to_string())?;
        export("WORKSPACE", &root)?;
        export("OUT", &workspace.soft_roce().join("out").to_string_lossy())?;
        export("RDMA_DEVICE", self.device.instance())?;
        let addresses = if self.commands.len() == 1 {
            &[ADDRESSES[0], ADDRESSES[2]][..]
        } else {
            &ADDRESSES[..]
        };
        for (name, address) in addresses {
            export(name, address)?;
        }
        for name in PASSED_ON {
            if let Ok(value) = std::env::var(name) {
                export(name, &value)?;
            }
        }
        for (name, value) in &self.environment {
            export(name, value)?;
        }
        writeln!(
            text,
            "cd {} || exit",
            quote(self.working_directory(workspace))?
        )?;
        writeln!(
            text,
            "exec /bin/sh -c {}",
            shlex::try_quote(&self.commands[index])?
        )?;
        Ok(text)
    }
}

/// `PATH` of the commands: the system's directories, then the workspace's target directories. The system comes first
/// because some workspace programs share their name with the reference program.
pub(super) fn search_path(workspace: &Workspace) -> String {
    let target = workspace.target().display();
    let system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    format!(
        "{system}:{target}/debug:{target}/release:{target}/debug/examples:{target}/release/examples"
    )
}

/// Pairs of lines for the guest: path in the guest, path on the host.
fn lines(shown: &[Shown]) -> Result<String> {
    let paths = shown.iter().flat_map(|one| [&one.place, &one.real]);
    let lines = paths.map(|path| {
        let text = path.to_str().filter(|text| !text.contains('\n'));
        text.with_context(|| {
            format!(
                "a guest cannot mount {}: the path is not UTF-8 or has a newline",
                path.display()
            )
        })
    });
    Ok(lines.collect::<Result<Vec<_>>>()?.join("\n"))
}

/// Fails if the guests need more memory than is free, before QEMU fails with less detail.
fn require_memory(mib: u64) -> Result<()> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let Some(available) = available_mib(&text) else {
        return Ok(());
    };
    if available < mib {
        bail!(
            "the guests need {mib} MiB of memory and {available} MiB are free: close other programs, or lower --memory"
        );
    }
    Ok(())
}

fn available_mib(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? / 1024)
}

/// Quotes a path as one word of a shell command.
pub(crate) fn quote(path: &Path) -> Result<String> {
    Ok(shlex::try_quote(&path.to_string_lossy())?.into_owned())
}
