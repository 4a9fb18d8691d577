//! The command line, of `cargo soft-roce` and of programs with the same commands.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum};

use crate::backend::{self, Backend};
use crate::boot::kernel::{self, Source};
use crate::boot::rdma_core;
use crate::commands::cargo_runner::{self, TestArguments};
use crate::commands::setup::{self, Group};
use crate::commands::{command, doctor};
use crate::network::control;
use crate::workspace::Workspace;
use crate::{Device, Host, LinkChange, LinkOption, Until};

/// The commands of `cargo soft-roce`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command in a guest, or commands in several guests joined by a wire or a switch
    #[command(after_long_help = COMMANDS_VIEW)]
    Run(Box<RunArguments>),
    /// Open a shell in a guest
    Shell(GuestArguments),
    /// Run the workspace's tests, each test program in a guest
    #[command(after_long_help = TESTS_VIEW)]
    Test(Box<TestArguments>),
    /// Cut, restore, delay or make faulty a link of a run in progress
    #[command(after_help = LINK_VIEW)]
    Link {
        /// One host of the link
        one: Host,
        /// The other host
        other: Host,
        /// up, down, loss=0.1, delay=20ms, duplication=0.1 or corruption=0.1
        change: LinkChange,
        /// Process id of the run, if several are in progress
        #[arg(long, value_name = "PID")]
        run: Option<u32>,
    },
    /// Report missing parts, and the speed of guests on this machine
    Doctor,
    /// Install the packages of guests
    Setup {
        /// Only report missing packages
        #[arg(long)]
        check: bool,
    },
    /// Run a program in a guest; cargo starts test programs so
    #[command(hide = true)]
    Runner {
        /// The program and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
}

/// Environment of a command, appended to the help of `soft-roce run`.
const COMMANDS_VIEW: &str = "\
Environment of a command in a guest, as root:
  Files              This machine's; with --root, those of that folder, and the workspace. Writes stay in the guest's memory and are lost at the end, except in $OUT.
  $OUT               Folder for results, shared with this machine: target/soft-roce/out. For files and folders of the
                     caller: no links, devices, sockets; chmod, chown and touch have no effect
  /tmp, /run, /dev/shm
                     The guest's own, and empty, except for the workspace, the working directory, and paths among the
                     words of the command (for a script, only its first word)
  Working directory  The caller's
  Standard input     The caller's; empty for several guests
  $PATH              The system's folders, then target/debug, target/release, and the examples in them
  $RDMA_DEVICE       The device, rxe0 or siw0
  $A, $A6, $B, $B6   Addresses of the hosts, IPv4 and IPv6, up to the last host. Their names are `a`, `b` and so on
  $HOST, $HOSTS      This host's name; the names of all
  $WORKSPACE         Root of the workspace
  Other variables    HOME, LANG; RUST_BACKTRACE, RUST_LOG, LONG and TERM of the caller; --env sets more
  Kernel modules     Loaded on demand, or by modprobe. RDS only by --rds or modprobe
  Limits             No limit of locked memory; core files are written to $OUT

Exit code: that of the first command that fails; 124 after --timeout; 125 if a guest or its kernel fails.";

/// Appended to the help of `soft-roce link`.
const LINK_VIEW: &str = "\
Both directions change, for frames sent from now on. The run was started with --hosts, --each or --link.

    cargo soft-roce link a b down
    cargo soft-roce link a b delay=20ms";

/// Environment of tests, appended to the help of `soft-roce test`.
const TESTS_VIEW: &str = "\
Each test program of cargo, and each test of nextest, runs in a guest of its own, as root, with the working directory,
arguments, standard input and environment that cargo gives it, and the variables $A, $A6, $HOST, $RDMA_DEVICE, $OUT and
$WORKSPACE of `soft-roce run`. Its exit code is the test's; 124 after --timeout; 125 if a guest or its kernel fails.
Files that a test writes are lost at the end, except in $OUT. Variables that do not apply in a guest, such as TMPDIR and
DISPLAY, are not passed on.

    cargo soft-roce test -p mycrate --test device -- --nocapture
    cargo soft-roce test --device siw --memory 2048 -- some_test";

/// Options of a guest.
#[derive(Debug, Args)]
pub struct GuestArguments {
    /// Kind of RDMA device
    #[arg(long, value_enum, default_value_t)]
    pub(crate) device: Device,
    /// Machine of the guest: QEMU or User-Mode Linux
    #[arg(long, value_enum, default_value_t, env = backend::VARIABLE)]
    pub(crate) backend: Backend,
    /// Memory of each guest
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub(crate) memory: u32,
    /// Processors of each guest [default: 2 for rxe, 1 for siw]
    #[arg(long, value_name = "N")]
    pub(crate) cpus: Option<u32>,
    /// MTU of the network interface [default: 4200]
    #[arg(long, value_name = "N")]
    pub(crate) mtu: Option<u32>,
    /// Kernel to boot instead of the default: a series such as 6.12, `newest`, or an image with --modules (for User-Mode
    /// Linux, the kernel's program)
    #[arg(long, value_name = "KERNEL", env = kernel::VARIABLE)]
    pub(crate) kernel: Option<PathBuf>,
    /// Folder with the modules of a kernel image
    #[arg(long, value_name = "DIR", requires = "kernel", env = kernel::MODULES_VARIABLE)]
    pub(crate) modules: Option<PathBuf>,
    /// rdma-core instead of the installed one: `newest`, or the folder of a build
    #[arg(long, value_name = "DIR", env = rdma_core::VARIABLE)]
    pub(crate) rdma_core: Option<PathBuf>,
    /// Root file system of the guests, with programs of another release, or of ARM64 or x86-64, instead of this machine's
    #[arg(long, value_name = "DIR", conflicts_with = "rdma_core")]
    pub(crate) root: Option<PathBuf>,
    /// Hosts that load the kernel's RDS over RDMA
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    pub(crate) rds: Vec<Host>,
    /// Set a variable for the commands
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,
}

impl GuestArguments {
    /// The chosen kernel.
    ///
    /// # Errors
    ///
    /// A kernel image without `--modules`.
    pub(crate) fn kernel(&self) -> Result<Source> {
        Source::chosen(self.kernel.as_deref(), self.modules.as_deref())
    }

    /// The options as words of a command line, without defaults. Paths are absolute.
    ///
    /// # Errors
    ///
    /// A path is not UTF-8, or does not exist.
    pub(crate) fn words(&self) -> Result<Vec<String>> {
        let name = |value: &dyn Fn() -> Option<PossibleValue>| {
            value()
                .map(|value| value.get_name().to_owned())
                .unwrap_or_default()
        };
        let mut words = Vec::new();
        let mut option = |option: &str, value: String| words.extend([option.to_owned(), value]);
        option("--device", name(&|| self.device.to_possible_value()));
        option("--backend", name(&|| self.backend.to_possible_value()));
        option("--memory", self.memory.to_string());
        let numbers = [("--cpus", self.cpus), ("--mtu", self.mtu)];
        for (word, number) in numbers {
            if let Some(number) = number {
                option(word, number.to_string());
            }
        }
        let named = |path: &Path| kernel::name(path).is_some();
        for (word, path, is_name) in [
            (
                "--kernel",
                &self.kernel,
                self.kernel.as_deref().is_some_and(named),
            ),
            ("--modules", &self.modules, false),
            ("--root", &self.root, false),
            (
                "--rdma-core",
                &self.rdma_core,
                self.rdma_core.as_deref().is_some_and(rdma_core::is_name),
            ),
        ] {
            match path {
                Some(name) if is_name => option(word, text(name.as_os_str())?.to_owned()),
                Some(path) => option(word, absolute(path)?),
                None => {}
            }
        }
        for host in &self.rds {
            option("--rds", host.to_string());
        }
        for (name, value) in &self.env {
            option("--env", format!("{name}={value}"));
        }
        Ok(words)
    }
}

fn absolute(path: &Path) -> Result<String> {
    let path = path
        .canonicalize()
        .with_context(|| format!("cannot find {}", path.display()))?;
    Ok(text(path.as_os_str())?.to_owned())
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArguments {
    #[command(flatten)]
    pub(crate) guest: GuestArguments,
    /// Stop the commands after S seconds, excluding the boot
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) timeout: Option<Duration>,
    /// Record the packets between guests
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,
    /// Command for host a, at 10.9.0.1 ($A)
    #[arg(long, value_name = "CMD", requires = "b", conflicts_with_all = ["command", "hosts", "each"])]
    pub(crate) a: Option<String>,
    /// Command for host b, at 10.9.0.2 ($B)
    #[arg(long, value_name = "CMD", requires = "a", conflicts_with_all = ["command", "hosts", "each"])]
    pub(crate) b: Option<String>,
    /// Number of guests, hosts a, b, c and so on, joined by a switch; each runs the command, which reads $HOST and $HOSTS
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=26), conflicts_with = "each")]
    pub(crate) hosts: Option<u8>,
    /// Command for the next host; repeat for hosts a, b, c and so on, joined by a switch
    #[arg(long, value_name = "CMD", conflicts_with = "command")]
    pub(crate) each: Vec<String>,
    /// Condition of a link: a-b:loss=0.1,delay=20ms or all:duplication=0.01,corruption=0.01 or b-c:down; `soft-roce link`
    /// changes it later
    #[arg(long, value_name = "LINK")]
    pub(crate) link: Vec<LinkOption>,
    /// Machine to run on: a guest, or this machine's own kernel
    #[arg(long, value_enum, default_value_t, conflicts_with_all = ["a", "pcap", "kernel", "rds", "hosts", "each", "link"])]
    pub(crate) on: RunOn,
    /// Stop when this host's command exits
    #[arg(long, value_name = "HOST")]
    pub(crate) until: Option<Until>,
    /// Keep the other commands running after one has failed
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Print the guests' boot times, and each command's exit code
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Command for the only guest, or for each of --hosts: one argument is a shell script, several are a program and its arguments
    #[arg(last = true, value_name = "CMD", required_unless_present_any = ["a", "each"])]
    pub(crate) command: Vec<String>,
}

/// The machine that runs the commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunOn {
    /// A new guest.
    #[default]
    Guest,
    /// This machine; needs root, and a kernel with the device's module.
    Host,
}

impl Command {
    /// Runs the command, and returns the exit code. Blocks until the command has ended.
    ///
    /// # Errors
    ///
    /// No guest can be started; see [`Run::execute`](crate::Run::execute).
    pub fn execute(self, workspace: &Workspace) -> Result<ExitCode> {
        match self {
            Self::Run(arguments) => command::run(*arguments, workspace),
            Self::Shell(arguments) => command::shell(arguments, workspace),
            Self::Test(arguments) => cargo_runner::test(*arguments, workspace),
            Self::Link {
                one,
                other,
                change,
                run,
            } => {
                control::request(workspace, run, (one, other), change)?;
                Ok(ExitCode::SUCCESS)
            }
            Self::Doctor => Ok(doctor::run(workspace)),
            Self::Setup { check } => {
                if check {
                    setup::check(Group::OF_GUESTS)?;
                } else {
                    setup::ensure(Group::OF_GUESTS)?;
                }
                Ok(ExitCode::SUCCESS)
            }
            Self::Runner { words } => cargo_runner::run(&words, workspace),
        }
    }
}

/// The text of an argument.
pub(crate) fn text(word: &OsStr) -> Result<&str> {
    word.to_str().with_context(|| {
        format!(
            "{} is not UTF-8, and a guest's shell needs text",
            word.display()
        )
    })
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !plain || name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(format!(
            "`{name}` is not a variable name: use letters, digits and `_`, not starting with a digit"
        ));
    }
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    /// A program with these commands.
    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        _command: Command,
    }

    #[test]
    fn run_takes_one_command_or_two() {
        let parse = |words: &str| Line::try_parse_from(words.split(' '));
        assert!(parse("soft-roce run -- true").is_ok());
        assert!(parse("soft-roce run --a true --b true").is_ok());
        assert!(parse("soft-roce run --a true").is_err());
        assert!(parse("soft-roce run --a true --b true -- true").is_err());
        assert!(parse("soft-roce run").is_err());
        assert!(parse("soft-roce run --rds a,b --env X=1 -- true").is_ok());
        assert!(parse("soft-roce run --env 1X=1 -- true").is_err());
    }

    #[test]
    fn run_takes_many_hosts_and_links() {
        let parse = |words: &str| Line::try_parse_from(words.split(' '));
        for accepted in [
            "run --hosts 5 -- true",
            "run --each true --each false --each true --until c",
            "run --hosts 3 --link a-b:down --link all:loss=0.1,delay=5ms -- true",
            "run --a true --b true --link a-b:delay=1s --until both",
            "link a b down",
            "link c a loss=0.5 --run 7",
        ] {
            assert!(
                parse(&format!("soft-roce {accepted}")).is_ok(),
                "{accepted}"
            );
        }
        for refused in [
            "run --hosts 5",
            "run --hosts 0 -- true",
            "run --hosts 27 -- true",
            "run --hosts 2 --each true -- true",
            "run --each true -- true",
            "run --hosts 2 --a true --b true",
            "run --hosts 3 --link a-b -- true",
            "run --hosts 3 --until 1 -- true",
            "link a down",
            "link a b cut",
        ] {
            assert!(parse(&format!("soft-roce {refused}")).is_err(), "{refused}");
        }
    }
}
