//! The client of the-geek-in-the-corner's second example, in safe Rust.
//!
//! It and the server tell each other where their memory is; then each writes to the other's, or
//! reads from it. The C program can be on the other side.

use std::process::ExitCode;

use clap::Parser;

use examples::{
    event_loop::{address::resolve, drive::call},
    pingpong::options::finish,
    read_write::exchange::{Exchange, Mode, Side},
};

/// Exchanges one message with a server by RDMA
#[derive(Parser)]
#[command(name = "read-write-client")]
struct Options {
    /// What to do with the server's memory: the same as it does
    mode: Mode,
    /// The server's address, or its name
    server_address: String,
    /// The port that the server has printed
    server_port: u16,
}

fn main() -> ExitCode {
    finish(run(&Options::parse()))
}

fn run(options: &Options) -> anyhow::Result<()> {
    let server = resolve(&options.server_address, options.server_port)?;
    let client = Exchange {
        mode: options.mode,
        side: Side::Client,
    };
    call(client, None, server).map(drop)
}
