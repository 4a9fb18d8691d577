//! `rdma_xserver` of rdmacm-utils, in safe Rust: one message of a client, over a reliable or an extended
//! reliable connection. Interoperates with the C program.

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::ExitCode,
};

use anyhow::ensure;
use clap::Parser;
use cm::EndpointBuilder;

use examples::{
    cm_tool::messages::with_messages,
    rdma_xclient_xserver::{
        extended,
        message::{MESSAGE_LEN, answer},
        options::{Communication, Options},
    },
};

/// Receives one message of a client
#[derive(Parser)]
#[command(name = "rdma_xserver", args_override_self = true)]
struct Server {
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    with_messages("rdma_xserver", || run(Server::parse().options))
}

fn run(options: Options) -> anyhow::Result<()> {
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
