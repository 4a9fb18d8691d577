//! `udaddy` of rdmacm-utils, in safe Rust: datagrams to and from a peer, at the address given in the peer's
//! answer. Interoperates with the C program.
//!
//! After a lost datagram both sides wait without end, as in C.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::process::ExitCode;

use clap::Parser;
use cm::{EventChannel, PortSpace};

use examples::{
    pingpong::options::{finish, number},
    udaddy::{
        connect::{accept, call},
        options::{Format, Options, space_of},
    },
};

/// Exchanges datagrams with another side
#[derive(Parser)]
#[command(name = "udaddy", args_override_self = true, disable_help_flag = true)]
struct CommandLine {
    /// The server's address; without one, run the server
    #[arg(short, value_name = "server_address")]
    server: Option<String>,
    /// The address to bind to
    #[arg(short, value_name = "bind_address")]
    bind: Option<String>,
    /// Format of the addresses
    #[arg(
        short,
        value_name = "address_format",
        value_enum,
        ignore_case = true,
        default_value = "name"
    )]
    format: Format,
    /// The port space: udp or ipoib
    #[arg(short = 'P', value_name = "port_space", value_parser = space_of)]
    space: Option<PortSpace>,
    /// Number of peers, each with a queue pair
    #[arg(short, value_name = "connections", default_value_t = 1)]
    connections: u32,
    /// Number of messages in each direction
    #[arg(short = 'C', value_name = "message_count", default_value_t = 10)]
    message_count: u32,
    /// Message size, in bytes
    #[arg(short = 'S', value_name = "message_size", default_value_t = 100)]
    message_size: u32,
    /// The type of service
    #[arg(short, value_name = "type_of_service", value_parser = number::<u8>)]
    tos: Option<u8>,
    /// The port space as a number: 0x111 for UDP (default), 0x2 for IPOIB
    #[arg(short = 'p', value_name = "port_space", value_parser = space_of)]
    numbered_space: Option<PortSpace>,
}

fn main() -> ExitCode {
    let line = CommandLine::parse();
    let options = Options {
        server: line.server,
        bind: line.bind,
        format: line.format,
        space: line.space.or(line.numbered_space).unwrap_or(PortSpace::Udp),
        connections: line.connections,
        // As in C: a size of 0 disables messages.
        message_count: if line.message_size == 0 {
            0
        } else {
            line.message_count
        },
        message_size: line.message_size,
        tos: line.tos,
    };
    let outcome = run(&options);
    println!("test complete");
    println!("return status {}", if outcome.is_ok() { 0 } else { -1 });
    finish(outcome)
}

fn run(options: &Options) -> anyhow::Result<()> {
    let channel = EventChannel::new()?;
    if options.server.is_some() {
        println!("udaddy: starting client");
        println!("udaddy: connecting");
        let mut nodes = (0..options.connections)
            .map(|_| call(&channel, options))
            .collect::<anyhow::Result<Vec<_>>>()?;
        if options.message_count == 0 {
            return Ok(());
        }
        println!("initiating data transfers");
        nodes
            .iter_mut()
            .try_for_each(|node| node.send_all(options))?;
        println!("receiving data transfers");
        nodes
            .iter_mut()
            .try_for_each(|node| node.receive_all(options))?;
    } else {
        println!("udaddy: starting server");
        let (_listener, mut nodes) = accept(&channel, options)?;
        if options.message_count == 0 {
            return Ok(());
        }
        println!("receiving data transfers");
        nodes
            .iter_mut()
            .try_for_each(|node| node.receive_all(options))?;
        println!("sending replies");
        nodes
            .iter_mut()
            .try_for_each(|node| node.send_all(options))?;
        nodes.iter_mut().try_for_each(|node| node.sent_all())?;
    }
    println!("data transfers complete");
    Ok(())
}
