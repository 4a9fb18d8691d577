//! `ucmatose` of rdmacm-utils, in safe Rust: connections, messages over each, and their end. The C
//! program can be on the other side.

#![expect(clippy::print_stdout, reason = "of a program for the terminal")]

mod node;
mod side;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use examples::pingpong::options::{finish, number, positive};
use verbs::AckTimeout;

/// Makes connections, sends messages over each, and ends them
#[derive(Parser)]
#[command(name = "ucmatose")]
struct Options {
    /// Connect to the server on this host; without it, be the server
    #[arg(short)]
    server: Option<String>,
    /// This side's address
    #[arg(short)]
    bind: Option<String>,
    /// What the addresses are
    #[arg(short, value_enum, ignore_case = true, default_value = "name")]
    format: Format,
    /// The port space
    #[arg(short = 'P', value_enum, ignore_case = true, default_value = "tcp")]
    port_space: Space,
    /// How many connections
    #[arg(short, default_value_t = 1, value_parser = positive::<u32>)]
    connections: u32,
    /// How many messages each side sends over each
    #[arg(short = 'C', default_value_t = 10, value_parser = number::<u32>)]
    count: u32,
    /// The size of a message, in bytes
    #[arg(short = 'S', default_value_t = 100, value_parser = number::<u32>)]
    size: u32,
    /// The type of service
    #[arg(short, value_parser = number::<u8>)]
    tos: Option<u8>,
    /// The port, or the name of a service
    #[arg(short, default_value = "7471")]
    port: String,
    /// End the connections on another event channel
    #[arg(short)]
    migrate: bool,
    /// How long to wait for an acknowledgement: 4.096 µs times two to the power of this
    #[arg(short, value_parser = ack_timeout)]
    ack_timeout: Option<AckTimeout>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Names, or addresses of IP
    Name,
    /// Addresses of IP
    #[value(alias = "ipv6")]
    Ip,
    /// InfiniBand's own addresses
    Gid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Space {
    Tcp,
    Ib,
}

fn ack_timeout(text: &str) -> Result<AckTimeout, String> {
    AckTimeout::new(number(text)?).map_err(|err| err.to_string())
}

fn main() -> ExitCode {
    let options = Options::parse();
    let outcome = side::run(&options);
    println!("test complete");
    println!("return status {}", i32::from(outcome.is_err()));
    finish(outcome)
}
