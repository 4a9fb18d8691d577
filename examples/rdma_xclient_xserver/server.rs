//! `rdma_xserver` of rdmacm-utils, in safe Rust: one message of a client, over a reliable connection
//! or an extended one. The C program can be on the other side.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::ExitCode,
};

use anyhow::ensure;
use clap::Parser;
use cm::EndpointBuilder;

use examples::{
    pingpong::options::finish,
    rdma_xclient_xserver::{
        extended,
        message::{Communication, MESSAGE_LEN, answer},
    },
};

/// Receives one message of a client
#[derive(Parser)]
#[command(name = "rdma_xserver", args_override_self = true)]
struct Options {
    /// The port
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
    println!("rdma_xserver: start");
    let outcome = run(&Options::parse());
    println!("rdma_xserver: end {}", if outcome.is_ok() { 0 } else { -1 });
    finish(outcome)
}

fn run(options: &Options) -> anyhow::Result<()> {
    let addr = SocketAddr::from((Ipv4Addr::UNSPECIFIED, options.port));
    if options.communication == Communication::X {
        return extended::receive(addr);
    }
    let builder = EndpointBuilder::new().max_send_wr(1).max_recv_wr(1);
    let listener = builder.param(answer(None)).listen(addr)?;
    let mut incoming = listener.request()?;
    let buf = incoming.reg_msgs([0; MESSAGE_LEN])?;
    incoming.post_recv(buf)?;
    let mut side = incoming.accept()?;
    let done = side.recv_comp()?;
    done.ok()?;
    let len = done.byte_len();
    ensure!(len == MESSAGE_LEN, "the peer has sent {len} bytes");
    drop(done);
    Ok(side.disconnect()?)
}
