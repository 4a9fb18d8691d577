//! `rdma_xclient` of rdmacm-utils, in safe Rust: one message to a server, over a reliable or an extended
//! reliable connection. Interoperates with the C program.

use std::process::ExitCode;

use clap::Parser;
use cm::EndpointBuilder;
use verbs::{Buf, op};

use examples::{
    address::resolve,
    cm_tool::messages::with_messages,
    rdma_xclient_xserver::{
        extended,
        message::MESSAGE_LEN,
        options::{Communication, Options},
    },
};

/// Sends one message to a server
#[derive(Parser)]
#[command(name = "rdma_xclient", args_override_self = true)]
struct Client {
    /// The server's address, or its name
    #[arg(short, default_value = "127.0.0.1")]
    server: String,
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    with_messages("rdma_xclient", || run(&Client::parse()))
}

fn run(client: &Client) -> anyhow::Result<()> {
    let server = resolve(&client.server, client.options.port)?;
    if client.options.communication == Communication::X {
        return extended::send(server);
    }
    let builder = EndpointBuilder::new().max_send_wr(1).max_recv_wr(1);
    let builder = builder.max_inline_data(16);
    let mut side = builder.connect_for::<Option<Buf>, Buf>(server)?;
    side.post(op::Send::new(None).inline(&[0; MESSAGE_LEN]))?;
    side.send_comp()?.ok()?;
    Ok(side.disconnect()?)
}
