//! What messages cost over RDS in user space, against the kernel's, on two guests.
//!
//! One program in C, `rds/benches/messages.c`, runs on a pair of guests with `rds-preload`, and on the same
//! pair with the kernel's RDS, whose modules are there as long as they are needed. Each kind has several turns
//! on a pair, in the order of [`TURNS`]: what a turn of one kind measures is compared with the turn of the
//! other that is next to it, since what an emulator takes for the same thing changes by a third within seconds,
//! and more with new guests. What counts is the median of these ratios: ours is told as so many times the
//! reference's median. And what counts is the memory of a connection, which is what the guest has less of, be
//! it the kernel's or the program's: that is measured with the kind that begins, before any memory has been
//! given back. The kinds take turns in beginning.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::guest;
use super::noop::Side;
use super::program;
use super::row::{Bar, Row};
use super::statistics::median;
use crate::soft_roce::{Run, quote};
use crate::workspace::Workspace;

/// How many pairs of guests there are, each of which gives the memory of one kind.
const PAIRS: usize = 6;
/// How often everything is measured in a turn of a kind.
const ROUNDS: usize = 2;
const TIMEOUT: Duration = Duration::from_secs(6 * 60);

/// Whose turn it is on a pair, the kind's that begins (0) or the other's, and what is measured beside what is
/// always: there and back takes little time, and scatters most.
const TURNS: [(usize, &str); 12] = [
    (0, " memory"),
    (1, ""),
    (1, ""),
    (0, ""),
    (0, " latency"),
    (1, " latency"),
    (1, " latency"),
    (0, " latency"),
    (0, " latency"),
    (1, " latency"),
    (1, " latency"),
    (0, " latency"),
];

/// What is measured: what the program calls it, and how many bytes a message or an operation has, or how many
/// connections there are.
const CASES: [(&str, u32); 7] = [
    ("latency", 64),
    ("rate", 64),
    ("rate", 1 << 10),
    ("rate", 8 << 10),
    ("rate", 64 << 10),
    ("write", 64 << 10),
    (MEMORY, 15),
];

/// What is measured once on a pair.
const MEMORY: &str = "memory";

/// What goes before the name of the kind that is measured from then on.
const KIND: &str = "kind";

/// Runs everything.
pub(super) fn measure(workspace: &Workspace) -> Result<Vec<Row>> {
    let program = workspace.target().join("bench/rds-messages");
    let source = workspace.root().join("rds/benches/messages.c");
    program::build_c(&source, &program, &[])?;
    let library = program::build_library(workspace, "rds-preload", "rdspreload")?;
    let mut transcript = Transcript::default();
    let mut look = String::new();
    for pair in 0..PAIRS {
        eprintln!(
            "Running messages over RDS, ours and the kernel's, on two guests, {} of {PAIRS}",
            pair + 1
        );
        transcript.pair = pair;
        let read = |line: &str| transcript.read(line);
        let plan = plan(guest::sides(pair), &program, &library)?;
        let name = format!("rds-{}", pair + 1);
        look = guest::record_success(workspace, &name, plan, read)?;
    }
    transcript.rows().with_context(|| look)
}

fn kind(side: Side) -> &'static str {
    match side {
        Side::Ours => "ours",
        Side::Reference => "the kernel's",
    }
}

/// The program on two guests, with one kind after the other.
fn plan(sides: [Side; 2], program: &Path, library: &Path) -> Result<Run> {
    let (program, library) = (quote(program)?, quote(library)?);
    let run = |side, arguments: &str| match side {
        Side::Ours => format!("LD_PRELOAD={library} {program} {arguments}"),
        Side::Reference => {
            format!("modprobe rds_rdma && {program} {arguments} && rmmod rds_rdma rds")
        }
    };
    let server = TURNS
        .map(|(at, _)| run(sides[at], "server $A"))
        .join(" && ");
    let client = TURNS.map(|(at, more)| {
        let side = sides[at];
        let run = run(side, &format!("client $B $A {ROUNDS}{more}"));
        format!("echo == {KIND} {} && {run}", side.name())
    });
    let plan = Run::pair(server, client.join(" && "));
    Ok(plan.timeout(TIMEOUT).by_line())
}

/// What the guests have printed so far.
#[derive(Debug, Default)]
struct Transcript {
    /// Where it is being measured, and what.
    pair: usize,
    side: Option<Side>,
    /// The pair and the number of the turn that each kind has had last.
    turns: BTreeMap<Side, Turn>,
    samples: BTreeMap<(&'static str, u32, Side), BTreeMap<Turn, Vec<f64>>>,
}

/// A pair of guests, and which turn of a kind's it is there.
type Turn = (usize, usize);

impl Transcript {
    fn read(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (what, size, number) = match words[..] {
            ["==", KIND, name] => {
                self.side = Side::of_name(name);
                if let Some(side) = self.side {
                    let last = self.turns.get(&side).filter(|(pair, _)| *pair == self.pair);
                    let turn = last.map_or(0, |(_, turn)| turn + 1);
                    self.turns.insert(side, (self.pair, turn));
                }
                return;
            }
            ["==", what, size, number] => (what, size, number),
            _ => return,
        };
        let said = |(name, bytes): &&(&str, u32)| *name == what && bytes.to_string() == size;
        let case = CASES.iter().find(said);
        if let (Some(&(what, size)), Some(side), Ok(number)) = (case, self.side, number.parse()) {
            let samples = self.samples.entry((what, size, side)).or_default();
            let turn = self.turns.get(&side).copied().unwrap_or_default();
            samples.entry(turn).or_default().push(number);
        }
    }

    fn rows(&self) -> Result<Vec<Row>> {
        let row = |(what, size): (&'static str, u32)| {
            let of = |side| self.samples.get(&(what, size, side));
            let typical = |side| {
                let samples = of(side).map(|turns| turns.values().flatten().copied().collect());
                let case = format!("{what} {size}, {}", kind(side));
                guest::typical(&case, samples.as_ref())
            };
            let reference = typical(Side::Reference)?;
            let ours = if what == MEMORY {
                typical(Side::Ours)?
            } else {
                let turns = of(Side::Ours).zip(of(Side::Reference));
                let ratios = turns.map(|(ours, reference)| ratios(ours, reference));
                let case = format!("{what} {size}, of turns");
                reference * guest::typical(&case, ratios.as_ref())?
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

/// Ours, as a multiple of the reference, for each turn.
fn ratios(ours: &BTreeMap<Turn, Vec<f64>>, reference: &BTreeMap<Turn, Vec<f64>>) -> Vec<f64> {
    let ratio = |(turn, ours): (&Turn, &Vec<f64>)| {
        let (ours, reference) = (median(ours)?, median(reference.get(turn)?)?);
        (reference > 0.0).then(|| ours / reference)
    };
    ours.iter().filter_map(ratio).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transcript_becomes_rows() {
        let mut transcript = Transcript::default();
        for (what, size) in CASES {
            transcript.read(&format!("== {what} {size} 1"));
        }
        assert!(transcript.samples.is_empty(), "nobody knows whose they are");
        // The guests of each pair are so much slower than those before.
        for pair in 0..guest::LEAST_ROUNDS {
            transcript.pair = pair;
            let scale = f64::from(1 << (4 * pair));
            for (side, number) in [("ours", 4e6), ("reference", 2e6)] {
                transcript.read(&format!("== kind {side}"));
                for (what, size) in CASES {
                    transcript.read(&format!("== {what} {size} {}", number * scale));
                }
            }
        }
        transcript.pair = 99;
        transcript.read("== kind ours");
        for (what, size) in CASES.into_iter().filter(|(what, _)| *what != MEMORY) {
            for _ in 0..9 {
                transcript.read(&format!("== {what} {size} 1e9"));
            }
        }
        transcript.read("== latency 65 1");
        transcript.read("anything else");
        let rows = transcript.rows().unwrap();
        assert_eq!(rows.len(), CASES.len());
        assert_eq!(rows[0].pass(), Some(false), "twice as late");
        assert_eq!(rows[1].pass(), Some(true), "twice as many");
        assert_eq!((rows[5].ours, rows[5].reference), (64.0, Some(32.0)));
        assert_eq!(
            (rows[6].ours, rows[6].pass()),
            (64e6, Some(false)),
            "twice as much"
        );
        transcript.samples.remove(&(MEMORY, 15, Side::Reference));
        let error = transcript.rows().unwrap_err().to_string();
        assert!(
            error.contains("memory 15, the kernel's gave 0 figures"),
            "{error}"
        );
    }

    #[test]
    fn turns_are_compared_with_those_next_to_them() {
        let mut transcript = Transcript::default();
        for pair in 0..guest::LEAST_ROUNDS {
            transcript.pair = pair;
            // What comes later takes longer, for both.
            for (turn, slower) in [1.0, 10.0, 100.0].into_iter().enumerate() {
                let mut kinds = [("ours", 3.0), ("reference", 4.0)];
                if turn % 2 == 1 {
                    kinds.reverse();
                }
                for (side, number) in kinds {
                    transcript.read(&format!("== kind {side}"));
                    transcript.read(&format!("== latency 64 {}", number * slower));
                }
            }
        }
        let of = |side| &transcript.samples[&("latency", 64, side)];
        let ratios = ratios(of(Side::Ours), of(Side::Reference));
        assert_eq!(ratios, vec![0.75; 3 * guest::LEAST_ROUNDS]);
    }

    #[test]
    fn everything_is_measured_by_both_kinds_equally_often() {
        let mut measured = [Vec::new(), Vec::new()];
        for (at, what) in TURNS {
            measured[at].push(what.replace(" memory", ""));
        }
        assert_eq!(measured[0], measured[1]);
    }

    #[test]
    fn runs_without_a_result_are_noticed() {
        let error = Transcript::default().rows().unwrap_err().to_string();
        assert!(error.contains("gave 0 figures"), "{error}");
    }
}
