//! `ibv_uc_pingpong` in safe Rust: messages to and fro over an unreliable connection.
//!
//! Interoperates with the C program. After a lost message both sides wait without end.

use std::process::ExitCode;

use clap::Parser;
use examples::pingpong::{
    connected::{self, Link, Qp},
    options::{Extensions, Messages, Options, finish},
};
use verbs::{Init, Rtr, Rts, Uc, qp::Attributes};

/// Exchanges messages over an unreliable connection, and prints the speed
#[derive(Parser)]
#[command(name = "uc_pingpong", args_override_self = true)]
struct CommandLine {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    messages: Messages,
}

fn main() -> ExitCode {
    let line = CommandLine::parse();
    let none = Extensions::default();
    finish(connected::run(&line.options, line.messages, none, connect))
}

fn connect(qp: Qp<Uc, Init>, link: &Link) -> verbs::Result<Qp<Uc, Rts>> {
    let Link { local, remote, .. } = link;
    let rtr =
        Attributes::<Uc, Rtr>::new(&link.address_vector, remote.qpn, remote.psn).mtu(link.mtu);
    let qp = qp.to_rtr(&rtr)?;
    Ok(qp.to_rts(&Attributes::<Uc, Rts>::new(local.psn))?)
}
