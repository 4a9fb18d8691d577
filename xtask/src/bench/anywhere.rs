//! Processor time and round trips of perftest over softnic's UDP sockets, between two processes of this machine, against the
//! kernel's TCP and UDP.
//!
//! Each program runs twice, for few and for many messages. The differences of the processor times are those of the messages,
//! without the start.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::program;
use super::row::{Bar, Row};
use crate::workspace::{self, Workspace};
use soft_roce::process::{self, Supervised};

/// Addresses of the server and of the client.
const ADDRS: [&str; 2] = ["127.0.77.2", "127.0.77.3"];

/// Limit of each program.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Pause before the next attempt of a client whose server does not listen yet.
const PAUSE: Duration = Duration::from_millis(50);

/// Length of the large messages in bytes.
const LARGE: u32 = 1 << 20;

/// Limits of processor time in nanoseconds: of a KiB, those of 10 and of 6 Gb/s, and of a message of 64 bytes, that of
/// 300,000 messages in a second. Limit of a round trip, as a multiple of UDP's.
const KIB_LIMIT: f64 = 819.2;
const SMALL_KIB_LIMIT: f64 = 1365.3;
const MESSAGE_LIMIT: f64 = 3333.3;
const ROUND_TRIP_LIMIT: f64 = 1.5;

/// The programs to measure.
struct Programs {
    /// The command `softnic`.
    softnic: PathBuf,
    /// The exchanges over TCP and UDP.
    reference: PathBuf,
}

/// Measures all rows.
pub(super) fn measure(workspace: &Workspace) -> Result<Vec<Row>> {
    let programs = Programs::build(workspace)?;
    let mut rows = Vec::new();
    for (mtu, limit) in [(4096, KIB_LIMIT), (1024, SMALL_KIB_LIMIT)] {
        let words = format!("ib_send_bw -e -m {mtu} -s {LARGE}");
        let times = programs.difference(&words, [100, 1100])?;
        let ours = times.map(|time| time * 1024.0 / f64::from(LARGE));
        for (kind, words) in [
            ("TCP", "tcp 65536".to_owned()),
            ("UDP", format!("udp {mtu}")),
        ] {
            let case = format!("send of 1 MiB, MTU {mtu}, against {kind}");
            let reference = programs.numbers(&words)?;
            rows.extend(both(&case, "ns/KiB", ours, reference, limit));
        }
    }
    let ours = programs.difference("ib_send_bw -e -s 64", [5000, 105_000])?;
    let reference = programs.numbers("udp 64")?;
    let reference = reference.map(|time: f64| time / 1024.0 * 64.0);
    let messages = "send of 64 bytes, against UDP";
    rows.extend(both(messages, "ns", ours, reference, MESSAGE_LIMIT));
    rows.push(programs.round_trip()?);
    Ok(rows)
}

/// The rows of a sender and a receiver.
fn both(
    case: &str,
    unit: &'static str,
    ours: [f64; 2],
    reference: [f64; 2],
    limit: f64,
) -> [Row; 2] {
    let [sender, receiver] = [
        ("sender", ours[0], reference[0]),
        ("receiver", ours[1], reference[1]),
    ]
    .map(|(end, ours, reference)| Row {
        case: format!("{case}: {end}'s processor time"),
        unit,
        ours,
        reference: Some(reference),
        bar: Some(Bar::Total(limit)),
    });
    [sender, receiver]
}

impl Programs {
    fn build(workspace: &Workspace) -> Result<Self> {
        let mut cargo = workspace::cargo(workspace);
        cargo.args(["build", "--locked", "--release", "--package"]);
        process::run(cargo.arg("softnic-capi"))?;
        Ok(Self {
            softnic: workspace.target().join("release/softnic"),
            reference: program::build_ours(workspace, "softnic", "anywhere")?,
        })
    }

    /// Processor nanoseconds of each message, of the client and of the server.
    fn difference(&self, words: &str, [few, many]: [u32; 2]) -> Result<[f64; 2]> {
        let run = |count| self.exchange(&format!("{words} -n {count}"));
        let (start, whole) = (run(few)?.processor, run(many)?.processor);
        let times = [whole[0] - start[0], whole[1] - start[1]];
        Ok(times.map(|time| time * 1e9 / f64::from(many - few)))
    }

    /// The typical half round trip of two polling programs, against UDP's.
    fn round_trip(&self) -> Result<Row> {
        let output = self.exchange("ib_send_lat -s 64 -n 20000")?.output;
        let microseconds = typical(&output).with_context(|| format!("no time:\n{output}"))?;
        let [reference] = self.numbers("round-trip")?;
        Ok(Row {
            case: "half a round trip of 64 bytes, against UDP".to_owned(),
            unit: "ns",
            ours: microseconds * 1e3,
            reference: Some(reference),
            bar: Some(Bar::Times(ROUND_TRIP_LIMIT)),
        })
    }

    /// The numbers printed by an exchange over TCP or UDP: processor nanoseconds of a KiB, of the sender and of the receiver, or
    /// half a round trip.
    fn numbers<const COUNT: usize>(&self, words: &str) -> Result<[f64; COUNT]> {
        let mut command = Command::new(&self.reference);
        let numbers = program::numbers(command.args(words.split(' ')))?;
        let Ok(numbers) = numbers.try_into() else {
            bail!("`anywhere {words}` must print {COUNT} numbers");
        };
        Ok(numbers)
    }

    /// Runs a server and a client of perftest.
    fn exchange(&self, words: &str) -> Result<Exchange> {
        eprintln!("Running {words}, two processes on softnic");
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let words = format!("{words} -F -x 0 -p {port}");
        let [server, client] = ADDRS;
        let mut serving = Supervised::spawn(&mut timed(&self.softnic, server, &words), &[])?;
        let deadline = Instant::now() + TIMEOUT;
        let asking = format!("{words} {server}");
        let client = loop {
            let done = timed(&self.softnic, client, &asking).output()?;
            if done.status.success() {
                break done;
            }
            let errors = String::from_utf8_lossy(&done.stderr);
            ensure!(Instant::now() < deadline, "`{asking}` fails:\n{errors}");
            thread::sleep(PAUSE);
        };
        let pipe = serving.child().stderr.take().context("no pipe")?;
        let served = serving.wait_until(deadline)?;
        ensure!(
            served.is_some_and(|status| status.success()),
            "`{words}` has failed"
        );
        let errors = std::io::read_to_string(pipe)?;
        Ok(Exchange {
            processor: [
                seconds(&String::from_utf8(client.stderr)?)?,
                seconds(&errors)?,
            ],
            output: String::from_utf8(client.stdout)?,
        })
    }
}

/// A finished exchange.
struct Exchange {
    /// Processor seconds of the client and of the server.
    processor: [f64; 2],
    /// Output of the client.
    output: String,
}

/// A program on softnic that prints its processor time, user's and system's, as the last line of standard error.
fn timed(softnic: &Path, addr: &str, words: &str) -> Command {
    let mut shell = Command::new("bash");
    shell
        .args([
            "-c",
            r#"TIMEFORMAT="%3U %3S"; time "$@""#,
            "bash",
            "timeout",
        ])
        .arg(TIMEOUT.as_secs().to_string())
        .arg(softnic)
        .args(["run", "--addr", addr, "--"])
        .args(words.split(' '))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    shell
}

/// Processor seconds in the last line of an output.
fn seconds(errors: &str) -> Result<f64> {
    let last = errors.trim_end().lines().last().unwrap_or_default();
    let numbers: Result<Vec<f64>, _> = last.split(' ').map(str::parse).collect();
    let numbers = numbers.with_context(|| format!("no processor time:\n{errors}"))?;
    Ok(numbers.iter().sum())
}

/// The typical time in microseconds, the fifth column of perftest's tables of latencies.
fn typical(output: &str) -> Option<f64> {
    let mut lines = output.lines().map(str::trim_start);
    let row = lines.find(|line| line.starts_with(|first: char| first.is_ascii_digit()))?;
    row.split_whitespace().nth(4)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_outputs_of_programs() {
        assert!((seconds("a warning\n0.250 1.500\n").unwrap() - 1.75).abs() < 1e-9);
        seconds("a warning\n").unwrap_err();
        let output = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n\
                      \u{20}64      1000          5.21           69.01        5.47     \t       5.7\n";
        assert_eq!(typical(output), Some(5.47));
        assert_eq!(typical(" #bytes\n"), None);
    }
}
