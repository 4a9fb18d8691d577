//! Measurements and the table printed.

use std::{iter, time::Duration};

use super::options::Options;

/// Sizes measured by default, as powers of two.
const SHORT: [u32; 4] = [6, 12, 16, 20];

/// One measurement: rounds, and transfers in each direction per round.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name in the table.
    pub name: String,
    /// Number of rounds.
    pub rounds: u64,
    /// Number of transfers in each direction per round.
    pub transfers: u64,
    /// Size of a transfer, in bytes.
    pub size: usize,
}

/// Prints the head of the table.
#[expect(clippy::print_stdout, reason = "this is what the programs are for")]
pub fn print_head() {
    println!(
        "{:<10}{:<8}{:<8}{:<8}{:<8}{:>8} {:>10}{:>13}",
        "name", "bytes", "xfers", "iters", "total", "time", "Gb/sec", "usec/xfer"
    );
}

/// Measurements selected by the command line: a single one, or latency and then bandwidth, each with a
/// connection of its own.
pub fn plans(options: &Options) -> Vec<(Goal, Vec<Plan>)> {
    if let Some((rounds, transfers, size)) = options.custom() {
        let plan = Plan {
            name: "custom".to_owned(),
            rounds,
            transfers,
            size,
        };
        return vec![(Goal::Custom, vec![plan])];
    }
    let sizes = sizes(options.all_sizes());
    let latency = sizes.iter().map(|&size| Plan::latency(size)).collect();
    let bandwidth = sizes.iter().map(|&size| Plan::bandwidth(size)).collect();
    vec![(Goal::Latency, latency), (Goal::Bandwidth, bandwidth)]
}

/// Optimization goal of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Short messages.
    Latency,
    /// Many bytes.
    Bandwidth,
    /// As given on the command line.
    Custom,
}

/// Sizes from 64 bytes to 6 MiB: powers of two and intermediate ones, or only a few.
fn sizes(all: bool) -> Vec<usize> {
    if all {
        let steps = (7..=22_u32).flat_map(|n| [1 << n, (1 << n) + (1 << (n - 1))]);
        return iter::once(1 << 6).chain(steps).collect();
    }
    SHORT.iter().map(|n| 1 << n).collect()
}

/// Number of transfers, chosen for a similar duration at every size.
pub fn count(size: usize) -> u64 {
    match size {
        0x10_0000.. => 100,
        0x1_0000.. => 1000,
        0x400.. => 10_000,
        _ => 100_000,
    }
}

impl Plan {
    fn latency(size: usize) -> Self {
        Self {
            name: format!("{}_lat", short_size(size as u128)),
            rounds: count(size),
            transfers: 1,
            size,
        }
    }

    fn bandwidth(size: usize) -> Self {
        Self {
            name: format!("{}_bw", short_size(size as u128)),
            rounds: 1,
            transfers: count(size),
            size,
        }
    }
}

/// Prints a line of the table.
#[expect(clippy::print_stdout, reason = "this is what the programs are for")]
pub fn report(plan: &Plan, time: Duration) {
    let transfers = plan.rounds * plan.transfers * 2;
    let bytes = u128::from(transfers) * plan.size as u128;
    println!(
        "{:<10}{:<8}{:<8}{:<8}{:<8}{}",
        plan.name,
        short_size(plan.size as u128),
        short_count(plan.transfers),
        short_count(plan.rounds),
        short_size(bytes),
        speed(time, bytes, transfers),
    );
}

/// Formats the elapsed time, the rate in bits per second, and the time of one transfer.
#[expect(clippy::cast_precision_loss, reason = "a rate")]
pub fn speed(time: Duration, bytes: u128, transfers: u64) -> String {
    let micros = time.as_secs_f64() * 1e6;
    format!(
        "{:>8.2}s{:>10.2}{:>11.2}",
        micros / 1e6,
        bytes as f64 * 8.0 / (1000.0 * micros),
        micros / transfers as f64,
    )
}

/// Formats a number of bytes in a few characters.
pub fn short_size(size: u128) -> String {
    let (unit, name) = match size {
        0x4000_0000.. => (1 << 30, "g"),
        0x10_0000.. => (1 << 20, "m"),
        0x400.. => (1 << 10, "k"),
        _ => (1, ""),
    };
    let complete = size / unit;
    match size % unit * 10 / unit {
        tenths if complete < 10 && tenths > 0 => format!("{complete}.{tenths}{name}"),
        _ => format!("{complete}{name}"),
    }
}

/// Formats a count in a few characters.
pub fn short_count(count: u64) -> String {
    match count {
        1_000_000_000.. => format!("{}b", count / 1_000_000_000),
        1_000_000.. => format!("{}m", count / 1_000_000),
        1000.. => format!("{}k", count / 1000),
        _ => count.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts_are_short() {
        assert_eq!(short_size(64), "64");
        assert_eq!(short_size(1536), "1.5k");
        assert_eq!(short_size(6 << 20), "6m");
        assert_eq!(short_size(20 << 30), "20g");
        assert_eq!(short_count(100_000), "100k");
        assert_eq!(short_count(999), "999");
    }

    #[test]
    fn sizes_match_c() {
        assert_eq!(sizes(false), [64, 4096, 65536, 1 << 20]);
        let all = sizes(true);
        assert_eq!(all.len(), 33);
        assert_eq!(all[..4], [64, 128, 192, 256]);
        assert_eq!(all.last(), Some(&(6 << 20)));
    }
}
