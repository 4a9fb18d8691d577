//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::bench;
use crate::soft_roce::backend::{self, Backend};
use crate::soft_roce::{Device, Host, Until};

/// Developer commands.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    disable_help_subcommand = false
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Install the packages that the other commands need
    Setup {
        /// Only report missing packages
        #[arg(long)]
        check: bool,
    },
    /// Run two programs over RDMA and explain each step
    Demo,
    /// Run the tests: on the host, and in guests with a software RDMA device
    Test(TestArguments),
    /// Measure the crates against C programs; not part of `ci`
    Bench {
        /// Set of benchmarks
        #[arg(value_enum)]
        name: bench::Name,
        /// Exit with an error if a bar is missed
        #[arg(long)]
        check: bool,
        /// Skip measurements in guests
        #[arg(long)]
        host_only: bool,
        /// Write 1 GiB in the `write_all` benchmark; takes minutes
        #[arg(long)]
        long: bool,
    },
    /// Insert known faults into a copy of the sources, one at a time; a test must detect each
    Mutants {
        /// Only mutants with this text in the name or file
        filter: Option<String>,
    },
    /// Run all checks and tests required of a change
    Ci {
        /// Repeat the guest tests in QEMU with the distribution's kernel; takes hours without KVM
        #[arg(long)]
        long: bool,
    },
    /// Check the project's rules not covered by a lint
    Tidy,
    /// Regenerate the checked-in bindings of the -sys crates
    Codegen {
        /// Only check, and exit with an error if the bindings are stale
        #[arg(long)]
        check: bool,
    },
    /// Run commands beside a software RDMA device
    SoftRoce {
        #[command(subcommand)]
        command: SoftRoce,
    },
}

#[derive(Debug, Args)]
pub(crate) struct TestArguments {
    /// Only tests without a device
    #[arg(long)]
    pub(crate) host_only: bool,
    /// Only tests with a device
    #[arg(long, conflicts_with = "host_only")]
    pub(crate) device_only: bool,
    /// Add soaks, large schedules and long fuzzing (sets LONG=1)
    #[arg(long)]
    pub(crate) long: bool,
    /// Run the device tests under address sanitizer; needs a nightly toolchain
    #[arg(long, conflicts_with = "host_only")]
    pub(crate) sanitize: bool,
    /// Run the host tests under valgrind's memcheck, except exhaustive tests
    #[arg(long, conflicts_with_all = ["device_only", "sanitize"])]
    pub(crate) valgrind: bool,
    /// Run host tests of verbs under Miri; needs a nightly toolchain with Miri
    #[arg(long, conflicts_with_all = ["device_only", "sanitize", "valgrind"])]
    pub(crate) miri: bool,
    /// Machine of the guests: QEMU or User-Mode Linux
    #[arg(long, value_enum, default_value_t, env = backend::VARIABLE)]
    pub(crate) backend: Backend,
    /// Only tests with this text in the name
    pub(crate) filter: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SoftRoce {
    /// Run a command in a guest, or two commands in two guests joined by a wire
    #[command(after_long_help = COMMANDS_VIEW)]
    Run(Box<RunArguments>),
    /// Open a shell in a guest
    Shell(GuestArguments),
}

/// Environment of a command, appended to the help of `soft-roce run`.
const COMMANDS_VIEW: &str = "\
Environment of a command in a guest, as root:
  Files              This machine's. Writes stay in the guest's memory and are lost at the end, except in $OUT.
  $OUT               Folder for results, shared with this machine: target/soft-roce/out
  /tmp, /run, /dev/shm
                     The guest's own, and empty, except for the checkout, the working directory, and paths among the
                     words of the command (for a script, only its first word)
  Working directory  The caller's
  Standard input     The caller's; empty for two commands
  $PATH              The system's folders, then target/debug, target/release, and the examples in them
  $RDMA_DEVICE       The device, rxe0 or siw0
  $A, $A6, $B, $B6   Addresses of the hosts, IPv4 and IPv6; $B and $B6 with two commands. Their names are `a` and `b`
  $HOST              This host's name
  $WORKSPACE         Root of the checkout
  Other variables    HOME, LANG; RUST_BACKTRACE, RUST_LOG, LONG and TERM of the caller; --env sets more
  Kernel modules     Loaded on demand, or by modprobe. RDS only by --rds or modprobe
  Limits             No limit of locked memory; core files are written to $OUT

Exit code: that of the first command that fails; 124 after --timeout; 125 if a guest or its kernel fails.";

#[derive(Debug, Args)]
pub(crate) struct GuestArguments {
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
    /// Kernel image to boot instead of the distribution's
    #[arg(long, value_name = "VMLINUZ", requires = "modules")]
    pub(crate) kernel: Option<PathBuf>,
    /// Folder with that kernel's modules
    #[arg(long, value_name = "DIR", requires = "kernel")]
    pub(crate) modules: Option<PathBuf>,
    /// Hosts that load the kernel's RDS over RDMA
    #[arg(long, value_name = "HOSTS", value_enum, value_delimiter = ',')]
    pub(crate) rds: Vec<Host>,
    /// Set a variable for the commands
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    pub(crate) guest: GuestArguments,
    /// Stop the commands after S seconds, excluding the boot
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) timeout: Option<Duration>,
    /// Record the packets between two guests
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,
    /// Command for host a, at 10.9.0.1 ($A)
    #[arg(long, value_name = "CMD", requires = "b", conflicts_with = "command")]
    pub(crate) a: Option<String>,
    /// Command for host b, at 10.9.0.2 ($B)
    #[arg(long, value_name = "CMD", requires = "a", conflicts_with = "command")]
    pub(crate) b: Option<String>,
    /// Machine to run on: a guest, or this machine's own kernel
    #[arg(long, value_enum, default_value_t, conflicts_with_all = ["a", "pcap", "kernel", "rds"])]
    pub(crate) on: RunOn,
    /// Stop when this host's command exits
    #[arg(long, value_enum, default_value_t, value_name = "HOST")]
    pub(crate) until: Until,
    /// Keep the other command running after one has failed
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Print the guests' boot times, and each command's exit code
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Command for the only guest: one argument is a shell script, several are a program and its arguments
    #[arg(last = true, value_name = "CMD", required_unless_present = "a")]
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

fn seconds(text: &str) -> Result<Duration, String> {
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
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn run_takes_one_command_or_two() {
        let parse = |words: &str| Cli::try_parse_from(words.split(' '));
        assert!(parse("xtask soft-roce run -- true").is_ok());
        assert!(parse("xtask soft-roce run --a true --b true").is_ok());
        assert!(parse("xtask soft-roce run --a true").is_err());
        assert!(parse("xtask soft-roce run --a true --b true -- true").is_err());
        assert!(parse("xtask soft-roce run").is_err());
        assert!(parse("xtask soft-roce run --rds a,b --env X=1 -- true").is_ok());
        assert!(parse("xtask soft-roce run --env 1X=1 -- true").is_err());
    }
}
