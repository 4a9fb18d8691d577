//! `rdma_client` of rdmacm-utils, in safe Rust: a connection by blocking calls, and one message in each
//! direction. Interoperates with the C program.

use std::process::ExitCode;

use clap::Parser;

use examples::{
    cm_tool::messages::with_messages,
    rdma_client_server::message::{MESSAGE_LEN, builder, receive, send},
};

/// Exchanges one message with a server
#[derive(Parser)]
#[command(name = "rdma_client")]
struct Options {
    /// The server's address, or its name
    #[arg(short, default_value = "127.0.0.1")]
    server: String,
    /// The server's port
    #[arg(short, default_value_t = 7471)]
    port: u16,
}

fn main() -> ExitCode {
    with_messages("rdma_client", || run(&Options::parse()))
}

fn run(options: &Options) -> anyhow::Result<()> {
    let mut outgoing = builder().prepare_for((options.server.as_str(), options.port))?;
    // Posted before the connection exists: the server may send at once.
    let buf = outgoing.reg_msgs([0; MESSAGE_LEN])?;
    outgoing.post_recv(buf)?;
    let mut side = outgoing.connect()?;
    send("rdma_client", &mut side)?;
    receive(&mut side)?;
    Ok(side.disconnect()?)
}
