//! What streams cost, against librdmacm's rsockets, in one guest.
//!
//! Ours is the example `rstream`, and the reference librdmacm's program of that name, with the same
//! options. The two take turns, and what counts is the ratio of the medians.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::noop::Side;
use super::program;
use super::row::{Bar, Row};
use super::statistics::median;
use crate::soft_roce::{EventKind, Run, Stream};
use crate::workspace::Workspace;

/// How often each program runs for each row: as often as there is time, but not less, and not more.
const LEAST_ROUNDS: usize = 3;
const MOST_ROUNDS: usize = 11;
/// The time for it.
const BUDGET: Duration = Duration::from_secs(7 * 60);
const TIMEOUT: Duration = Duration::from_secs(9 * 60);

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// One transfer there, one back.
    Latency,
    /// Many there, many back.
    Rate,
}

/// A row to be measured: bytes of a transfer, and the options that say how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    what: What,
    size: u32,
    iterations: u32,
    transfers: u32,
}

const CASES: [Case; 8] = {
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
    [
        latency(64, 1000),
        latency(4096, 800),
        rate(64, 4000),
        rate(1 << 10, 3000),
        rate(4 << 10, 2000),
        rate(16 << 10, 600),
        rate(64 << 10, 200),
        rate(1 << 20, 20),
    ]
};

/// Runs everything.
pub(super) fn measure(workspace: &Workspace) -> Result<Vec<Row>> {
    let ours = program::build_example(workspace, "rstream")?;
    eprintln!("Running rstream, ours and C's, in a guest");
    let ours = ours.to_string_lossy();
    let plan = Run::single(script(&shlex::try_quote(&ours)?)?)
        .timeout(TIMEOUT)
        .by_line();
    let mut transcript = Transcript::default();
    let outcome = plan.execute(workspace, &mut |event| {
        if let EventKind::Output(Stream::Stdout, line) = &event.kind {
            transcript.read(&String::from_utf8_lossy(line));
        }
    })?;
    if let Some(complaint) = outcome.complaint() {
        bail!("{complaint}");
    }
    ensure!(outcome.is_success(), "the measurement failed");
    transcript.rows()
}

/// What the guest does: everything once in each round, and who begins changes from round to round.
fn script(ours: &str) -> Result<String> {
    let mut text = format!(
        "ours={ours}\nreference=rstream\nbudget={}\n",
        BUDGET.as_secs()
    );
    text += r#"
end=$(($(date +%s) + budget))
port=7471
measure() { # SIDE PROGRAM SIZE TRANSFERS ITERATIONS
    [ "$(date +%s)" -lt "$end" ] || exit 0
    echo "== $1 $3 $4 $5"
    port=$((port + 1))
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
    for round in 0..MOST_ROUNDS {
        for case in CASES {
            let mut sides = [Side::Ours, Side::Reference];
            if round % 2 == 1 {
                sides.reverse();
            }
            for side in sides {
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

/// What the guest has printed so far.
#[derive(Debug, Default)]
struct Transcript {
    /// Whose number comes next.
    current: Option<(Case, Side)>,
    /// Microseconds of a transfer.
    samples: BTreeMap<(Case, Side), Vec<f64>>,
}

impl Transcript {
    fn read(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["==", side, size, transfers, iterations] => {
                let said = [size, transfers, iterations];
                let case = CASES.into_iter().find(|case| {
                    let own = [case.size, case.transfers, case.iterations];
                    own.map(|number| number.to_string()) == said
                });
                self.current = case.zip(Side::of_name(side));
            }
            ["custom", .., micros] => {
                if let (Some(key), Ok(micros)) = (self.current.take(), micros.parse()) {
                    self.samples.entry(key).or_default().push(micros);
                }
            }
            _ => {}
        }
    }

    fn rows(&self) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        let mut ratios = Vec::new();
        for case in CASES {
            let micros = |side| {
                let samples = self.samples.get(&(case, side));
                let samples = samples.map_or(&[][..], Vec::as_slice);
                ensure!(
                    samples.len() >= LEAST_ROUNDS,
                    "{case:?} gave {} figures, and {LEAST_ROUNDS} are wanted: is the machine busy?",
                    samples.len()
                );
                median(samples).context("there are no samples")
            };
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

#[expect(clippy::cast_precision_loss, reason = "a few numbers")]
fn geometric_mean(values: &[f64]) -> f64 {
    let logarithms: f64 = values.iter().map(|value| value.ln()).sum();
    (logarithms / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
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
                }
            }
        }
        let rows = transcript.rows().unwrap();
        assert_eq!(rows.len(), CASES.len() + 1);
        assert_eq!((rows[0].ours, rows[0].reference), (2.0, Some(4.0)));
        assert_eq!((rows[2].ours, rows[2].reference), (32.0, Some(16.0)));
        let mean = rows.last().unwrap();
        assert!((mean.ours - 2.0).abs() < 1e-9 && mean.pass() == Some(true));
    }

    #[test]
    fn runs_without_a_result_are_noticed() {
        let mut transcript = Transcript::default();
        transcript.read("== ours 64 1 1000");
        let error = transcript.rows().unwrap_err().to_string();
        assert!(error.contains("gave 0 figures"), "{error}");
    }
}
