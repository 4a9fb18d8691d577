//! `rping` of rdmacm-utils, in safe Rust: the server reads pings from the client's memory and writes the same
//! bytes back. Interoperates with the C program.

use std::{
    net::{IpAddr, SocketAddr},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::{ArgGroup, Parser};
use cm::event_loop::EventLoop;

use examples::{
    address::resolve,
    pingpong::options::finish,
    rping::{
        client::Client,
        ping::{MAX_SIZE, MIN_SIZE},
        server::Server,
    },
};

/// Reads pings from a client's memory, and writes them back
#[derive(Parser)]
#[command(name = "rping", group = ArgGroup::new("side").required(true))]
#[expect(clippy::struct_excessive_bools, reason = "they are flags")]
struct Options {
    /// Run the server
    #[arg(short, group = "side")]
    server: bool,
    /// Run the client
    #[arg(short, group = "side", requires = "address")]
    client: bool,
    /// The server's address or name; on the server, the address to listen on
    #[arg(short, value_name = "ADDR")]
    address: Option<String>,
    /// The client's own address
    #[arg(short = 'I', value_name = "ADDR", conflicts_with = "server")]
    source: Option<IpAddr>,
    /// The port
    #[arg(short, default_value_t = 7174)]
    port: u16,
    /// Print each ping
    #[arg(short)]
    verbose: bool,
    /// Compare each pong with the ping
    #[arg(short = 'V')]
    validate: bool,
    /// Print each step
    #[arg(short)]
    debug: bool,
    /// Size of a ping, in bytes; on the server, the maximum for clients
    #[arg(short = 'S', default_value_t = 64, value_parser = size)]
    size: usize,
    /// Number of pings; 0 for no limit
    #[arg(short = 'C', default_value_t = 0)]
    count: u64,
    /// Serve any number of clients, concurrently and without end
    #[arg(short = 'P')]
    persistent: bool,
    /// Accepted for compatibility: queue pairs are always created by this program
    #[arg(short = 'q')]
    own_qp: bool,
}

fn size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(size) if (MIN_SIZE..=MAX_SIZE).contains(&size) => Ok(size),
        _ => Err(format!("valid range is {MIN_SIZE} to {MAX_SIZE}")),
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    finish(match options.server {
        true => run_server(&options),
        false => run_client(&options),
    })
}

fn run_server(options: &Options) -> anyhow::Result<()> {
    let server = Server {
        size: options.size,
        verbose: options.verbose,
        debug: options.debug,
    };
    let addr = resolve(
        options.address.as_deref().unwrap_or("0.0.0.0"),
        options.port,
    )?;
    let mut server = EventLoop::listen(server, addr)?;
    if !options.persistent {
        server = server.limit(1);
    }
    server.run().map(drop)
}

fn run_client(options: &Options) -> anyhow::Result<()> {
    let client = Client {
        size: options.size,
        count: options.count,
        verbose: options.verbose,
        validate: options.validate,
        debug: options.debug,
    };
    let address = options.address.as_deref().context("no address")?;
    let source = options.source.map(|addr| SocketAddr::new(addr, 0));
    let server = resolve(address, options.port)?;
    EventLoop::connect(client, source, server)?.run().map(drop)
}
