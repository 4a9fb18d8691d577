//! Latency and rate of sends, RDMA writes and RDMA reads, measured as perftest measures them.
//!
//! ```text
//! perftest TEST SIZE ITERATIONS            waits for a client
//! perftest TEST SIZE ITERATIONS SERVER     is the client, and prints the result
//! ```
//!
//! `TEST` is `send_lat`, `send_bw`, `write_lat`, `write_bw` or `read_lat`, and does what `ib_` and
//! that name of perftest does with `-R`: the same requests, depths, moderation, and points at which
//! the clock is read. A latency is the median, in processor cycles; a rate is in
//! millions of requests a second. `cargo xtask bench verbs` runs both in one guest.

#![expect(clippy::print_stdout, reason = "of a program for the terminal")]

mod clock;
mod link;
mod message;
mod remote;

use std::{error::Error, net::IpAddr};

use link::Role;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What is transferred, and how often.
#[derive(Clone, Copy)]
struct Plan {
    size: usize,
    iterations: usize,
}

/// The most requests in flight in a test of rate, as perftest's.
const TX_DEPTH: u32 = 128;
/// The most receives posted.
const RX_DEPTH: u32 = 512;

impl Plan {
    /// How many receives are posted at once.
    fn rx_depth(self) -> usize {
        // Each has memory of its own here.
        let depth = (16 << 20) / self.size;
        depth.min(RX_DEPTH as usize).min(self.iterations)
    }

    /// Every how manyeth request is signaled in a test of rate.
    fn moderation(self) -> usize {
        if self.size > 8192 { 1 } else { 100 }
    }

    /// Millions of requests a second, when all of them took so many cycles.
    fn rate(self, cycles: u64) -> Result<f64> {
        Ok(self.iterations as f64 / clock::seconds(cycles)? / 1e6)
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (test, size, iterations, server) = match &arguments[..] {
        [test, size, iterations] => (test, size, iterations, None),
        [test, size, iterations, server] => (test, size, iterations, Some(server)),
        _ => return Err("usage: perftest TEST SIZE ITERATIONS [SERVER]".into()),
    };
    let plan = Plan {
        size: size.parse()?,
        iterations: iterations.parse()?,
    };
    let role = match server {
        None => Role::Server,
        Some(address) => Role::Client(address.parse::<IpAddr>()?),
    };
    let result = match test.as_str() {
        "send_lat" => message::latency(plan, role)?,
        "send_bw" => message::rate(plan, role)?,
        "write_lat" => remote::write_latency(plan, role)?,
        "write_bw" => remote::write_rate(plan, role)?,
        "read_lat" => remote::read_latency(plan, role)?,
        _ => return Err("no such test".into()),
    };
    if let Role::Client(_) = role {
        println!("{} {result:.6}", plan.size);
    }
    Ok(())
}
