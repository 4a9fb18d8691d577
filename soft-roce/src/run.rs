//! The plan of a run: commands, guests and options.

use std::fmt::Write;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Error, Result, bail, ensure};

use crate::Device;
use crate::backend::{Backend, PreparedBackend, Settings, require_host};
use crate::boot::kernel::{Kernel, Source};
use crate::boot::rdma_core::RdmaCore;
use crate::commands::report::Outcome;
use crate::commands::setup::{self, Group};
use crate::event::{Event, Host};
use crate::guest::Guest;
use crate::machine::Link;
use crate::network::control::Control;
use crate::network::link::{LinkOption, Links};
use crate::network::switch::{Cable, Switch};
use crate::network::wire;
use crate::root::Root;
use crate::runner::{GuestRun, RunPolicy, Runner};
use crate::shown::{self, Shown};
use crate::workspace::Workspace;

/// The end condition of a run of several commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Until {
    /// Stop when every command has exited.
    #[default]
    All,
    /// Stop when the command on this host exits. The other commands are stopped, and the failure of one that has exited
    /// counts too.
    Host(Host),
}

impl FromStr for Until {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "all" | "both" => Ok(Self::All),
            host => Ok(Self::Host(host.parse()?)),
        }
    }
}

/// A plan: commands, one for each guest, and the options of the guests.
#[derive(Clone, Debug)]
pub struct Run {
    commands: Vec<String>,
    device: Device,
    timeout: Option<Duration>,
    memory_mib: u32,
    cpus: Option<u32>,
    mtu: Option<u32>,
    backend: Backend,
    kernel: Source,
    rdma_core: Option<RdmaCore>,
    root: Option<PathBuf>,
    rds: Vec<Host>,
    links: Vec<LinkOption>,
    control: Option<Links>,
    switched: bool,
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

/// The network of a run.
#[derive(Debug, Default)]
struct Network {
    /// Ends for the guests, in the order of hosts.
    ends: Vec<OwnedFd>,
    recorder: Option<wire::Recorder>,
    switch: Option<Switch>,
    control: Option<Control>,
}

/// MTU of the wire: the largest RoCE path MTU, 4096, and the headers.
pub(crate) const WIRE_MTU: u32 = 4200;

/// Maximum number of starts of the guests when their boot fails.
const BOOT_ATTEMPTS: u32 = 3;

/// Environment variables of the caller that are passed to a command.
const PASSED_ON: [&str; 4] = ["RUST_BACKTRACE", "RUST_LOG", "LONG", "TERM"];

impl Run {
    /// A plan of one command on one guest.
    pub fn single(command: impl Into<String>) -> Self {
        Self {
            commands: vec![command.into()],
            device: Device::default(),
            timeout: None,
            memory_mib: 1024,
            cpus: None,
            mtu: None,
            backend: Backend::default(),
            kernel: Source::default(),
            rdma_core: None,
            root: None,
            rds: Vec::new(),
            links: Vec::new(),
            control: None,
            switched: false,
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
    pub fn pair(a: impl Into<String>, b: impl Into<String>) -> Self {
        let mut run = Self::single(a);
        run.commands.push(b.into());
        run.by_line()
    }

    /// A plan of one command for each guest, on guests joined by a switch: hosts a, b, c and so on. The commands start
    /// when all guests are up.
    pub fn each<C: Into<String>>(commands: impl IntoIterator<Item = C>) -> Self {
        let mut run = Self::single("");
        run.commands = commands.into_iter().map(Into::into).collect();
        run.switched = true;
        run.by_line()
    }

    /// An interactive shell on one guest, on this process's terminal.
    pub fn shell() -> Self {
        let mut run = Self::single("exec \"$(command -v bash || echo sh)\"");
        run.terminal = true;
        run
    }

    /// Sets the kind of RDMA device.
    pub fn device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// Limits the duration of the commands, excluding the boot.
    pub fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// Sets the memory of each guest, in MiB.
    pub fn memory_mib(mut self, memory_mib: u32) -> Self {
        self.memory_mib = memory_mib;
        self
    }

    /// Sets the number of processors of each guest; the default depends on the device.
    pub fn cpus(mut self, cpus: impl Into<Option<u32>>) -> Self {
        self.cpus = cpus.into();
        self
    }

    /// Sets the MTU of the network interface; the default is 4200.
    pub fn mtu(mut self, mtu: impl Into<Option<u32>>) -> Self {
        self.mtu = mtu.into();
        self
    }

    /// Selects the machine: QEMU or User-Mode Linux.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Selects the guests' kernel.
    pub fn kernel(mut self, kernel: Source) -> Self {
        self.kernel = kernel;
        self
    }

    /// Sets the rdma-core of the commands; the default is the installed one.
    pub fn rdma_core(mut self, rdma_core: impl Into<Option<RdmaCore>>) -> Self {
        self.rdma_core = rdma_core.into();
        self
    }

    /// Sets the root file system of the guests: a folder with the programs of another release or architecture. The default is this
    /// machine's.
    pub fn root(mut self, root: impl Into<Option<PathBuf>>) -> Self {
        self.root = root.into();
        self
    }

    /// Loads the kernel's RDS over RDMA on these hosts.
    pub fn rds(mut self, hosts: &[Host]) -> Self {
        self.rds = hosts.to_vec();
        self
    }

    /// Changes a link from the start, and joins the guests by a switch, whose links can change during the run.
    pub fn link(mut self, link: LinkOption) -> Self {
        self.links.push(link);
        self.switched = true;
        self
    }

    /// Joins the guests by a switch, and returns its links, for changes during the run.
    #[must_use]
    pub fn with_links(mut self) -> (Self, Links) {
        let links = Links::new(self.commands.len());
        self.control = Some(links.clone());
        self.switched = true;
        (self, links)
    }

    /// Records the packets between guests to a pcap file.
    pub fn pcap(mut self, file: impl Into<Option<PathBuf>>) -> Self {
        self.pcap = file.into();
        self
    }

    /// Adds an environment variable to the commands.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Sets the working directory of the commands; the default is the workspace's root.
    pub fn folder(mut self, folder: PathBuf) -> Self {
        self.folder = Some(folder);
        self
    }

    /// Makes files of this machine visible to the commands in guests with a separate root file system.
    pub fn showing(mut self, paths: Vec<PathBuf>) -> Self {
        self.shown = paths;
        self
    }

    /// Connects this process's standard input to a single command. Otherwise, and for several commands, standard
    /// input is empty.
    pub fn stdin(mut self, stdin: bool) -> Self {
        self.stdin = stdin;
        self
    }

    /// Sets the end condition of several commands.
    pub fn until(mut self, until: Until) -> Self {
        self.until = until;
        self
    }

    /// Keeps the other commands running after one has failed.
    pub fn keep_going(mut self, keep_going: bool) -> Self {
        self.keep_going = keep_going;
        self
    }

    /// Delivers output line by line.
    pub fn by_line(mut self) -> Self {
        self.by_line = true;
        self
    }

    /// Executes the plan and calls `on_event` for each event. Blocks until the guests have exited.
    ///
    /// # Errors
    ///
    /// No guest can be started: an option is refused, memory, a package or a kernel is missing, or a device of the
    /// host fails. A failed command is part of the [`Outcome`].
    pub fn execute(
        self,
        workspace: &Workspace,
        on_event: &mut dyn FnMut(&Event),
    ) -> Result<Outcome> {
        self.refuse_nonsense()?;
        let out = workspace.out();
        fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
        require_memory(u64::from(self.memory_mib) * self.commands.len() as u64)?;
        let root = match &self.root {
            Some(folder) => Root::at(folder)?,
            None => {
                require_host()?;
                let groups: &[Group] = match self.backend {
                    Backend::Qemu => &[Group::Guest, Group::Qemu],
                    Backend::Auto | Backend::Uml => &[Group::Guest],
                };
                setup::ensure(groups)?;
                Root::of_host()?
            }
        };
        let settings = Settings {
            memory_mib: self.memory_mib,
            cpus: self.cpus,
            device: self.device,
            root: &root,
            out: &out,
            terminal: self.terminal,
        };
        let prepared =
            PreparedBackend::prepare(self.backend, &self.kernel, &settings, workspace.cache())?;
        let mut attempts = 1;
        loop {
            let outcome = self.attempt(workspace, &prepared, &settings, on_event)?;
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
        prepared: &PreparedBackend,
        settings: &Settings<'_>,
        on_event: &mut dyn FnMut(&Event),
    ) -> Result<Outcome> {
        // The switch and the packet recorder must outlive the guests.
        let mut network = self.network(workspace, prepared)?;
        let (sender, messages) = mpsc::channel();
        let mut guests = Vec::new();
        for (index, host) in self.hosts().enumerate() {
            let machine = prepared.machine(settings, self.cable(host, &network.ends));
            let configuration = self.configuration(host, workspace, prepared, settings.root)?;
            let script = self.script(index, host, workspace)?;
            let guest = Guest::start(&machine, index, &sender)?;
            guests.push(GuestRun::new(host, guest, configuration, script));
        }
        // Only the guests hold their ends now.
        network.ends.clear();
        drop(sender);
        let policy = RunPolicy {
            backend: prepared.describe(),
            timeout: self.timeout,
            until: self.until,
            keep_going: self.keep_going,
            by_line: self.by_line,
        };
        Runner::new(policy, guests).run(&messages, on_event)
    }

    fn hosts(&self) -> impl Iterator<Item = Host> {
        (0..self.commands.len()).filter_map(Host::at)
    }

    /// The network between the guests; none for a single guest.
    fn network(&self, workspace: &Workspace, prepared: &PreparedBackend) -> Result<Network> {
        let hosts = self.commands.len();
        let mut network = Network::default();
        if hosts == 1 {
            return Ok(network);
        }
        if self.switched {
            let links = self.control.clone().unwrap_or_else(|| Links::new(hosts));
            for link in &self.links {
                links.apply(link)?;
            }
            let cable = if prepared.is_uml() {
                Cable::Datagram
            } else {
                Cable::Stream
            };
            let (switch, ends) = Switch::start(hosts, cable, links.clone(), self.pcap.as_deref())?;
            network.ends = ends;
            network.switch = Some(switch);
            network.control = Control::listen(workspace, links, &self.description(workspace))
                .inspect_err(|error| {
                    eprintln!("note: `link` cannot change this run's links: {error:#}")
                })
                .ok();
        } else if prepared.is_uml() {
            let (ends, recorder) = wire::pair(self.pcap.as_deref())?;
            network.ends.extend(ends);
            network.recorder = recorder;
        } else {
            let (a, b) = UnixStream::pair()?;
            network.ends.extend([a.into(), b.into()]);
        }
        Ok(network)
    }

    /// The commands and the folder, as one line that distinguishes the runs of a workspace.
    fn description(&self, workspace: &Workspace) -> String {
        const MAX_CHARS: usize = 200;
        let mut commands = self.commands.clone();
        // `--hosts` runs one command on all.
        commands.dedup();
        let line = commands.join("; ").replace(char::is_control, " ");
        let line: String = line.chars().take(MAX_CHARS).collect();
        let folder = self.working_directory(workspace).display().to_string();
        format!("`{line}` in {}", folder.replace(char::is_control, " "))
    }

    fn refuse_nonsense(&self) -> Result<()> {
        let hosts = self.commands.len();
        ensure!(
            (1..=Host::MAX).contains(&hosts),
            "a run has 1 to {} hosts, not {hosts}",
            Host::MAX
        );
        if hosts == 1 {
            if self.pcap.is_some() {
                bail!(
                    "--pcap needs two guests: a single guest's traffic to itself never reaches a wire"
                );
            }
            ensure!(
                self.links.is_empty(),
                "--link needs two guests: a run of one command has no link"
            );
        }
        for host in &self.rds {
            ensure!(
                host.index() < hosts,
                "--rds {host} needs more guests: a run of {hosts} has no host {host}"
            );
        }
        if let Until::Host(host) = self.until {
            ensure!(
                host.index() < hosts,
                "--until {host}: a run of {hosts} has no host {host}"
            );
        }
        if self.mtu.is_some_and(|mtu| !(1280..=65535).contains(&mtu)) {
            bail!("--mtu must be from 1280, the minimum of IPv6, to 65535");
        }
        let links = Links::new(hosts);
        self.links.iter().try_for_each(|link| links.apply(link))
    }

    fn cable<'a>(&'a self, host: Host, ends: &'a [OwnedFd]) -> Option<Link<'a>> {
        // Without a switch, one capture records both directions.
        let records = host == Host::A && !self.switched;
        Some(Link {
            socket: ends.get(host.index())?,
            mac: host.mac(),
            mtu: self.mtu.unwrap_or(WIRE_MTU),
            pcap: self.pcap.as_deref().filter(|_| records),
        })
    }

    /// The shell script with the guest's settings, for the guest's init and agent.
    fn configuration(
        &self,
        host: Host,
        workspace: &Workspace,
        prepared: &PreparedBackend,
        root: &Root,
    ) -> Result<String> {
        let mut text = String::new();
        let mut set = |name: &str, value: &str| -> Result<()> {
            writeln!(text, "{name}={}", shlex::try_quote(value)?)?;
            Ok(())
        };
        set("HOST", &host.to_string())?;
        set("GUESTS", &self.commands.len().to_string())?;
        set("ADDRESS", &host.address())?;
        set("ADDRESS6", &host.address6())?;
        let names = self.hosts();
        let names =
            names.map(|host| format!("{} {host}\n{} {host}", host.address(), host.address6()));
        set("NAMES", &names.collect::<Vec<_>>().join("\n"))?;
        set("DEVICE", self.device.name())?;
        set("MTU", &self.mtu.unwrap_or(WIRE_MTU).to_string())?;
        set("RDS", if self.rds.contains(&host) { "1" } else { "" })?;
        set("ROOT", &root.folder.to_string_lossy())?;
        set("OUT", &workspace.out().to_string_lossy())?;
        set("STDIN", if self.stdin { "1" } else { "" })?;
        let shown = self.shown(workspace, Some(prepared.kernel()));
        set("SHOWN", &lines(&shown)?)?;
        set(
            "KERNEL_MODULES",
            &prepared.kernel().modules.to_string_lossy(),
        )?;
        for (name, value) in prepared.guest_names() {
            set(name, value)?;
        }
        set("PATH", &search_path(workspace))?;
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
        let out = self.root.as_ref().map(|_| workspace.out());
        let rdma_core = self.rdma_core.iter().flat_map(RdmaCore::folders);
        let folders = folders.map(Path::to_owned).into_iter();
        let folders = folders.chain(modules).chain(out).chain(rdma_core);
        shown::list(
            folders.chain(self.shown.iter().cloned()),
            self.root.is_none(),
        )
    }

    /// The first path in a command that exists on this machine and is not mounted in the guests.
    pub(crate) fn first_hidden(&self, workspace: &Workspace) -> Option<PathBuf> {
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
        let mut path = search_path(workspace);
        let mut reachable = String::new();
        if let Some(rdma_core) = &self.rdma_core {
            path = rdma_core.search_path(&path);
            reachable = rdma_core.make_reachable()?;
            for (name, value) in rdma_core.variables() {
                export(name, &value.to_string_lossy())?;
            }
        }
        export("PATH", &path)?;
        export("HOME", "/root")?;
        export("LANG", "C.UTF-8")?;
        export("HOST", &host.to_string())?;
        let hosts: Vec<String> = self.hosts().map(|host| host.to_string()).collect();
        export("HOSTS", &hosts.join(" "))?;
        export("WORKSPACE", &root)?;
        export("OUT", &workspace.out().to_string_lossy())?;
        export("RDMA_DEVICE", self.device.instance())?;
        for (name, address) in self.hosts().flat_map(Host::variables) {
            export(&name, &address)?;
        }
        for name in PASSED_ON {
            if let Ok(value) = std::env::var(name) {
                export(name, &value)?;
            }
        }
        for (name, value) in &self.environment {
            export(name, value)?;
        }
        text += &reachable;
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
pub(crate) fn search_path(workspace: &Workspace) -> String {
    let target = workspace.target().display();
    let system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    format!(
        "{system}:{target}/debug:{target}/release:{target}/debug/examples:{target}/release/examples"
    )
}

/// Pairs of lines for the guest: path in the guest, path on the host.
fn lines(shown: &[Shown]) -> Result<String> {
    let paths = shown.iter().flat_map(|one| [&one.entry, &one.real]);
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

pub(crate) fn available_mib(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? / 1024)
}

/// Quotes a path as one word of a shell command.
///
/// # Errors
///
/// The path has a zero byte.
pub fn quote(path: &Path) -> Result<String> {
    Ok(shlex::try_quote(&path.to_string_lossy())?.into_owned())
}
