//! The client: sends and measures.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{
    endpoint::Endpoint,
    message::{CONTROL, Message, Op},
    options::Options,
};
use crate::rstream::{
    plan::{count, short_count, short_size, speed},
    test_option::TestOption,
};

/// Timeout for an answer after which the request is sent again: to begin, and later.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Time without an answer after which the client gives up. The original asks again without end.
const GIVE_UP: Duration = Duration::from_secs(10);

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

/// Measures all selected sizes.
///
/// # Errors
/// There is no such server, it does not answer for ten seconds, or a size does not fit into a datagram.
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
        give_up: GIVE_UP,
    };
    client.ask(Op::Login, CONTROL, ANSWER_TIMEOUT)?;
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
    /// Time without an answer after which the client gives up.
    give_up: Duration,
}

impl Client {
    fn send(&mut self, op: Op, size: usize) -> Result<()> {
        self.message.set_op(op);
        let bytes = self.message.bytes(size);
        self.endpoint.send(bytes, None).context("cannot send")
    }

    /// Sends a message, repeatedly until an answer arrives.
    fn ask(&mut self, op: Op, size: usize, timeout: Duration) -> Result<()> {
        self.message.set_sequence(self.sequence);
        self.send(op, size)?;
        let since = Instant::now();
        loop {
            let received = self
                .endpoint
                .receive_in_time(self.answer.space(), timeout)
                .context("cannot receive")?;
            match received {
                None if since.elapsed() >= self.give_up => bail!(
                    "no answer for {:?}: check that the server runs, with the same -p and -T s as the client; the C \
                     library cannot send datagrams over RoCE in any version, so its server receives these, and \
                     answers none",
                    self.give_up
                ),
                None => self.send(op, size)?,
                Some(len) if Message::is_whole(len) && self.answer.sequence() == self.sequence => {
                    break;
                }
                // A late answer to a repeated message. Sending again would repeat this without end.
                Some(_) => {}
            }
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.message.set_client(self.answer.client());
        Ok(())
    }

    /// Measures, and returns the number of transfers seen by the server, and the elapsed time.
    fn measure(&mut self, plan: &Plan) -> Result<(u32, Duration)> {
        self.ask(Op::Start, CONTROL, ANSWER_TIMEOUT)?;
        let start = Instant::now();
        for _ in 0..plan.transfers {
            if plan.echo {
                self.ask(Op::Echo, plan.size, RETRY_INTERVAL)?;
            } else {
                self.send(Op::Data, plan.size)?;
            }
        }
        self.ask(Op::End, CONTROL, RETRY_INTERVAL)?;
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

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use clap::Parser;

    use super::*;

    /// A server that takes requests, and answers none, as C's does over RoCE.
    #[test]
    fn client_of_a_silent_server_times_out_with_a_reason() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port().to_string();
        let arguments = [
            "udpong",
            "-s",
            "127.0.0.1",
            "-p",
            &port,
            "-T",
            "s",
            "-T",
            "b",
        ];
        let options = Options::try_parse_from(arguments).unwrap();
        let mut client = Client {
            endpoint: Endpoint::connect(&options, "127.0.0.1").unwrap(),
            message: Message::default(),
            answer: Message::default(),
            sequence: 0,
            give_up: Duration::from_millis(20),
        };
        let asked = client.ask(Op::Login, CONTROL, Duration::from_millis(5));
        let text = asked.unwrap_err().to_string();
        assert!(text.starts_with("no answer for 20ms"), "{text}");
        assert!(text.contains("over RoCE"), "{text}");
        // It has asked more than once.
        server.set_nonblocking(true).unwrap();
        let requests = std::iter::from_fn(|| server.recv(&mut [0; 2048]).ok()).count();
        assert!(requests >= 2, "{requests}");
    }
}
