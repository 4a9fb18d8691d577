//! Latency and rate of sends, RDMA writes and RDMA reads, measured in the way of perftest.
//!
//! ```text
//! perftest TEST SIZE ITERATIONS RX_DEPTH            waits for a client
//! perftest TEST SIZE ITERATIONS RX_DEPTH SERVER     is the client, and prints the result
//! ```
//!
//! `TEST` is `send_lat`, `send_bw`, `write_lat`, `write_bw` or `read_lat`, and corresponds to perftest's
//! `ib_` program of the same name with `-R`: the same requests, depths, moderation, and clock readings. A
//! latency is the median, in processor cycles; a rate is in millions of requests per second. `cargo xtask
//! bench verbs` runs both in one guest.

#![expect(clippy::print_stdout, reason = "of a program for the terminal")]

mod clock;
mod link;
mod message;
mod remote;

use std::{error::Error, net::IpAddr};

use link::Role;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Size and number of transfers.
#[derive(Clone, Copy)]
struct Plan {
    size: usize,
    iterations: usize,
    /// Number of receives posted at once. Each has memory of its own here; perftest's share a buffer.
    rx_depth: usize,
}

/// Maximum number of requests in flight in a rate test, as in perftest.
const TX_DEPTH: u32 = 128;

impl Plan {
    /// Interval of signaled requests in a rate test, in requests.
    fn moderation(self) -> usize {
        if self.size > 8192 { 1 } else { 100 }
    }

    /// Rate in millions of requests per second, from the cycles of all requests.
    fn rate(self, cycles: u64) -> Result<f64> {
        Ok(self.iterations as f64 / clock::seconds(cycles)? / 1e6)
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [test, size, iterations, rx_depth, server @ ..] = &arguments[..] else {
        return Err("usage: perftest TEST SIZE ITERATIONS RX_DEPTH [SERVER]".into());
    };
    let plan = Plan {
        size: size.parse()?,
        iterations: iterations.parse()?,
        rx_depth: rx_depth.parse()?,
    };
    let role = match server.first() {
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
