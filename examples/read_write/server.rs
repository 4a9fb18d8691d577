//! The server of the-geek-in-the-corner's second example, in safe Rust.
//!
//! The server and each client exchange the tokens of their memory; then each writes to or reads from the
//! other's. Interoperates with the C program.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    process::ExitCode,
};

use clap::Parser;

use examples::{
    event_loop::drive::serve,
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
    let options = Options::parse();
    let any: IpAddr = match options.ipv4 {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => Ipv6Addr::UNSPECIFIED.into(),
    };
    let server = Exchange {
        mode: options.mode,
        side: Side::Server,
    };
    finish(serve(server, (any, options.port).into(), options.clients).map(drop))
}
