//! The commands of `cargo soft-roce`: from the command line to a [`Run`] and its exit code.

use std::io::{self, IsTerminal, Stdin};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::commands::cli::{GuestArguments, RunArguments, RunOn};
use crate::commands::report::{Outcome, Printer, Style};
use crate::host::HostRun;
use crate::workspace::Workspace;
use crate::{RdmaCore, Run, shown};

/// `soft-roce run`.
pub(crate) fn run(arguments: RunArguments, workspace: &Workspace) -> Result<ExitCode> {
    if arguments.on == RunOn::Host {
        let script = command_text(&arguments.command)?;
        let RunArguments { guest, timeout, .. } = arguments;
        let host = HostRun {
            device: guest.device,
            mtu: guest.mtu,
            timeout,
            rdma_core: chosen_rdma_core(&guest)?,
            environment: guest.env,
        };
        return host.execute(workspace, &script);
    }
    let folder = working_directory()?;
    let named = shown::named(&first_words(&arguments), &folder);
    let is_alone = arguments.hosts.is_none() && !arguments.command.is_empty();
    let style = if is_alone {
        Style::Raw
    } else {
        Style::Prefixed
    };
    let plan = match (arguments.a, arguments.b) {
        (Some(a), Some(b)) => Run::pair(a, b),
        _ if !arguments.each.is_empty() => Run::each(arguments.each),
        _ => {
            let command = command_text(&arguments.command)?;
            match arguments.hosts {
                Some(hosts) => Run::each(vec![command; hosts.into()]),
                None => Run::single(command).stdin(is_readable(&io::stdin())),
            }
        }
    };
    let plan = arguments.link.into_iter().fold(plan, Run::link);
    let plan = with_guest(plan, arguments.guest)?
        .folder(folder)
        .showing(named)
        .timeout(arguments.timeout)
        .pcap(arguments.pcap)
        .until(arguments.until.unwrap_or_default())
        .keep_going(arguments.keep_going);
    let hidden = plan.first_hidden(workspace);
    let mut printer = Printer::new(style, arguments.verbose);
    let outcome = plan.execute(workspace, &mut |event| printer.print(event))?;
    if arguments.verbose {
        eprint!("{}", outcome.boot_times());
    }
    if let Some(path) = hidden.filter(|_| !outcome.is_success()) {
        eprintln!(
            "note: {} is not in the guest: /tmp, /run and /dev/shm are the guest's own. Run from that folder, or give \
             the program and its arguments as several words: `-- PROGRAM ARGUMENT`",
            path.display()
        );
    }
    Ok(finish(&outcome))
}

/// Words that may name files: all words of a program and its arguments, or the first word of a script.
fn first_words(arguments: &RunArguments) -> Vec<String> {
    let [_, _, ..] = &arguments.command[..] else {
        let scripts = arguments
            .command
            .iter()
            .chain(&arguments.a)
            .chain(&arguments.b)
            .chain(&arguments.each);
        return scripts
            .filter_map(|script| shlex::Shlex::new(script).next())
            .collect();
    };
    arguments.command.clone()
}

pub(crate) fn working_directory() -> Result<PathBuf> {
    std::env::current_dir()
        .context("the working directory does not exist any more: change to another")
}

/// Whether this process may read standard input. A background process of a terminal would be stopped by SIGTTIN.
pub(crate) fn is_readable(stdin: &Stdin) -> bool {
    let foreground = rustix::termios::tcgetpgrp(stdin).ok();
    !stdin.is_terminal() || foreground == Some(rustix::process::getpgrp())
}

/// `soft-roce shell`.
pub(crate) fn shell(arguments: GuestArguments, workspace: &Workspace) -> Result<ExitCode> {
    let plan = with_guest(Run::shell(), arguments)?.folder(working_directory()?);
    let outcome = plan.execute(workspace, &mut |_| {})?;
    Ok(finish(&outcome))
}

fn chosen_rdma_core(arguments: &GuestArguments) -> Result<Option<RdmaCore>> {
    let chosen = arguments.rdma_core.as_deref();
    chosen.map(RdmaCore::find).transpose()
}

/// The plan with a guest's options.
///
/// # Errors
///
/// A kernel image without modules, or an absent rdma-core.
pub(crate) fn with_guest(plan: Run, arguments: GuestArguments) -> Result<Run> {
    let kernel = arguments.kernel()?;
    let rdma_core = chosen_rdma_core(&arguments)?;
    let plan = plan
        .device(arguments.device)
        .memory_mib(arguments.memory)
        .cpus(arguments.cpus)
        .mtu(arguments.mtu)
        .backend(arguments.backend)
        .kernel(kernel)
        .rdma_core(rdma_core)
        .root(arguments.root)
        .rds(&arguments.rds);
    let environment = arguments.env.into_iter();
    Ok(environment.fold(plan, |plan, (name, value)| plan.env(name, value)))
}

/// The shell script of a command: one argument is a script, several are quoted and joined.
fn command_text(words: &[String]) -> Result<String> {
    match words {
        [script] => Ok(script.clone()),
        words => Ok(shlex::try_join(words.iter().map(String::as_str))?),
    }
}

pub(crate) fn finish(outcome: &Outcome) -> ExitCode {
    if let Some(complaint) = outcome.complaint() {
        eprintln!("{complaint}");
    }
    ExitCode::from(outcome.exit_code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_text_of_several_words_quotes_spaces() {
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
