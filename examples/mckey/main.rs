//! `mckey` of rdmacm-utils, in safe Rust: datagrams to or from a multicast group. Interoperates with the C
//! program.
//!
//! After a lost datagram a receiver waits without end, as in C.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

mod exchange;
mod member;

use std::process::ExitCode;

use clap::{ArgGroup, Parser};
use cm::PortSpace;

use examples::{
    pingpong::options::{finish, number, positive},
    udaddy::options::space_of,
};

/// Sends to a multicast group, or receives from one
#[derive(Parser)]
#[command(name = "mckey", args_override_self = true, disable_help_flag = true)]
#[command(group = ArgGroup::new("group").required(true))]
struct Options {
    /// Address or name of the group
    #[arg(short, group = "group", value_name = "multicast_address")]
    multicast: Option<String>,
    /// InfiniBand address of the group, not mapped from IP
    #[arg(
        short = 'M',
        group = "group",
        requires = "bind",
        value_name = "unmapped_multicast_address"
    )]
    unmapped: Option<std::net::Ipv6Addr>,
    /// Send; without this, receive
    #[arg(short)]
    sender: bool,
    /// The address to bind to
    #[arg(short, value_name = "bind_address")]
    bind: Option<String>,
    /// Number of members, each with a queue pair
    #[arg(short, value_name = "connections", default_value_t = 1, value_parser = positive::<u32>)]
    connections: u32,
    /// Number of messages to send or to receive, per member
    #[arg(short = 'C', value_name = "message_count", default_value_t = 10, value_parser = number::<u32>)]
    message_count: u32,
    /// Message size, in bytes
    #[arg(short = 'S', value_name = "message_size", default_value_t = 100, value_parser = number::<u32>)]
    message_size: u32,
    /// The port space as a number: 0x111 for UDP (default), 0x2 for IPOIB
    #[arg(short = 'p', value_name = "port_space", default_value = "0x111", value_parser = space_of)]
    space: PortSpace,
    /// Join as a sender only
    #[arg(short = 'o')]
    send_only: bool,
    /// Do not receive this host's own messages
    #[arg(short = 'l')]
    no_loopback: bool,
}

impl Options {
    /// Number of messages; 0 if the size is 0, as in C.
    fn messages(&self) -> u32 {
        match self.message_size {
            0 => 0,
            _ => self.message_count,
        }
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let side = if options.sender { "client" } else { "server" };
    println!("mckey: starting {side}");
    let outcome = exchange::run(&options);
    println!("test complete");
    println!("return status {}", if outcome.is_ok() { 0 } else { -1 });
    finish(outcome)
}
