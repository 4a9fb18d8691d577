//! Throughput of one large `write_all` between two guests, against raw RDMA writes of perftest.
//!
//! Our program is `rsocket/benches/write_all`, the reference `ib_write_bw` with the same number of bytes. The programs
//! alternate on one pair of guests; the result is the ratio of the medians.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::guest;
use super::noop::Side;
use super::program;
use super::row::{Bar, Row};
use crate::workspace::Workspace;
use soft_roce::{Run, quote};

const ROUNDS: usize = 3;
/// Bytes of one write of perftest: the maximum of one RDMA write of an rsocket.
const PIECE: u64 = 64 << 10;
const PORT: u16 = 7600;
/// Number of bytes without `--long`: seconds in an emulated guest.
const SHORT: u64 = 64 << 20;
const LONG: u64 = 1 << 30;
const MEMORY_MIB: u32 = 2048;
/// Our buffer sizes: the stream's default, and 1 MiB as for bulk senders. perftest has 8 MiB in flight.
const BUFFERS: [(&str, &str); 2] = [("default", "by default"), ("1048576", "by 1 MiB")];

/// Runs all cases on a pair of guests and returns the rows.
pub(super) fn measure(workspace: &Workspace, long: bool) -> Result<Vec<Row>> {
    let ours = program::build_ours(workspace, "rdma-rsocket", "write_all")?;
    let bytes = if long { LONG } else { SHORT };
    eprintln!(
        "Writing {} MiB between two guests, by ours and by perftest",
        bytes >> 20
    );
    let minutes = if long { 40 } else { 8 };
    let plan = Run::pair(server(&ours)?, client(&ours, bytes)?)
        .memory_mib(MEMORY_MIB)
        .timeout(Duration::from_secs(minutes * 60))
        .by_line();
    let mut transcript = Transcript::default();
    let read = |line: &str| transcript.read(line);
    let look = guest::record_success(workspace, "write_all", plan, read)?;
    transcript.rows(bytes).with_context(|| look)
}

/// The server's script. Each server exits when its client disconnects.
fn server(ours: &Path) -> Result<String> {
    let ours = quote(ours)?;
    let mut text = String::from("set -e\n");
    for round in 0..ROUNDS {
        for side in guest::sides(round) {
            match side {
                Side::Ours => {
                    for (buffer, _) in BUFFERS {
                        writeln!(text, "{ours} server \"$A:{PORT}\" {buffer}")?;
                    }
                }
                Side::Reference => writeln!(text, "ib_write_bw -R -F -s {PIECE} > /dev/null")?,
            }
        }
    }
    Ok(text)
}

fn client(ours: &Path, bytes: u64) -> Result<String> {
    let ours = quote(ours)?;
    let mut text = String::from("set -e\n");
    for round in 0..ROUNDS {
        for side in guest::sides(round) {
            match side {
                Side::Ours => {
                    for (buffer, _) in BUFFERS {
                        writeln!(text, "{ours} client \"$A:{PORT}\" {bytes} {buffer}")?;
                    }
                }
                // Repeats until the server listens.
                Side::Reference => writeln!(
                    text,
                    "until result=$(ib_write_bw -R -F -s {PIECE} -n {} \"$A\" 2>&1); do sleep 0.5; done; echo \"$result\"",
                    bytes / PIECE
                )?,
            }
        }
    }
    Ok(text)
}

/// Parsed output of the guests, in MB/s.
#[derive(Debug, Default)]
struct Transcript {
    reference: Vec<f64>,
    /// By buffer size.
    ours: BTreeMap<String, Vec<f64>>,
}

impl Transcript {
    fn read(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| word.parse::<f64>().ok();
        match words[..] {
            ["write_all", bytes, buffer, seconds] => {
                let figures = number(bytes).zip(number(seconds));
                if let Some((bytes, seconds)) = figures {
                    let samples = self.ours.entry(buffer.to_owned()).or_default();
                    samples.push(bytes / seconds / 1e6);
                }
            }
            // Size, iterations, peak, and mean in MiB/s.
            [size, _, _, mean, _] if size == PIECE.to_string() => {
                let mean = number(mean).map(|mean| mean * f64::from(1 << 20) / 1e6);
                self.reference.extend(mean);
            }
            _ => {}
        }
    }

    fn rows(&self, bytes: u64) -> Result<Vec<Row>> {
        let reference = guest::typical("ib_write_bw", Some(&self.reference))?;
        let row = |(buffer, name): (&str, &str)| {
            let case = format!("write_all of {} MiB, {name}", bytes >> 20);
            let ours = guest::typical(&case, self.ours.get(buffer))?;
            Ok(Row {
                case,
                unit: "MB/s",
                ours,
                reference: Some(reference),
                bar: Some(Bar::NotBelow(0.9)),
            })
        };
        BUFFERS.into_iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transcript_becomes_rows() {
        let mut transcript = Transcript::default();
        for _ in 0..ROUNDS {
            transcript.read("write_all 67108864 default 4");
            transcript.read("write_all 67108864 1048576 2");
            transcript.read(
                " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]",
            );
            transcript.read(
                " 65536      1024             40.00              30.00              0.000480",
            );
        }
        let rows = transcript.rows(SHORT).unwrap();
        assert_eq!(rows[0].case, "write_all of 64 MiB, by default");
        assert!((rows[0].ours - 16.777_216).abs() < 1e-6);
        assert_eq!(rows[0].pass(), Some(false));
        assert_eq!(rows[1].case, "write_all of 64 MiB, by 1 MiB");
        assert!((rows[1].ours - 33.554_432).abs() < 1e-6);
        assert!((rows[1].reference.unwrap() - 31.457_28).abs() < 1e-6);
        assert_eq!(rows[1].pass(), Some(true));
    }

    #[test]
    fn rows_without_samples_are_an_error() {
        let error = Transcript::default().rows(SHORT).unwrap_err().to_string();
        assert!(error.contains("gave 0 figures"), "{error}");
    }
}
