//! Cost of idle connections: `rsocket/benches/idle_connections.c` on librdmacm's rsockets and on ours.
//!
//! The target is 1000 connections in one process. rdma-core 44 hangs at the sixth accepted connection: its service
//! thread uses a freed array after growing the array. So the comparison has five connections, and the rows of 1000
//! connections report a reference that hangs.

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

/// Number of runs with `FEW` connections, for each library.
const ROUNDS: usize = guest::LEAST_ROUNDS;
const FEW: u32 = 5;
const MANY: u32 = 1000;
/// Timeouts of a run with `FEW` and with `MANY` connections, in seconds.
const TIMEOUTS: [u32; 2] = [30, 200];
const TIMEOUT: Duration = Duration::from_secs(8 * 60);
/// Both ends of `MANY` connections are in one guest.
const MEMORY_MIB: u32 = 4096;
const FIRST_PORT: u16 = 7700;

/// Figures of one run.
#[derive(Clone, Copy, Debug)]
struct Figures {
    /// Memory per connection, in bytes.
    bytes: f64,
    threads: f64,
    /// Processor time in microseconds per second of idle time.
    idle: f64,
}

/// Runs all cases in a guest and returns the rows.
pub(super) fn measure(workspace: &Workspace) -> Result<Vec<Row>> {
    let program = workspace.target().join("bench/idle_connections");
    let source = workspace.root().join("rsocket/benches/idle_connections.c");
    program::build_c(&source, &program, &["-lrdmacm"])?;
    let library = program::build(workspace, "rsocket-capi", ["--bin", "librsocket"])?;
    eprintln!("Keeping connections idle in a guest, ours and C's");
    let plan = Run::single(script(&program, &library)?)
        .memory_mib(MEMORY_MIB)
        .timeout(TIMEOUT)
        .by_line();
    let mut transcript = Transcript::default();
    let read = |line: &str| transcript.read(line);
    let look = guest::record_success(workspace, "idle_connections", plan, read)?;
    transcript.rows().with_context(|| look)
}

/// The guest's script. A run without output is detected by `rows`.
fn script(program: &Path, library: &Path) -> Result<String> {
    let mut text = format!("program={}\nours={}\n", quote(program)?, quote(library)?);
    text += r#"
ulimit -n 65536
idle() { # SIDE PRELOAD SECONDS PORT COUNT
    echo "== $1"
    LD_PRELOAD=$2 timeout -s KILL "$3" "$program" "$A" "$4" "$5" || :
}
"#;
    let mut port = FIRST_PORT;
    let mut run = |side: Side, timeout: u32, count: u32| {
        let preload = match side {
            Side::Ours => "\"$ours\"",
            Side::Reference => "''",
        };
        port += 1;
        let name = side.name();
        writeln!(text, "idle {name} {preload} {timeout} {port} {count}")
    };
    let [small, large] = TIMEOUTS;
    for round in 0..ROUNDS {
        for side in guest::sides(round) {
            run(side, small, FEW)?;
        }
    }
    run(Side::Ours, large, MANY)?;
    // Last, because the reference most likely hangs and may leave connections behind.
    run(Side::Reference, small, MANY)?;
    Ok(text)
}

/// Parsed output of the guest.
#[derive(Debug, Default)]
struct Transcript {
    /// Library of the line being read.
    current: Option<Side>,
    small: BTreeMap<Side, Vec<f64>>,
    large: BTreeMap<Side, Figures>,
}

impl Transcript {
    fn read(&mut self, line: &str) {
        if let Some(side) = line.strip_prefix("== ") {
            self.current = Side::of_name(side);
        } else if let Some(numbers) = line.strip_prefix("idle_connections ")
            && let Some(side) = self.current.take()
        {
            let numbers: Vec<f64> = numbers
                .split_whitespace()
                .filter_map(|number| number.parse().ok())
                .collect();
            let [count, bytes, threads, idle] = numbers[..] else {
                return;
            };
            if count == f64::from(FEW) {
                self.small.entry(side).or_default().push(bytes);
            } else if count == f64::from(MANY) {
                let figures = Figures {
                    bytes,
                    threads,
                    idle,
                };
                self.large.insert(side, figures);
            }
        }
    }

    fn rows(&self) -> Result<Vec<Row>> {
        let small = |side: Side| {
            let case = format!("memory of {FEW} connections, {}", side.name());
            guest::typical(&case, self.small.get(&side))
        };
        let ours = self.large.get(&Side::Ours);
        let ours = ours.with_context(|| format!("{MANY} connections at once gave nothing"))?;
        let reference = self.large.get(&Side::Reference);
        let case = match reference {
            Some(_) => format!("{MANY} idle"),
            None => format!("{MANY} idle (C's got stuck)"),
        };
        Ok(vec![
            Row {
                case: "memory of an accepted connection".to_owned(),
                unit: "bytes",
                ours: small(Side::Ours)?,
                reference: Some(small(Side::Reference)?),
                bar: Some(Bar::Times(1.0)),
            },
            Row {
                case: format!("{case}, memory of each"),
                unit: "bytes",
                ours: ours.bytes,
                reference: reference.map(|reference| reference.bytes),
                bar: reference.map(|_| Bar::Times(1.0)),
            },
            Row {
                case: format!("{case}, threads"),
                unit: "",
                ours: ours.threads,
                reference: reference.map(|reference| reference.threads),
                // The program's thread and the library's.
                bar: Some(Bar::Total(2.0)),
            },
            Row {
                case: format!("{case}, processors' time"),
                unit: "µs/s",
                ours: ours.idle,
                reference: reference.map(|reference| reference.idle),
                bar: None,
            },
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Transcript {
        let mut transcript = Transcript::default();
        text.lines().for_each(|line| transcript.read(line));
        transcript
    }

    fn small() -> String {
        "== ours\nidle_connections 5 700000 2 0\n== reference\nidle_connections 5 600000 1 0\n"
            .repeat(ROUNDS)
    }

    #[test]
    fn transcript_becomes_rows() {
        let large = "== ours\nidle_connections 1000 4096 2 15\n== reference\nidle_connections 1000 8192 4 30\n";
        let rows = read(&(small() + large)).rows().unwrap();
        assert_eq!((rows[0].ours, rows[0].reference), (700_000.0, Some(6e5)));
        assert_eq!(rows[0].pass(), Some(false));
        assert_eq!((rows[1].ours, rows[1].reference), (4096.0, Some(8192.0)));
        assert_eq!(rows[1].case, "1000 idle, memory of each");
        assert_eq!((rows[2].ours, rows[2].pass()), (2.0, Some(true)));
        assert_eq!((rows[3].ours, rows[3].reference), (15.0, Some(30.0)));
    }

    #[test]
    fn reference_that_hangs_is_named_in_the_rows() {
        let rows = read(&(small() + "== ours\nidle_connections 1000 4096 3 15\n== reference\n"))
            .rows()
            .unwrap();
        assert_eq!(rows[1].case, "1000 idle (C's got stuck), memory of each");
        assert_eq!((rows[1].reference, rows[1].pass()), (None, None));
        assert_eq!(rows[2].pass(), Some(false), "one thread too many");
    }

    #[test]
    fn rows_without_samples_are_an_error() {
        let error = |text: &str| read(text).rows().unwrap_err().to_string();
        let stuck = "== ours\n== reference\nidle_connections 1000 4096 1 0\n";
        assert_eq!(
            error(&(small() + stuck)),
            "1000 connections at once gave nothing"
        );
        let error = error("== ours\nidle_connections 1000 4096 2 15\n");
        assert!(error.contains("gave 0 figures"), "{error}");
    }
}
