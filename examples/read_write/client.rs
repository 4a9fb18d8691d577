//! The client of the-geek-in-the-corner's second example, in safe Rust.
//!
//! Client and server exchange the tokens of their memory; then each writes to or reads from the other's.
//! Interoperates with the C program.

use std::process::ExitCode;

use clap::Parser;
use cm::event_loop::EventLoop;

use examples::{
    address::resolve,
    pingpong::options::finish,
    read_write::exchange::{Exchange, Mode, Side},
};

/// Exchanges one message with a server by RDMA
#[derive(Parser)]
#[command(name = "read-write-client")]
struct Options {
    /// Operation on the server's memory; must be the same on the server
    mode: Mode,
    /// The server's address, or its name
    server_address: String,
    /// The server's port, as printed by the server
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
    EventLoop::connect(client, None, server)?.run().map(drop)
}
