//! `rdma_xclient` of rdmacm-utils, in safe Rust: one message to a server, over a reliable connection
//! or an extended one. The C program can be on the other side.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::process::ExitCode;

use clap::Parser;
use cm::EndpointBuilder;
use verbs::{Buf, op::Send};

use examples::{
    event_loop::address::resolve,
    pingpong::options::finish,
    rdma_xclient_xserver::{
        extended,
        message::{Communication, MESSAGE_LEN},
    },
};

/// Sends one message to a server
#[derive(Parser)]
#[command(name = "rdma_xclient", args_override_self = true)]
struct Options {
    /// The server's address, or its name
    #[arg(short, default_value = "127.0.0.1")]
    server: String,
    /// Its port
    #[arg(short, value_name = "port_number", default_value_t = 7471)]
    port: u16,
    /// What carries the message
    #[arg(
        short,
        value_name = "communication_type",
        value_enum,
        ignore_case = true,
        default_value = "r"
    )]
    communication: Communication,
}

fn main() -> ExitCode {
    println!("rdma_xclient: start");
    let outcome = run(&Options::parse());
    println!("rdma_xclient: end {}", if outcome.is_ok() { 0 } else { -1 });
    finish(outcome)
}

fn run(options: &Options) -> anyhow::Result<()> {
    let server = resolve(&options.server, options.port)?;
    if options.communication == Communication::X {
        return extended::send(server);
    }
    let builder = EndpointBuilder::new().max_send_wr(1).max_recv_wr(1);
    let builder = builder.max_inline_data(16);
    let mut side = builder.connect_for::<Option<Buf>, Buf>(server)?;
    side.post(Send::new(None).inline(&[0; MESSAGE_LEN]))?;
    side.send_comp()?.ok()?;
    Ok(side.disconnect()?)
}
