//! The server of the-geek-in-the-corner's second example, in safe Rust.
//!
//! The server and each client exchange the tokens of their memory; then each writes to or reads from the
//! other's. Interoperates with the C program.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::Parser;
use cm::event_loop::EventLoop;

use examples::{
    pingpong::options::finish,
    read_write::exchange::{Exchange, Mode, Side},
};

/// Waits for clients, and exchanges one message with each by RDMA
#[derive(Parser)]
#[command(name = "read-write-server")]
struct Options {
    /// Operation on the client's memory
    mode: Mode,
    /// Listen on an IPv4 address, instead of an IPv6 one, which serves both on RoCE
    #[arg(short = '4', long)]
    ipv4: bool,
    /// The port to listen on; 0 takes a free one
    #[arg(short, long, default_value_t = 0)]
    port: u16,
    /// Exit after this number of clients, instead of never
    #[arg(short, long, value_name = "COUNT")]
    clients: Option<u32>,
}

fn main() -> ExitCode {
    finish(run(&Options::parse()))
}

fn run(options: &Options) -> anyhow::Result<()> {
    let any: IpAddr = match options.ipv4 {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => Ipv6Addr::UNSPECIFIED.into(),
    };
    let server = Exchange {
        mode: options.mode,
        side: Side::Server,
    };
    let mut server = EventLoop::listen(server, (any, options.port).into())?;
    let addr = server.local_addr().context("the listener has no port")?;
    println!("listening on port {}.", addr.port());
    if let Some(clients) = options.clients {
        server = server.limit(clients);
    }
    server.run().map(drop)
}
