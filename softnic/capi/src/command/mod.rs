//! The command `softnic`.

mod addresses;
mod doctor;
mod library;

use std::{
    env, ffi::OsString, io, net::IpAddr, os::unix::process::CommandExt, path::PathBuf,
    process::Command,
};

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use softnic::{Card, UnknownCard};

use crate::{device_files, keeper};
use library::Libraries;

/// RDMA in user space for unmodified programs: queue pairs and connections over UDP, as an ordinary user, without a kernel
/// module.
#[derive(Debug, Parser)]
#[command(name = "softnic", version)]
pub struct Cli {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Run a program with a softnic device in place of the machine's RDMA devices
    Run(Run),
    /// Run a program with a softnic device, and report misuse of verbs on standard error: memory reused or unmapped while
    /// posted, small queues, requests outside of their region
    Check(CheckOptions),
    /// Print the folder with libibverbs.so.1 and librdmacm.so.1, for `LD_LIBRARY_PATH`; the device has the address in
    /// `SOFTNIC_ADDR`
    Libraries,
    /// Look for causes for which programs have no device, or a slow one
    Doctor {
        /// Address of the device. Without it, the first free one of 127.0.0.2, 127.0.0.3 and so on
        #[arg(long, value_name = "ADDRESS")]
        addr: Option<IpAddr>,
    },
    /// Share the UDP port of an address among programs; started by the first one
    #[command(hide = true)]
    Keeper {
        addr: IpAddr,
        #[arg(long)]
        detached: bool,
    },
}

#[derive(Args, Debug)]
struct Run {
    /// Address of the device, one of this machine's: UDP port 4791 of the address. Without it, the first free one of 127.0.0.2,
    /// 127.0.0.3 and so on. Programs of this machine alone reach an address that starts with 127
    #[arg(long, value_name = "ADDRESS")]
    addr: Option<IpAddr>,
    /// Probability, 0 to 1, of the loss of a sent frame
    #[arg(long, value_name = "PROBABILITY", value_parser = probability)]
    loss: Option<f64>,
    /// Seed of the losses, and of keys and numbers that are random otherwise
    #[arg(long)]
    seed: Option<u64>,
    /// File for the sent and received frames, for Wireshark
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Freedoms of devices that the device uses, by a seed: `7` for all rules, `7:stale-fields,keys` for two
    #[arg(long, value_name = "SEED[:RULES]")]
    adversary: Option<String>,
    /// Card whose limits and roundings the device has
    #[arg(long, value_name = "CARD", value_parser = card, long_help = card_help())]
    card: Option<Card>,
    /// The program and its arguments
    #[arg(required = true, last = true)]
    program: Vec<OsString>,
}

#[derive(Args, Debug)]
struct CheckOptions {
    /// Exit status of a program with reports, in place of its own; 0 to 255
    #[arg(long, value_name = "STATUS", default_value_t = 99)]
    error_exitcode: u8,
    #[command(flatten)]
    run: Run,
}

fn card(text: &str) -> Result<Card, String> {
    text.parse().map_err(|error: UnknownCard| error.to_string())
}

/// The help with all cards.
fn card_help() -> String {
    let mut help =
        "Card whose limits and roundings the device has; requests that its driver refuses fail"
            .to_owned();
    for card in Card::ALL {
        help.push_str(&format!("\n- {card}: {}", card.driver()));
    }
    help
}

fn probability(text: &str) -> Result<f64, String> {
    let value = text.parse().map_err(|_| "not a number".to_owned())?;
    match (0.0..=1.0).contains(&value) {
        true => Ok(value),
        false => Err("it must be between 0 and 1".to_owned()),
    }
}

/// Runs the command. The program of `softnic run` takes the place of this process.
///
/// # Errors
/// - The library is missing, no address is free, or the program cannot be run.
pub fn run(cli: &Cli) -> Result<()> {
    match &cli.action {
        Action::Run(options) => execute(command(options, &Libraries::of_package()?)?),
        Action::Check(options) => execute(checked(options, &Libraries::of_package()?)?),
        Action::Libraries => {
            let folder = library::folder()?;
            #[expect(clippy::print_stdout, reason = "the answer of the command")]
            {
                println!("{}", folder.display());
            }
            Ok(())
        }
        Action::Doctor { addr } => {
            // Without a free address, the first one shows the cause.
            let addr = addr.or_else(|| addresses::free().ok());
            let addr = addr.unwrap_or(IpAddr::from([127, 0, 0, 2]));
            ensure!(doctor::run(addr), "programs have no device at {addr}");
            Ok(())
        }
        Action::Keeper { addr, detached } => keeper::start(*addr, *detached),
    }
}

/// Puts a program in the place of this process.
fn execute(mut command: Command) -> Result<()> {
    let error = command.exec();
    let program = command.get_program().display();
    Err(error).with_context(|| format!("cannot run {program}"))
}

/// Options of `AddressSanitizer`, whose shared library otherwise refuses another one before it. The present ones count more.
fn sanitizer_options() -> OsString {
    let mut options = OsString::from("verify_asan_link_order=0:");
    options.push(env::var_os("ASAN_OPTIONS").unwrap_or_default());
    options
}

#[expect(clippy::print_stderr, reason = "the program runs nevertheless")]
fn report_missing_files(error: &io::Error) {
    eprintln!("softnic: no files below /sys/class/infiniband: {error}");
}

/// The program with its environment, and with checks.
fn checked(options: &CheckOptions, libraries: &Libraries) -> Result<Command> {
    let mut command = command(&options.run, libraries)?;
    command.env("SOFTNIC_CHECK", "1");
    command.env("SOFTNIC_CHECK_EXITCODE", options.error_exitcode.to_string());
    Ok(command)
}

/// The program with its environment.
fn command(options: &Run, libraries: &Libraries) -> Result<Command> {
    let mut words = options.program.iter();
    let program = words.next().context("no program is given")?;
    let addr = match options.addr {
        Some(addr) => addr,
        None => addresses::free()?,
    };
    let mut command = Command::new(program);
    command.args(words);
    command.env("LD_LIBRARY_PATH", &libraries.search_path);
    let files = device_files::folder(addr);
    match device_files::check(&files) {
        Ok(()) => {
            command.env("LD_PRELOAD", &libraries.preloaded);
            command.env("SOFTNIC_FILES", files);
            command.env("ASAN_OPTIONS", sanitizer_options());
        }
        Err(error) => report_missing_files(&error),
    }
    command.env("SOFTNIC_ADDR", addr.to_string());
    let keeper = env::current_exe().context("cannot find the command's own file")?;
    command.env("SOFTNIC_KEEPER", keeper);
    if let Some(loss) = options.loss {
        command.env("SOFTNIC_LOSS", loss.to_string());
    }
    if let Some(seed) = options.seed {
        command.env("SOFTNIC_SEED", seed.to_string());
    }
    if let Some(pcap) = &options.pcap {
        command.env("SOFTNIC_PCAP", pcap);
    }
    if let Some(adversary) = &options.adversary {
        command.env("SOFTNIC_ADVERSARY", adversary);
    }
    if let Some(card) = options.card {
        command.env("SOFTNIC_CARD", card.name());
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Run, String> {
        let words = [&["softnic", "run"], words].concat();
        match Cli::try_parse_from(words).map(|cli| cli.action) {
            Ok(Action::Run(run)) => Ok(run),
            Ok(
                Action::Check(_)
                | Action::Doctor { .. }
                | Action::Libraries
                | Action::Keeper { .. },
            ) => unreachable!(),
            Err(error) => Err(error.to_string()),
        }
    }

    fn libraries() -> Libraries {
        Libraries {
            search_path: "a:b".into(),
            preloaded: "c:d".into(),
        }
    }

    #[test]
    fn options_are_passed_in_the_environment_and_the_rest_to_the_program() {
        let words = "--addr 127.0.0.9 --loss 0.25 --seed 7 --pcap a.pcap -- rping -s --addr x";
        let words: Vec<_> = words.split(' ').collect();
        let command = command(&parsed(&words).unwrap(), &libraries()).unwrap();
        let args: Vec<_> = command.get_args().collect();
        assert_eq!(args, ["-s", "--addr", "x"]);
        let envs = command.get_envs().map(|(name, value)| {
            let value = value.unwrap_or_default().display();
            format!("{}={value}", name.display())
        });
        let envs: Vec<_> = envs.collect();
        let keeper = env::current_exe().unwrap();
        let keeper = format!("SOFTNIC_KEEPER={}", keeper.display());
        let files = device_files::folder("127.0.0.9".parse().unwrap());
        let files = format!("SOFTNIC_FILES={}", files.display());
        let sanitizer = format!("ASAN_OPTIONS={}", sanitizer_options().display());
        let expected = [
            &sanitizer,
            "LD_LIBRARY_PATH=a:b",
            "LD_PRELOAD=c:d",
            "SOFTNIC_ADDR=127.0.0.9",
            &files,
            &keeper,
            "SOFTNIC_LOSS=0.25",
            "SOFTNIC_PCAP=a.pcap",
            "SOFTNIC_SEED=7",
        ];
        assert_eq!(envs, expected);
    }

    #[test]
    fn checks_are_requested_with_the_exit_status() {
        let words = "softnic check --adversary 7:keys --card connectx-5 --addr 127.0.0.9 --error-exitcode 3 -- rping";
        let Action::Check(options) = Cli::try_parse_from(words.split(' ')).unwrap().action else {
            unreachable!();
        };
        let command = checked(&options, &libraries()).unwrap();
        let has = |name: &str, value: &str| {
            command
                .get_envs()
                .any(|env| env == (name.as_ref(), Some(value.as_ref())))
        };
        assert!(has("SOFTNIC_CHECK", "1"), "{command:?}");
        assert!(has("SOFTNIC_CHECK_EXITCODE", "3"), "{command:?}");
        assert!(has("SOFTNIC_ADVERSARY", "7:keys"), "{command:?}");
        assert!(has("SOFTNIC_CARD", "connectx-5"), "{command:?}");
    }

    #[test]
    fn bad_options_are_refused_before_the_program_runs() {
        for (words, expected) in [
            ("--loss 2 -- rping", "it must be between 0 and 1"),
            ("--loss x -- rping", "not a number"),
            ("--addr here -- rping", "invalid IP address syntax"),
            (
                "--card x -- rping",
                "no card is named `x`: use one of connectx-3,",
            ),
            ("--addr 127.0.0.2", "required"),
        ] {
            let error = parsed(&words.split(' ').collect::<Vec<_>>()).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
