//! Developer commands for the workspace: `cargo xtask help`.
//!
//! Only dispatch is here. xtask depends on no C library, and of the workspace only on the harness of the guests, so that a
//! machine without the required packages can build and run `cargo xtask setup`.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "commands report on standard output and standard error"
)]

mod assumptions;
mod bare_machine;
mod bench;
mod book;
mod builders;
mod ci;
mod cli;
mod codegen;
mod conflict_markers;
mod conformance;
mod demo;
mod dependencies;
mod differences;
mod document_paths;
mod documented_limits;
mod fuzz;
mod identifiers;
mod left_out;
mod miri;
mod mutants;
mod outcomes;
mod output;
mod packages;
mod prose;
mod pyverbs;
mod sanitizer;
mod semver;
mod stack;
mod stack_table;
mod stage;
mod surface;
mod test;
mod test_names;
mod tidy;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use cli::{Cli, Command};
use soft_roce::{interrupt, setup};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = interrupt::install().and_then(|()| dispatch(cli.command));
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn dispatch(command: Command) -> Result<ExitCode> {
    match command {
        Command::Setup { check: true } => setup::check(setup::Group::ALL)?,
        Command::Setup { check: false } => {
            setup::ensure(setup::Group::ALL)?;
            if let Err(error) = miri::install() {
                eprintln!("note: {error:#}; no test runs under Miri");
            }
        }
        Command::Demo {
            guests: true, svg, ..
        } => return Ok(verdict(demo::run_in_guests(svg.as_deref())?)),
        Command::Demo {
            original: true,
            svg,
            ..
        } => return Ok(verdict(demo::original::run(svg.as_deref())?)),
        Command::Demo {
            guests: false,
            original: false,
            loss,
            svg,
        } => return Ok(verdict(demo::run(loss, svg.as_deref())?)),
        Command::Test(arguments) => return Ok(verdict(test::run(&arguments)?)),
        Command::Bench {
            name,
            check,
            host_only,
            long,
        } => {
            let is_met = bench::run(name, check, host_only, long)?;
            return Ok(verdict(is_met || !check));
        }
        Command::Tidy => tidy::run(&workspace::Workspace::load()?)?,
        Command::Mutants { filter } => {
            let workspace = workspace::Workspace::load()?;
            return Ok(verdict(mutants::run(&workspace, filter.as_deref())?));
        }
        Command::Ci { long } => return Ok(verdict(ci::run(long)?)),
        Command::Codegen { check } => codegen::run(check)?,
        Command::Semver { baseline } => semver::run(&workspace::Workspace::load()?, &baseline)?,
        Command::Packages => packages::run(&workspace::Workspace::load()?)?,
        Command::Book => {
            let page = book::run(&workspace::Workspace::load()?)?;
            println!("The book is in {}.", page.display());
        }
        Command::SoftRoce { command } => {
            let workspace = workspace::Workspace::load()?;
            return command.execute(workspace.for_guests());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn verdict(passed: bool) -> ExitCode {
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
