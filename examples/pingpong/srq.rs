//! `ibv_srq_pingpong` in safe Rust: messages to and fro over several reliable connections with a shared
//! receive queue.
//!
//! Interoperates with the C program.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use clap::Parser;
use examples::pingpong::{
    address::Address,
    exchange::exchange,
    options::{Messages, Options, finish, number},
    rally::{Side, Stroke, play, print_rates},
    setup::{Needed, Setup},
};
use verbs::{
    Init, QueuePair, RemoteRegion, Rtr, Rts, SharedReceiveQueue, WorkCompletion, ah::AddressVector,
    attr::Mtu, op, qp::Attributes,
};

/// Exchanges messages over connections with a shared receive queue, and prints the speed
#[derive(Parser)]
#[command(name = "srq_pingpong", args_override_self = true)]
struct CommandLine {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    messages: Messages,
    /// Number of queue pairs
    #[arg(short = 'q', long, value_name = "COUNT", default_value_t = 16, value_parser = number::<u32>)]
    num_qp: u32,
    /// Page memory in on demand
    #[arg(short, long)]
    odp: bool,
}

/// Number of addresses on the wire in each direction, independent of the number of queue pairs.
const SLOTS: usize = 256;

type Qp<S> = QueuePair<verbs::Rc, S, RemoteRegion, ()>;

fn main() -> ExitCode {
    finish(run(&CommandLine::parse()))
}

fn run(line: &CommandLine) -> anyhow::Result<()> {
    let (options, num_qp) = (&line.options, line.num_qp);
    ensure!(
        num_qp <= options.rx_depth,
        "rx_depth {} is too small for {num_qp} QPs -- must have at least one receive per QP.",
        options.rx_depth
    );
    ensure!(
        (1..256).contains(&num_qp),
        "num_qp {num_qp} must be at least 1 and less than 256"
    );

    let size = line.messages.size;
    let mut setup = match line.odp {
        true => Setup::on_demand(options, size, num_qp, Needed::Shared)?,
        false => Setup::new(options, size, 0, num_qp)?,
    };
    let mut srq = setup.pd.create_srq(options.rx_depth, 1)?;
    let mut qps: Vec<Qp<Init>> = Vec::new();
    for _ in 0..num_qp {
        let qp = setup.pd.qp_builder(&setup.cq, &setup.cq).srq(&srq);
        let qp: Qp<_> = qp.create_for()?;
        qps.push(qp.to_init(&Attributes::<verbs::Rc, Init>::new(options.ib_port))?);
    }
    for _ in 0..options.rx_depth {
        srq.post(setup.buffer()).context("couldn't post receive")?;
    }

    let local: Vec<_> = qps.iter().map(|qp| setup.address(qp.qp_num())).collect();
    for address in &local {
        println!("  local address:  {address}");
    }
    let qps = exchange(options, &local, SLOTS, |remote| {
        let mut connected = Vec::new();
        for ((qp, local), remote) in qps.into_iter().zip(&local).zip(remote) {
            let address_vector = setup.address_vector(remote)?;
            connected.push(connect(
                qp,
                local,
                remote,
                &address_vector,
                line.messages.mtu,
            )?);
        }
        Ok(connected)
    })?;

    let serves = options.host.is_none();
    if options.chk && !serves {
        setup.mark()?;
    }
    let mut side = Shared {
        qps,
        srq,
        message: setup.message(),
        buffer: setup.buffer(),
    };
    let elapsed = play(options, &mut setup.cq, &mut side)?;
    print_rates(options, line.messages.size, elapsed);
    if options.chk && serves {
        setup.check_marks()?;
    }
    Ok(())
}

fn connect(
    qp: Qp<Init>,
    local: &Address,
    remote: &Address,
    address_vector: &AddressVector,
    mtu: Mtu,
) -> verbs::Result<Qp<Rts>> {
    let rtr = Attributes::<verbs::Rc, Rtr>::new(address_vector, remote.qpn, remote.psn).mtu(mtu);
    let qp = qp.to_rtr(&rtr)?;
    Ok(qp.to_rts(&Attributes::<verbs::Rc, Rts>::new(local.psn))?)
}

/// A side with a shared receive queue.
struct Shared {
    qps: Vec<Qp<Rts>>,
    srq: SharedReceiveQueue<RemoteRegion>,
    message: RemoteRegion,
    buffer: RemoteRegion,
}

impl Side for Shared {
    fn queue_pairs(&self) -> usize {
        self.qps.len()
    }

    fn send(&mut self, qp: usize) -> anyhow::Result<()> {
        self.qps[qp]
            .post(op::Send::new(self.message.clone()))
            .context("couldn't post send")
    }

    fn receive(&mut self) -> anyhow::Result<()> {
        Ok(self.srq.post(self.buffer.clone())?)
    }

    fn receives_in_flight(&self) -> usize {
        self.srq.in_flight()
    }

    fn complete(&mut self, wc: WorkCompletion<'_>) -> anyhow::Result<Stroke> {
        let number = wc.qp_num();
        let found = self.qps.iter_mut().enumerate();
        let (i, qp) = found
            .into_iter()
            .find(|(_, qp)| qp.qp_num() == number)
            .with_context(|| format!("couldn't find QPN {number}"))?;
        let (stroke, unexpected) = match wc.is_receive() {
            true => (Stroke::Received(i), self.srq.complete(wc).err()),
            false => (Stroke::Sent(i), qp.complete(wc).err()),
        };
        if let Some(wc) = unexpected {
            bail!("{wc:?} belongs to no request");
        }
        Ok(stroke)
    }
}
