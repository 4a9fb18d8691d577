//! `rdma_server` of rdmacm-utils, in safe Rust: a connection by blocking calls, and one message in each
//! direction. Interoperates with the C program.

use std::process::ExitCode;

use clap::Parser;

use examples::{
    cm_tool::messages::with_messages,
    rdma_client_server::message::{MESSAGE_LEN, builder, receive, send},
};

/// Exchanges one message with one client
#[derive(Parser)]
#[command(name = "rdma_server")]
struct Options {
    /// The address to listen on
    #[arg(short, default_value = "0.0.0.0")]
    server: String,
    /// The port
    #[arg(short, default_value_t = 7471)]
    port: u16,
}

fn main() -> ExitCode {
    with_messages("rdma_server", || run(&Options::parse()))
}

fn run(options: &Options) -> anyhow::Result<()> {
    let listener = builder().listen_for((options.server.as_str(), options.port))?;
    let mut incoming = listener.request()?;
    let buf = incoming.reg_msgs([0; MESSAGE_LEN])?;
    incoming.post_recv(buf)?;
    let mut side = incoming.accept()?;
    receive(&mut side)?;
    send("rdma_server", &mut side)?;
    Ok(side.disconnect()?)
}
