//! Cost of streams against librdmacm's rsockets, in a guest.
//!
//! Our program is the example `rstream`, the reference librdmacm's program of the same name, with the same options. The
//! programs alternate; the result is the ratio of the medians. Several guests are booted, because either program may be
//! faster during one guest's whole lifetime.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result};

use super::guest;
use super::noop::Side;
use super::program;
use super::row::{Bar, Row};
use crate::workspace::Workspace;
use soft_roce::{Run, quote};

/// Number of boots of the guest.
const BOOTS: usize = 3;
/// Maximum number of runs of each program for each row in a guest. Fewer run if `BUDGET` expires.
const MAX_ROUNDS: usize = 4;
/// Time after which no further program starts.
const BUDGET: Duration = Duration::from_secs(3 * 60);
const TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// One transfer in each direction, alternating.
    Latency,
    /// Many transfers in one direction, then many back.
    Rate,
    /// Processor time of the transfers of `Rate`.
    Processor,
}

/// A row to measure: transfer size in bytes, iterations, and transfers per iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    what: What,
    size: u32,
    iterations: u32,
    transfers: u32,
}

impl Case {
    /// Total bytes over the connection, both directions.
    fn bytes(self) -> f64 {
        2.0 * f64::from(self.size) * f64::from(self.transfers) * f64::from(self.iterations)
    }
}

const CASES: [Case; 10] = {
    const fn latency(size: u32, iterations: u32) -> Case {
        Case {
            what: What::Latency,
            size,
            iterations,
            transfers: 1,
        }
    }
    const fn rate(size: u32, transfers: u32) -> Case {
        Case {
            what: What::Rate,
            size,
            iterations: 1,
            transfers,
        }
    }
    /// A case with enough bytes to make the programs' start-up negligible.
    const fn processor(size: u32, transfers: u32) -> Case {
        Case {
            what: What::Processor,
            ..rate(size, transfers)
        }
    }
    [
        latency(64, 1000),
        latency(4096, 800),
        rate(64, 4000),
        rate(1 << 10, 3000),
        rate(4 << 10, 2000),
        rate(16 << 10, 600),
        rate(64 << 10, 200),
        rate(1 << 20, 20),
        processor(4 << 10, 10_000),
        processor(64 << 10, 1000),
    ]
};

/// Runs all cases in several guests and returns the rows.
pub(super) fn measure(workspace: &Workspace) -> Result<Vec<Row>> {
    let ours = program::build_example(workspace, "rstream")?;
    let mut transcript = Transcript::default();
    let mut look = String::new();
    for boot in 1..=BOOTS {
        eprintln!("Running rstream, ours and C's, in a guest, {boot} of {BOOTS}");
        let plan = Run::single(script(&quote(&ours)?)?)
            .timeout(TIMEOUT)
            .by_line();
        let name = format!("rstream-{boot}");
        let read = |line: &str| transcript.read(line);
        look = guest::record_success(workspace, &name, plan, read)?;
    }
    transcript.rows().with_context(|| look)
}

/// The guest's script: every case once in each round, with the programs' order swapped from round to round.
fn script(ours: &str) -> Result<String> {
    let mut text = format!(
        "ours={ours}\nreference=/usr/bin/rstream\nbudget={}\n",
        BUDGET.as_secs()
    );
    text += r#"
cd /tmp
end=$(($(date +%s) + budget))
port=7471
# A subshell, whose `times` has the processor time of its children.
measure() { # SIDE PROGRAM SIZE TRANSFERS ITERATIONS
    [ "$(date +%s)" -lt "$end" ] || exit 0
    echo "== $1 $3 $4 $5"
    port=$((port + 1))
    (pair "$@"; times > times; tail -n 1 times | sed 's/^/times /')
}
pair() {
    program=$2
    options="-S $3 -C $4 -I $5 -T b -p $port"
    timeout 30 $program -b "$A" $options > /dev/null 2>&1 &
    limit=$(($(date +%s) + 5))
    until rdma resource show cm_id | grep -q 'state LISTEN'; do
        [ "$(date +%s)" -lt "$limit" ] || break
        sleep 0.02
    done
    timeout 30 $program -s "$A" $options
    wait
}
"#;
    for round in 0..MAX_ROUNDS {
        for case in CASES {
            for side in guest::sides(round) {
                let name = side.name();
                let Case {
                    size,
                    transfers,
                    iterations,
                    ..
                } = case;
                writeln!(
                    text,
                    "measure {name} \"${name}\" {size} {transfers} {iterations}"
                )?;
            }
        }
    }
    Ok(text)
}

/// Parsed output of the guest.
#[derive(Debug, Default)]
struct Transcript {
    /// Case and program of the next figure.
    current: Option<(Case, Side)>,
    /// Whether the current run has printed its result.
    complete: bool,
    /// Microseconds per transfer, or nanoseconds of processor time per byte.
    samples: BTreeMap<(Case, Side), Vec<f64>>,
}

impl Transcript {
    fn read(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["==", side, size, transfers, iterations] => {
                let arguments = [size, transfers, iterations];
                let case = CASES.into_iter().find(|case| {
                    let expected = [case.size, case.transfers, case.iterations];
                    expected.map(|number| number.to_string()) == arguments
                });
                self.current = case.zip(Side::of_name(side));
                self.complete = false;
            }
            ["custom", .., micros] => {
                if let (Some(key), Ok(micros)) = (self.current, micros.parse()) {
                    self.complete = true;
                    if key.0.what != What::Processor {
                        self.samples.entry(key).or_default().push(micros);
                    }
                }
            }
            ["times", user, system] => {
                if let (Some(key), Some(user), Some(system)) =
                    (self.current.take(), seconds(user), seconds(system))
                    && key.0.what == What::Processor
                    && self.complete
                {
                    let nanoseconds = (user + system) * 1e9 / key.0.bytes();
                    self.samples.entry(key).or_default().push(nanoseconds);
                }
            }
            _ => {}
        }
    }

    fn rows(&self) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        let mut ratios = Vec::new();
        for case in CASES {
            let name = format!("{case:?}");
            let micros = |side| guest::typical(&name, self.samples.get(&(case, side)));
            let (ours, reference) = (micros(Side::Ours)?, micros(Side::Reference)?);
            rows.push(match case.what {
                What::Latency => Row {
                    case: format!("latency {}", case.size),
                    unit: "µs",
                    ours,
                    reference: Some(reference),
                    bar: Some(Bar::Times(1.0)),
                },
                What::Rate => {
                    ratios.push(reference / ours);
                    Row {
                        case: format!("throughput {}", case.size),
                        unit: "MB/s",
                        ours: f64::from(case.size) / ours,
                        reference: Some(f64::from(case.size) / reference),
                        bar: Some(Bar::NotBelow(1.0)),
                    }
                }
                What::Processor => Row {
                    case: format!("processors' time for a byte, by {}", case.size),
                    unit: "ns",
                    ours,
                    reference: Some(reference),
                    bar: Some(Bar::Times(1.0)),
                },
            });
        }
        rows.push(Row {
            case: "throughput, geometric mean".to_owned(),
            unit: "of C's",
            ours: geometric_mean(&ratios),
            reference: Some(1.0),
            bar: Some(Bar::NotBelow(1.1)),
        });
        Ok(rows)
    }
}

/// Parses a duration in the format of a shell's `times`: `0m1.25s`.
fn seconds(text: &str) -> Option<f64> {
    let (minutes, seconds) = text.strip_suffix('s')?.split_once('m')?;
    let (minutes, seconds): (f64, f64) = (minutes.parse().ok()?, seconds.parse().ok()?);
    Some(minutes * 60.0 + seconds)
}

#[expect(clippy::cast_precision_loss, reason = "a few numbers")]
fn geometric_mean(values: &[f64]) -> f64 {
    let logarithms: f64 = values.iter().map(|value| value.ln()).sum();
    (logarithms / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::super::guest::LEAST_ROUNDS;
    use super::*;

    #[test]
    fn transcript_becomes_rows() {
        let mut transcript = Transcript::default();
        for case in CASES {
            let Case {
                size,
                transfers,
                iterations,
                ..
            } = case;
            for (side, micros) in [("ours", 2.0), ("reference", 4.0)] {
                for _ in 0..LEAST_ROUNDS {
                    transcript.read(&format!("== {side} {size} {transfers} {iterations}"));
                    transcript.read("name      bytes   xfers   iters   total");
                    transcript.read(&format!("custom 64 1 1k 125k 0.42s 0.00 {micros}"));
                    transcript.read(&format!("times 1m{micros}s 0m0.00s"));
                }
            }
        }
        let rows = transcript.rows().unwrap();
        assert_eq!(rows.len(), CASES.len() + 1);
        assert_eq!((rows[0].ours, rows[0].reference), (2.0, Some(4.0)));
        assert_eq!((rows[2].ours, rows[2].reference), (32.0, Some(16.0)));
        let processors = &rows[CASES.len() - 1];
        assert_eq!(processors.ours, 62e9 / CASES[9].bytes());
        assert_eq!(processors.reference, Some(64e9 / CASES[9].bytes()));
        let mean = rows.last().unwrap();
        assert!((mean.ours - 2.0).abs() < 1e-9 && mean.pass() == Some(true));
    }

    #[test]
    fn rows_without_samples_are_an_error() {
        let mut transcript = Transcript::default();
        transcript.read("== ours 64 1 1000");
        transcript.read("times 0m0.01s 0m0.02s");
        let error = transcript.rows().unwrap_err().to_string();
        assert!(error.contains("gave 0 figures"), "{error}");
    }
}
