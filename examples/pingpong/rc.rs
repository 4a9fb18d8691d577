//! `ibv_rc_pingpong` in safe Rust: messages to and fro over a reliable connection.
//!
//! Interoperates with the C program.

use std::process::ExitCode;

use clap::Parser;
use examples::pingpong::{
    connected::{self, Link, Qp},
    options::{Extensions, Messages, Options, finish},
};
use verbs::{Init, Rtr, Rts, qp::Attributes};

/// Exchanges messages over a reliable connection, and prints the speed
#[derive(Parser)]
#[command(name = "rc_pingpong", args_override_self = true)]
struct CommandLine {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    messages: Messages,
    #[command(flatten)]
    extensions: Extensions,
}

fn main() -> ExitCode {
    let CommandLine {
        options,
        messages,
        extensions,
    } = CommandLine::parse();
    finish(connected::run(&options, messages, extensions, connect))
}

fn connect(qp: Qp<verbs::Rc, Init>, link: &Link) -> verbs::Result<Qp<verbs::Rc, Rts>> {
    let Link { local, remote, .. } = link;
    let rtr = Attributes::<verbs::Rc, Rtr>::new(&link.address_vector, remote.qpn, remote.psn)
        .mtu(link.mtu);
    let qp = qp.to_rtr(&rtr)?;
    Ok(qp.to_rts(&Attributes::<verbs::Rc, Rts>::new(local.psn))?)
}
