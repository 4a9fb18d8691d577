//! What connections cost that nobody uses: `rsocket/benches/crowd.c` on librdmacm's rsockets, and on ours.
//!
//! A thousand in one process are not to be too many. rdma-core 44 gets stuck with the sixth: the thread that looks
//! after accepted connections goes on with an array that has been freed to grow. So few are compared, and the
//! rows of the many say so where the reference does not get there.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::guest;
use super::noop::Side;
use super::program;
use super::row::{Bar, Row};
use crate::soft_roce::{Run, quote};
use crate::workspace::Workspace;

/// How often the few are made on each side.
const ROUNDS: usize = guest::LEAST_ROUNDS;
const FEW: u32 = 5;
const MANY: u32 = 1000;
/// The seconds that a program may take for the few, and for the many.
const PATIENCE: [u32; 2] = [30, 200];
const TIMEOUT: Duration = Duration::from_secs(8 * 60);
/// Both ends of the many are in one guest.
const MEMORY_MIB: u32 = 4096;
const FIRST_PORT: u16 = 7700;

/// What one run has told.
#[derive(Clone, Copy, Debug)]
struct Crowd {
    /// Of memory, for each connection.
    bytes: f64,
    threads: f64,
    /// Microseconds of a second.
    idle: f64,
}

/// Runs everything.
pub(super) fn measure(workspace: &Workspace) -> Result<Vec<Row>> {
    let program = workspace.target().join("bench/crowd");
    let source = workspace.root().join("rsocket/benches/crowd.c");
    program::build_c(&source, &program, &["-lrdmacm"])?;
    let library = program::build_library(workspace, "rsocket-capi", "rsocket_capi")?;
    eprintln!("Keeping connections idle in a guest, ours and C's");
    let plan = Run::single(script(&program, &library)?)
        .memory_mib(MEMORY_MIB)
        .timeout(TIMEOUT)
        .by_line();
    let mut transcript = Transcript::default();
    let read = |line: &str| transcript.read(line);
    let look = guest::record_success(workspace, "crowd", plan, read)?;
    transcript.rows().with_context(|| look)
}

/// What the guest does. A run that gives nothing is noticed later.
fn script(program: &Path, library: &Path) -> Result<String> {
    let mut text = format!("program={}\nours={}\n", quote(program)?, quote(library)?);
    text += r#"
ulimit -n 65536
crowd() { # SIDE PRELOAD SECONDS PORT COUNT
    echo "== $1"
    LD_PRELOAD=$2 timeout -s KILL "$3" "$program" "$A" "$4" "$5" || :
}
"#;
    let mut port = FIRST_PORT;
    let mut run = |side: Side, patience: u32, count: u32| {
        let preload = match side {
            Side::Ours => "\"$ours\"",
            Side::Reference => "''",
        };
        port += 1;
        let name = side.name();
        writeln!(text, "crowd {name} {preload} {patience} {port} {count}")
    };
    let [few, many] = PATIENCE;
    for round in 0..ROUNDS {
        for side in guest::sides(round) {
            run(side, few, FEW)?;
        }
    }
    run(Side::Ours, many, MANY)?;
    // It comes last, since it may leave something undone; and most likely it gets stuck.
    run(Side::Reference, few, MANY)?;
    Ok(text)
}

/// What the guest has printed so far.
#[derive(Debug, Default)]
struct Transcript {
    /// Whose line comes.
    current: Option<Side>,
    few: BTreeMap<Side, Vec<f64>>,
    many: BTreeMap<Side, Crowd>,
}

impl Transcript {
    fn read(&mut self, line: &str) {
        if let Some(side) = line.strip_prefix("== ") {
            self.current = Side::of_name(side);
        } else if let Some(numbers) = line.strip_prefix("crowd ")
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
                self.few.entry(side).or_default().push(bytes);
            } else if count == f64::from(MANY) {
                let crowd = Crowd {
                    bytes,
                    threads,
                    idle,
                };
                self.many.insert(side, crowd);
            }
        }
    }

    fn rows(&self) -> Result<Vec<Row>> {
        let few = |side: Side| {
            let case = format!("memory of {FEW} connections, {}", side.name());
            guest::typical(&case, self.few.get(&side))
        };
        let ours = self.many.get(&Side::Ours);
        let ours = ours.with_context(|| format!("{MANY} connections at once gave nothing"))?;
        let reference = self.many.get(&Side::Reference);
        let crowd = match reference {
            Some(_) => format!("{MANY} idle"),
            None => format!("{MANY} idle (C's got stuck)"),
        };
        Ok(vec![
            Row {
                case: "memory of an accepted connection".to_owned(),
                unit: "bytes",
                ours: few(Side::Ours)?,
                reference: Some(few(Side::Reference)?),
                bar: Some(Bar::Times(1.0)),
            },
            Row {
                case: format!("{crowd}, memory of each"),
                unit: "bytes",
                ours: ours.bytes,
                reference: reference.map(|reference| reference.bytes),
                bar: reference.map(|_| Bar::Times(1.0)),
            },
            Row {
                case: format!("{crowd}, threads"),
                unit: "",
                ours: ours.threads,
                reference: reference.map(|reference| reference.threads),
                // The program's own, and that of the library.
                bar: Some(Bar::Total(2.0)),
            },
            Row {
                case: format!("{crowd}, processors' time"),
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

    fn few() -> String {
        "== ours\ncrowd 5 700000 2 0\n== reference\ncrowd 5 600000 1 0\n".repeat(ROUNDS)
    }

    #[test]
    fn transcript_becomes_rows() {
        let many = "== ours\ncrowd 1000 4096 2 15\n== reference\ncrowd 1000 8192 4 30\n";
        let rows = read(&(few() + many)).rows().unwrap();
        assert_eq!((rows[0].ours, rows[0].reference), (700_000.0, Some(6e5)));
        assert_eq!(rows[0].pass(), Some(false));
        assert_eq!((rows[1].ours, rows[1].reference), (4096.0, Some(8192.0)));
        assert_eq!(rows[1].case, "1000 idle, memory of each");
        assert_eq!((rows[2].ours, rows[2].pass()), (2.0, Some(true)));
        assert_eq!((rows[3].ours, rows[3].reference), (15.0, Some(30.0)));
    }

    #[test]
    fn a_reference_that_gets_stuck_is_told_of() {
        let rows = read(&(few() + "== ours\ncrowd 1000 4096 3 15\n== reference\n"))
            .rows()
            .unwrap();
        assert_eq!(rows[1].case, "1000 idle (C's got stuck), memory of each");
        assert_eq!((rows[1].reference, rows[1].pass()), (None, None));
        assert_eq!(rows[2].pass(), Some(false), "one thread too many");
    }

    #[test]
    fn runs_without_a_result_are_noticed() {
        let error = |text: &str| read(text).rows().unwrap_err().to_string();
        let stuck = "== ours\n== reference\ncrowd 1000 4096 1 0\n";
        assert_eq!(
            error(&(few() + stuck)),
            "1000 connections at once gave nothing"
        );
        let error = error("== ours\ncrowd 1000 4096 2 15\n");
        assert!(error.contains("gave 0 figures"), "{error}");
    }
}
