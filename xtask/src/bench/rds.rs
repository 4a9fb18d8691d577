//! Benchmark of messages over RDS in user space and over the kernel's, on two guests.
//!
//! One C program, `rds/benches/messages.c`, runs twice on a pair of guests at the same time: with
//! `rds-preload`, given a port of its own by `rds/benches/port.c`, and with the kernel's RDS. The two measure
//! each case in turns of a fraction of a second, in the order ABBA, and one sleeps while the other runs:
//! emulators change their speed by a third within seconds, and more with new guests, which affects both
//! alike. Each four turns give one ratio. The result is the geometric mean of the middle half of the ratios,
//! as a multiple of the reference's median.
//!
//! The memory of a connection is the decrease of free memory of the guest, of kernel and program alike. It is
//! measured first, with one kind on each pair, before any memory is released.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};

use super::guest;
use super::noop::Side;
use super::program;
use super::row::{Bar, Row};
use crate::workspace::Workspace;
use soft_roce::{Run, quote};

/// Number of pairs of guests, each of which measures the memory of one kind.
const PAIRS: usize = 6;
/// Number of rounds per pair.
const ROUNDS: usize = 18;
const TIMEOUT: Duration = Duration::from_secs(6 * 60);

/// Cases: the name in the program, and the size of a message or operation, or the number of
/// connections.
const CASES: [(&str, u32); 7] = [
    ("latency", 64),
    ("rate", 64),
    ("rate", 1 << 10),
    ("rate", 8 << 10),
    ("rate", 64 << 10),
    ("write", 64 << 10),
    (MEMORY, 15),
];

/// Case measured once per pair.
const MEMORY: &str = "memory";

/// The measured programs, as shell commands.
struct Programs {
    messages: String,
    /// Preloaded libraries of ours.
    preloads: String,
}

/// Runs the benchmark.
pub(super) fn measure(workspace: &Workspace) -> Result<Vec<Row>> {
    let build = |name: &str, output: &str, arguments: &[&str]| {
        let source = workspace.root().join("rds/benches").join(name);
        let output = workspace.target().join("bench").join(output);
        program::build_c(&source, &output, arguments)?;
        quote(&output)
    };
    let library = program::build_library(workspace, "rds-preload", "rdspreload")?;
    let port = build("port.c", "rds-port.so", &["-shared", "-fPIC", "-ldl"])?;
    let programs = Programs {
        messages: build("messages.c", "rds-messages", &[])?,
        preloads: format!("{port}:{}", quote(&library)?),
    };
    let mut transcript = Transcript::default();
    let mut look = String::new();
    for pair in 0..PAIRS {
        eprintln!(
            "Running messages over RDS, ours and the kernel's, on two guests, {} of {PAIRS}",
            pair + 1
        );
        let plan = programs.plan(guest::sides(pair));
        let name = format!("rds-{}", pair + 1);
        look = guest::record_success(workspace, &name, plan, |line| transcript.read(line))?;
    }
    transcript.rows().with_context(|| look)
}

fn kind(side: Side) -> &'static str {
    match side {
        Side::Ours => "ours",
        Side::Reference => "the kernel's",
    }
}

impl Programs {
    /// Runs both kinds on two guests: the first alone for the memory, then both together.
    fn plan(&self, sides: [Side; 2]) -> Run {
        let Self { messages, preloads } = self;
        let modules = |side| match side {
            Side::Ours => "",
            Side::Reference => "modprobe rds_rdma && ",
        };
        let run = |side, arguments: &str| match side {
            Side::Ours => format!("LD_PRELOAD={preloads} {messages} {arguments}"),
            Side::Reference => format!("{messages} {arguments}"),
        };
        let both = |one, other| format!("{{ {one} & one=$!; {other} && wait $one; }}");
        let [first, second] = sides;
        let [one, other] = sides.map(Side::name);
        let server = format!(
            "{}{} && modprobe rds_rdma && {}",
            modules(first),
            run(first, "server $A"),
            both(run(first, "server $A"), run(second, "server $A")),
        );
        let turns = format!("$B $A {ROUNDS} /tmp");
        let client = format!(
            "{}{} && modprobe rds_rdma && mkfifo /tmp/back /tmp/there && {}",
            modules(first),
            run(first, &format!("memory {one} $B $A")),
            both(
                run(first, &format!("first {one} {turns}/back /tmp/there")),
                run(second, &format!("second {other} {turns}/there /tmp/back")),
            ),
        );
        Run::pair(server, client).timeout(TIMEOUT).by_line()
    }
}

/// Output of the guests.
#[derive(Debug, Default)]
struct Transcript {
    samples: BTreeMap<(&'static str, u32, Side), Vec<f64>>,
}

impl Transcript {
    fn read(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["==", name, what, size, number] = words[..] else {
            return;
        };
        let said = |(name, bytes): &&(&str, u32)| *name == what && bytes.to_string() == size;
        let case = CASES.iter().find(said);
        let side = Side::of_name(name);
        if let (Some(&(what, size)), Some(side), Ok(number)) = (case, side, number.parse()) {
            self.samples
                .entry((what, size, side))
                .or_default()
                .push(number);
        }
    }

    fn rows(&self) -> Result<Vec<Row>> {
        let row = |(what, size): (&'static str, u32)| {
            let of = |side| self.samples.get(&(what, size, side));
            let typical = |side| {
                let case = format!("{what} {size}, {}", kind(side));
                guest::typical(&case, of(side))
            };
            let reference = typical(Side::Reference)?;
            let ours = if what == MEMORY {
                typical(Side::Ours)?
            } else {
                let turns = of(Side::Ours).zip(of(Side::Reference));
                let ratios = turns.map(|(ours, reference)| ratios(ours, reference));
                let logarithms = ratios.map(|ratios| ratios.into_iter().map(f64::ln).collect());
                let case = format!("{what} {size}, of four turns");
                reference * guest::middle(&case, logarithms.as_ref())?.exp()
            };
            let (case, unit, scale, bar) = match what {
                "latency" => ("there and back", "µs", 1.0, Bar::Times(1.0)),
                "rate" => ("messages", "1/s", 1.0, Bar::NotBelow(1.0)),
                MEMORY => ("memory of a connection, of", "bytes", 1.0, Bar::Times(1.0)),
                _ => ("RDMA writes", "MB/s", 1e-6, Bar::NotBelow(1.0)),
            };
            Ok(Row {
                case: format!("{case} {size}"),
                unit,
                ours: ours * scale,
                reference: Some(reference * scale),
                bar: Some(bar),
            })
        };
        CASES.into_iter().map(row).collect()
    }
}

/// Ratios of ours to the reference, one for each four turns, two of each kind.
fn ratios(ours: &[f64], reference: &[f64]) -> Vec<f64> {
    let sum = |turns: &[f64]| turns.iter().sum::<f64>();
    let fours = ours.chunks_exact(2).zip(reference.chunks_exact(2));
    fours
        .map(|(ours, reference)| (sum(ours), sum(reference)))
        .filter(|(_, reference)| *reference > 0.0)
        .map(|(ours, reference)| ours / reference)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transcript_becomes_rows() {
        let mut transcript = Transcript::default();
        // The guests slow down from turn to turn.
        for round in 0..2 * guest::LEAST_ROUNDS {
            let scale = f64::from(1 << round);
            for (what, size) in CASES {
                for (side, number) in [
                    ("ours", 4e6),
                    ("reference", 2e6),
                    ("reference", 2e6),
                    ("ours", 4e6),
                ] {
                    transcript.read(&format!("== {side} {what} {size} {}", number * scale));
                }
            }
        }
        transcript.read("== ours latency 65 1");
        transcript.read("== theirs latency 64 1");
        transcript.read("anything else");
        let rows = transcript.rows().unwrap();
        assert_eq!(rows.len(), CASES.len());
        assert_eq!(rows[0].pass(), Some(false), "twice as late");
        assert_eq!(rows[1].pass(), Some(true), "twice as many");
        assert_eq!((rows[5].ours, rows[5].reference), (24.0, Some(12.0)));
        assert_eq!(rows[6].pass(), Some(false), "twice as much");
        transcript.samples.remove(&(MEMORY, 15, Side::Reference));
        let error = transcript.rows().unwrap_err().to_string();
        assert!(
            error.contains("memory 15, the kernel's gave 0 figures"),
            "{error}"
        );
    }

    #[test]
    fn ratios_compare_adjacent_turns() {
        assert_eq!(
            ratios(&[1.0, 3.0, 30.0, 30.0, 9.0], &[2.0, 6.0, 60.0, 180.0]),
            [0.5, 0.25]
        );
        assert!(ratios(&[1.0, 1.0], &[0.0, 0.0]).is_empty());
    }

    #[test]
    fn missing_figures_are_an_error() {
        let error = Transcript::default().rows().unwrap_err().to_string();
        assert!(error.contains("gave 0 figures"), "{error}");
    }
}
