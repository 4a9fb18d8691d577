//! `cmtime` of rdmacm-utils, in safe Rust: how long each step of making and ending connections
//! takes. The C program can be on the other side.

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
    /// Connect to the server on this host; without it, be the server, for ever
    #[arg(short)]
    server: Option<String>,
    /// This side's address
    #[arg(short)]
    bind: Option<String>,
    /// How many connections, all at once
    #[arg(short, default_value_t = 100, value_parser = positive::<u32>)]
    connections: u32,
    /// The port, or the name of a service
    #[arg(short, default_value = "7471")]
    port: String,
    /// How often to look again for an address or a route
    #[arg(short, default_value_t = 2, value_parser = retries)]
    retries: u8,
    /// How many milliseconds to look for an address or a route
    #[arg(short, default_value = "2000", value_name = "MS", value_parser = milliseconds)]
    timeout: Duration,
}

/// They are the connection's retries, too, of which there are at most seven.
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
