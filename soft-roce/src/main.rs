//! `cargo soft-roce`: programs and tests beside a software RDMA device, in guests.
#![expect(clippy::print_stderr, reason = "commands report on standard error")]

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use soft_roce::cli::Command;
use soft_roce::{Workspace, interrupt};

/// Cargo starts the program with the subcommand's name as first argument.
#[derive(Debug, Parser)]
#[command(name = "cargo", bin_name = "cargo")]
enum Cargo {
    /// Programs beside a software RDMA device, in guests
    SoftRoce {
        #[command(subcommand)]
        command: Command,
    },
}

fn main() -> ExitCode {
    let Cargo::SoftRoce { command } = Cargo::parse();
    let done = interrupt::install().and_then(|()| execute(command));
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn execute(command: Command) -> Result<ExitCode> {
    command.execute(&Workspace::load()?)
}
