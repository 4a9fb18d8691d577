//! `cargo xtask soft-roce`: from the command line to a [`Run`] and its exit code.

use std::process::ExitCode;

use anyhow::Result;

use super::host::HostRun;
use super::report::{Outcome, Printer, Style};
use super::{Run, Source};
use crate::cli::{GuestArguments, Place, RunArguments};
use crate::workspace::Workspace;

/// `soft-roce run`.
pub(crate) fn run(arguments: RunArguments) -> Result<ExitCode> {
    if arguments.on == Place::Host {
        let script = command_text(&arguments.command)?;
        let RunArguments { guest, timeout, .. } = arguments;
        let host = HostRun {
            device: guest.device,
            mtu: guest.mtu,
            timeout,
            environment: guest.env,
        };
        return host.execute(&Workspace::load()?, &script);
    }
    let plan = match (arguments.a, arguments.b) {
        (Some(a), Some(b)) => Run::pair(a, b),
        _ => Run::single(command_text(&arguments.command)?),
    };
    let style = if arguments.command.is_empty() {
        Style::Prefixed
    } else {
        Style::Raw
    };
    let plan = with_guest(plan, arguments.guest)
        .timeout(arguments.timeout)
        .pcap(arguments.pcap)
        .until(arguments.until)
        .keep_going(arguments.keep_going);
    let mut printer = Printer::new(style, arguments.verbose);
    let outcome = plan.execute(&Workspace::load()?, &mut |event| printer.print(event))?;
    if arguments.verbose {
        eprint!("{}", outcome.boot_times());
    }
    Ok(finish(&outcome))
}

/// `soft-roce shell`.
pub(crate) fn shell(arguments: GuestArguments) -> Result<ExitCode> {
    let outcome = with_guest(Run::shell(), arguments).execute(&Workspace::load()?, &mut |_| {})?;
    Ok(finish(&outcome))
}

fn with_guest(plan: Run, arguments: GuestArguments) -> Run {
    let kernel = match (arguments.kernel, arguments.modules) {
        (Some(image), Some(modules)) => Source::Files { image, modules },
        _ => Source::Distribution,
    };
    let plan = plan
        .device(arguments.device)
        .memory_mib(arguments.memory)
        .cpus(arguments.cpus)
        .mtu(arguments.mtu)
        .backend(arguments.backend)
        .kernel(kernel)
        .rds(&arguments.rds);
    arguments
        .env
        .into_iter()
        .fold(plan, |plan, (name, value)| plan.env(name, value))
}

/// One argument is a script already; several are quoted into one.
fn command_text(words: &[String]) -> Result<String> {
    match words {
        [script] => Ok(script.clone()),
        words => Ok(shlex::try_join(words.iter().map(String::as_str))?),
    }
}

fn finish(outcome: &Outcome) -> ExitCode {
    if let Some(complaint) = outcome.complaint() {
        eprintln!("{complaint}");
    }
    ExitCode::from(outcome.exit_code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_words_keep_their_spaces() {
        let words = |words: &[&str]| {
            words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(command_text(&words(&["exit 7"])).unwrap(), "exit 7");
        assert_eq!(
            command_text(&words(&["echo", "a b"])).unwrap(),
            "echo 'a b'"
        );
    }
}
