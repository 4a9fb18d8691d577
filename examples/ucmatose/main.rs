//! `ucmatose` of rdmacm-utils, in safe Rust: connections, messages on each, and disconnects. Interoperates
//! with the C program.

#![expect(clippy::print_stdout, reason = "of a program for the terminal")]

mod node;
mod side;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use examples::pingpong::options::{finish, number, positive};
use verbs::qp::AckTimeout;

/// Establishes connections, sends messages on each, and disconnects
#[derive(Parser)]
#[command(name = "ucmatose")]
struct Options {
    /// Connect to the server on this host; without a host, run the server
    #[arg(short)]
    server: Option<String>,
    /// Local address
    #[arg(short)]
    bind: Option<String>,
    /// Format of the addresses
    #[arg(short, value_enum, ignore_case = true, default_value = "name")]
    format: Format,
    /// The port space
    #[arg(short = 'P', value_enum, ignore_case = true, default_value = "tcp")]
    port_space: Space,
    /// Number of connections
    #[arg(short, default_value_t = 1, value_parser = positive::<u32>)]
    connections: u32,
    /// Number of messages in each direction per connection
    #[arg(short = 'C', default_value_t = 10, value_parser = number::<u32>)]
    count: u32,
    /// Message size, in bytes
    #[arg(short = 'S', default_value_t = 100, value_parser = number::<u32>)]
    size: u32,
    /// The type of service
    #[arg(short, value_parser = number::<u8>)]
    tos: Option<u8>,
    /// Port number or service name
    #[arg(short, default_value = "7471")]
    port: String,
    /// Disconnect on another event channel
    #[arg(short)]
    migrate: bool,
    /// Acknowledgement timeout: 4.096 µs times two to the power of this
    #[arg(short, value_parser = ack_timeout)]
    ack_timeout: Option<AckTimeout>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Host names or IP addresses
    Name,
    /// IP addresses
    #[value(alias = "ipv6")]
    Ip,
    /// InfiniBand addresses
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
