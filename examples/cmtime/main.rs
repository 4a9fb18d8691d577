//! `cmtime` of rdmacm-utils, in safe Rust: duration of each step of creating and ending connections.
//! Interoperates with the C program of rdma-core 44. Since rdma-core 64 that program has other options, and its sides
//! synchronize over TCP.

mod caller;
mod qp;
mod server;
mod timing;

use std::{process::ExitCode, time::Duration};

use clap::Parser;
use examples::pingpong::options::{finish, number, positive};

/// Measures the steps of making and ending connections
#[derive(Parser)]
#[command(name = "cmtime")]
struct Options {
    /// Connect to the server on this host; without a host, run the server, without end
    #[arg(short)]
    server: Option<String>,
    /// Local address
    #[arg(short)]
    bind: Option<String>,
    /// Number of concurrent connections
    #[arg(short, default_value_t = 100, value_parser = positive::<u32>)]
    connections: u32,
    /// Port number or service name
    #[arg(short, default_value = "7471")]
    port: String,
    /// Number of retries for resolving an address or a route
    #[arg(short, default_value_t = 2, value_parser = retries)]
    retries: u8,
    /// Timeout for resolving an address or a route, in milliseconds
    #[arg(short, default_value = "2000", value_name = "MS", value_parser = milliseconds)]
    timeout: Duration,
}

/// Parses the number of retries. The connection request uses the same number, of which the maximum is 7.
fn retries(text: &str) -> Result<u8, String> {
    match number(text)? {
        retries @ 0..8 => Ok(retries),
        _ => Err("there are at most 7 retries".to_owned()),
    }
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    Ok(Duration::from_millis(number::<u32>(text)?.into()))
}

fn main() -> ExitCode {
    let options = Options::parse();
    finish(match &options.server {
        Some(server) => caller::run(&options, server),
        None => server::run(&options),
    })
}
