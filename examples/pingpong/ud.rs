//! `ibv_ud_pingpong` in safe Rust: datagrams to and fro.
//!
//! Interoperates with the C program. After a lost datagram both sides wait without end.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::Parser;
use examples::pingpong::{
    exchange::exchange,
    options::{Options, finish, number},
    rally::{Single, play, print_rates},
    setup::Setup,
};
use verbs::{
    Init, QueuePair, RemoteRegion, Rtr, Rts, Ud,
    ah::{Addressed, GRH_LEN},
    op,
    qp::Attributes,
};

/// Exchanges datagrams, and prints the speed
#[derive(Parser)]
#[command(name = "ud_pingpong", args_override_self = true)]
struct CommandLine {
    #[command(flatten)]
    options: Options,
    /// The size of a message, in bytes
    #[arg(short, long, default_value_t = 1024, value_parser = number::<u32>)]
    size: u32,
}

/// Q_Key of both sides' datagrams.
const QKEY: u32 = 0x1111_1111;

type Qp<S> = QueuePair<Ud, S, Addressed<RemoteRegion>, RemoteRegion>;

fn main() -> ExitCode {
    finish(run(&CommandLine::parse()))
}

fn run(line: &CommandLine) -> anyhow::Result<()> {
    let CommandLine { options, size } = line;
    let mut setup = Setup::new(options, *size, GRH_LEN, 1)?;
    let port = setup.pd.context().query_port(options.ib_port)?;
    let mtu = port.active_mtu().bytes().context("unknown port MTU")?;
    ensure!(*size <= mtu, "requested size larger than port MTU ({mtu})");
    let qp = setup.pd.qp_builder::<Ud>(&setup.cq, &setup.cq);
    let qp: Qp<_> = qp.max_recv_wr(options.rx_depth).create_for()?;
    let mut qp = qp.to_init(&Attributes::<Ud, Init>::new(options.ib_port, QKEY))?;
    for _ in 0..options.rx_depth {
        qp.post_recv(setup.buffer())
            .context("couldn't post receive")?;
    }

    let local = setup.address(qp.qp_num());
    println!("  local address:  {local}");
    let (qp, question, remote_qp) = exchange(options, &[local], 1, |remote| {
        let remote = remote.first().context("there is no remote address")?;
        let qp = qp.to_rtr(&Attributes::<Ud, Rtr>::new())?;
        let qp = qp.to_rts(&Attributes::<Ud, Rts>::new(local.psn))?;
        let ah = setup.pd.create_ah(&setup.address_vector(remote)?)?;
        Ok((qp, Addressed::new(setup.message(), &ah), remote.qpn))
    })?;

    let serves = options.host.is_none();
    if options.chk && !serves {
        setup.mark()?;
    }
    let mut side = Single::new(qp, setup.buffer(), |qp: &mut Qp<Rts>| {
        Ok(qp.post(op::SendTo::new(question.clone(), remote_qp, QKEY))?)
    });
    let elapsed = play(options, &mut setup.cq, &mut side)?;
    print_rates(options, *size, elapsed);
    if options.chk && serves {
        setup.check_marks()?;
    }
    Ok(())
}
