//! The server of the-geek-in-the-corner's first example, in safe Rust.
//!
//! Listens, and exchanges one message in each direction with each client. Interoperates with the C program of
//! the same name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use clap::Parser;

use examples::{
    basic_client_server::{
        endpoint::{Output, die},
        server,
    },
    trace,
};

/// Waits for clients, and exchanges one message with each
#[derive(Parser)]
#[command(name = "basic-server")]
struct Options {
    /// Listen on an IPv6 address, instead of an IPv4 one
    #[arg(short = '6', long)]
    ipv6: bool,
    /// The port to listen on; 0 takes a free one
    #[arg(short, long, default_value_t = 0)]
    port: u16,
    /// Exit after this number of clients, instead of never
    #[arg(short, long, value_name = "COUNT")]
    clients: Option<u32>,
}

fn main() {
    let options = Options::parse();
    trace::print_selected();
    let any: IpAddr = match options.ipv6 {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    };
    let addr = SocketAddr::new(any, options.port);
    if let Err(err) = server::run(addr, options.clients, &Output::stdout()) {
        die(&err);
    }
}
