//! The client: asks, and measures.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{
    endpoint::Endpoint,
    message::{CONTROL, Message, Op},
    options::Options,
};
use crate::rstream::{
    plan::{count, short_count, short_size, speed},
    test_option::TestOption,
};

/// How long to wait for an answer before it is asked again: to begin, and later.
const PATIENCE: Duration = Duration::from_secs(1);
const IMPATIENCE: Duration = Duration::from_millis(1);

/// The sizes that are measured when none is asked for.
const SIZES: [usize; 9] = [64, 128, 192, 256, 384, 512, 768, 1024, 1536];

/// One measurement.
#[derive(Clone, Debug)]
struct Plan {
    name: String,
    transfers: u32,
    size: usize,
    echo: bool,
}

fn plans(options: &Options) -> Vec<Plan> {
    if let Some((transfers, size)) = options.custom() {
        return vec![Plan {
            name: "custom".to_owned(),
            transfers,
            size,
            echo: options.has(TestOption::Echo),
        }];
    }
    let plan = |size: usize, name, rounds, echo| Plan {
        name: format!("{}_{name}", short_size(size as u128)),
        transfers: u32::try_from(rounds).unwrap_or(u32::MAX),
        size,
        echo,
    };
    let latency = SIZES
        .iter()
        .map(|&size| plan(size, "lat", count(size) / 10, true));
    let bandwidth = SIZES
        .iter()
        .map(|&size| plan(size, "bw", count(size), false));
    latency.chain(bandwidth).collect()
}

/// Measures everything that is asked for.
///
/// # Errors
/// There is no such server, or a size does not fit into a datagram.
#[expect(clippy::print_stdout, reason = "this is what the programs are for")]
pub fn run(options: &Options, server: &str) -> Result<()> {
    println!(
        "{:<10}{:<8}{:<8}{:<8}{:>8} {:>10}{:>13}",
        "name", "bytes", "xfers", "total", "time", "Gb/sec", "usec/xfer"
    );
    let mut client = Client {
        endpoint: Endpoint::connect(options, server)?,
        message: Message::default(),
        answer: Message::default(),
        sequence: 0,
    };
    client.ask(Op::Login, CONTROL, PATIENCE)?;
    for plan in plans(options) {
        let (transfers, time) = client
            .measure(&plan)
            .with_context(|| format!("{} of {} bytes", plan.name, plan.size))?;
        report(&plan, transfers, time);
    }
    Ok(())
}

#[derive(Debug)]
struct Client {
    endpoint: Endpoint,
    message: Message,
    answer: Message,
    sequence: u8,
}

impl Client {
    fn send(&mut self, op: Op, size: usize) -> Result<()> {
        self.message.set_op(op);
        let bytes = self.message.bytes(size);
        self.endpoint.send(bytes, None).context("cannot send")
    }

    /// Sends a message until it is answered.
    fn ask(&mut self, op: Op, size: usize, patience: Duration) -> Result<()> {
        self.message.set_sequence(self.sequence);
        self.send(op, size)?;
        loop {
            let received = self
                .endpoint
                .receive_in_time(self.answer.place(), patience)
                .context("cannot receive")?;
            match received {
                None => self.send(op, size)?,
                Some(len) if Message::is_whole(len) && self.answer.sequence() == self.sequence => {
                    break;
                }
                // The answer to what was sent twice. It must not be a reason to send once more.
                Some(_) => {}
            }
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.message.set_client(self.answer.client());
        Ok(())
    }

    /// Measures, and returns how many transfers the server has seen, and how long they took.
    fn measure(&mut self, plan: &Plan) -> Result<(u32, Duration)> {
        self.ask(Op::Start, CONTROL, PATIENCE)?;
        let start = Instant::now();
        for _ in 0..plan.transfers {
            if plan.echo {
                self.ask(Op::Echo, plan.size, IMPATIENCE)?;
            } else {
                self.send(Op::Data, plan.size)?;
            }
        }
        self.ask(Op::End, CONTROL, IMPATIENCE)?;
        let transfers = if plan.echo {
            plan.transfers.saturating_mul(2)
        } else {
            self.answer.count()
        };
        Ok((transfers, start.elapsed()))
    }
}

#[expect(clippy::print_stdout, reason = "this is what the programs are for")]
fn report(plan: &Plan, transfers: u32, time: Duration) {
    let bytes = u128::from(transfers) * plan.size as u128;
    println!(
        "{:<10}{:<8}{:<8}{:<8}{}",
        plan.name,
        short_size(plan.size as u128),
        short_count(transfers.into()),
        short_size(bytes),
        speed(time, bytes, transfers.into()),
    );
}
