//! Latency and rate on a kernel device against perftest, client and server in one guest.
//!
//! Our program is `cm/benches/perftest`, with perftest's method. Under emulation the time of the same run varies by
//! half, so the programs alternate over many rounds and the best run of each counts; a latency is the median within the
//! run. Several guests are booted in sequence, because a program may be 5 % faster during one guest's whole lifetime.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::guest;
use super::noop::{self, Side};
use super::program;
use super::row::{Bar, Row};
use super::statistics::{greatest, least};
use crate::workspace::Workspace;
use soft_roce::{Run, quote};

const GUESTS: usize = 3;
/// Maximum number of runs of each program for each row in a guest. The first round always runs.
const MAX_ROUNDS: usize = 8;
/// Time after which no further program starts, except in the first round.
const BUDGET: Duration = Duration::from_secs(4 * 60);
/// Room for a registration of 1 GiB and for the system.
const MEMORY_MIB: u32 = 2560;
const TIMEOUT: Duration = Duration::from_secs(5 * 60 + 30);

/// Test names, as in `ib_send_lat`.
const LATENCIES: [&str; 3] = ["send_lat", "write_lat", "read_lat"];
const RATES: [&str; 2] = ["send_bw", "write_bw"];

/// Message size, iterations for a latency, and iterations for a rate.
const SIZES: [(u32, u32, u32); 3] = [(2, 2000, 5000), (4096, 1000, 2000), (65536, 300, 400)];

const MICROSECONDS: &str = "µs";
const PER_SECOND: &str = "requests/s";

/// A row to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    test: &'static str,
    size: u32,
    iterations: u32,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            test,
            size,
            iterations,
        } = self;
        write!(f, "{test} {size} {iterations}")
    }
}

/// Result of all guests.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) rows: Vec<Row>,
    /// Smallest number of figures of any program for any row.
    pub(super) rounds: usize,
}

/// Parsed output of the guests.
#[derive(Debug, Default)]
struct Transcript {
    mhz: Option<f64>,
    /// Case and program of the next figure.
    current: Option<(Case, Side)>,
    /// The figures, one for each run with a result.
    samples: BTreeMap<(Case, Side), Vec<f64>>,
    registrations: BTreeMap<Side, Vec<f64>>,
}

/// Runs all cases in several guests and returns the rows.
pub(super) fn measure(workspace: &Workspace, programs: &noop::Programs) -> Result<Measured> {
    let ours = program::build_ours(workspace, "rdma-cm", "perftest")?;
    let script = script(&ours, programs)?;
    let mut transcript = Transcript::default();
    let mut look = String::new();
    for number in 1..=GUESTS {
        eprintln!("Running perftest and its twin in a guest, {number} of {GUESTS}");
        let plan = Run::single(&script)
            .memory_mib(MEMORY_MIB)
            .timeout(TIMEOUT)
            .by_line();
        let name = format!("perftest-{number}");
        let recording = guest::record(workspace, &name, plan, |line| transcript.read(line))?;
        look = recording.look();
        if let Some(failure) = recording.failure() {
            // After a timeout the samples so far may suffice.
            ensure!(recording.outcome.timed_out(), "{failure}\n{look}");
            eprintln!("{failure}");
        }
    }
    transcript.measured().context(look)
}

/// The cases: latencies first, then by size.
fn cases() -> Vec<Case> {
    let of = |test, iterations: fn(&(u32, u32, u32)) -> u32| {
        SIZES.iter().map(move |entry| Case {
            test,
            size: entry.0,
            iterations: iterations(entry),
        })
    };
    let latencies = LATENCIES.iter().flat_map(|test| of(test, |entry| entry.1));
    let rates = RATES.iter().flat_map(|test| of(test, |entry| entry.2));
    latencies.chain(rates).collect()
}

/// The guest's script: every case once in each round, with the programs' order swapped from round to round.
fn script(ours: &Path, programs: &noop::Programs) -> Result<String> {
    let mut text = format!(
        "ours={}\nregister_ours={}\nregister_reference={}\nbudget={}\n",
        quote(ours)?,
        quote(&programs.ours)?,
        quote(&programs.reference)?,
        BUDGET.as_secs()
    );
    text += r#"
# Waits until a server listens.
listening() {
    limit=$(($(date +%s) + 10))
    until rdma resource show cm_id | grep -q 'state LISTEN'; do
        [ "$(date +%s)" -lt "$limit" ] || return
        sleep 0.02
    done
}
# Both ends have a time limit. On a busy machine perftest may fail to determine the processor's frequency ("Correlation")
# and print no result, so a run is tried up to three times.
client() {
    for seconds in 20 20 40; do
        timeout $seconds "$@" >/dev/null &
        listening
        status=0
        output=$(timeout $seconds "$@" "$A" 2>&1) || status=$?
        wait
        echo "$output"
        case $status/$output in 0/*Correlation*) ;; 0/*) return ;; esac
        echo "failed: $*" >&2
    done
}
measure() { # SIDE TEST SIZE ITERATIONS
    [ -n "$first" ] || [ "$(date +%s)" -lt "$end" ] || exit 0
    echo "== $*"
    # Our receives have a buffer each, perftest's share one: so the depth is no larger than necessary.
    case $2/$3 in *_lat/*) depth=2 ;; */65536) depth=256 ;; *) depth=512 ;; esac
    if [ "$1" = ours ]; then
        set -- "$ours" "$2" "$3" "$4" $depth
    else
        options=
        case $2 in send_*) options="-r $depth" ;; esac
        # Cycles (-C), as for ours: the frequency is only an estimate.
        case $2 in *_lat) options="$options -C" ;; esac
        set -- "ib_$2" -R -F -s "$3" -n "$4" $options
    fi
    client "$@"
}
registration() { # SIDE PROGRAM
    echo "registration $1 $("$2" "$RDMA_DEVICE" registration 1 1)"
}
grep -m 1 'cpu MHz' /proc/cpuinfo
end=$(($(date +%s) + budget))
"#;
    for round in 0..MAX_ROUNDS {
        writeln!(text, "first={}", if round == 0 { "yes" } else { "" })?;
        let sides = guest::sides(round);
        for side in sides {
            let name = side.name();
            writeln!(text, "registration {name} \"$register_{name}\"")?;
        }
        for case in cases() {
            for side in sides {
                writeln!(text, "measure {} {case}", side.name())?;
            }
        }
    }
    Ok(text)
}

impl Transcript {
    fn read(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["cpu", "MHz", ":", mhz] => self.mhz = mhz.parse().ok(),
            ["==", side, test, size, _] => {
                let case = cases()
                    .into_iter()
                    .find(|case| case.test == test && case.size.to_string() == size);
                self.current = case.zip(Side::of_name(side));
            }
            ["registration", side, time, ..] => {
                if let (Some(side), Ok(time)) = (Side::of_name(side), time.parse()) {
                    self.registrations.entry(side).or_default().push(time);
                }
            }
            _ => {
                let Some(of) = self.current else {
                    return;
                };
                if let Some(value) = figure(of.0, of.1, &words) {
                    self.samples.entry(of).or_default().push(value);
                    self.current = None;
                }
            }
        }
    }

    fn measured(&self) -> Result<Measured> {
        let mhz = self
            .mhz
            .context("the guest printed no processor frequency (`cpu MHz`)")?;
        let (mut rows, mut rounds) = (Vec::new(), usize::MAX);
        let nanoseconds = |side| least(self.registrations.get(&side)?);
        rows.push(Row {
            case: "registration of 1 GiB".to_owned(),
            unit: "ms",
            ours: nanoseconds(Side::Ours).context("no registration was timed")? / 1e6,
            reference: nanoseconds(Side::Reference).map(|time| time / 1e6),
            bar: Some(Bar::Times(1.05)),
        });
        for case in cases() {
            let is_latency = LATENCIES.contains(&case.test);
            let (unit, factor, bar) = if is_latency {
                (MICROSECONDS, 1.0 / mhz, Bar::Times(1.03))
            } else {
                (PER_SECOND, 1e6, Bar::NotBelow(0.97))
            };
            let mut best = |side| {
                let runs = self
                    .samples
                    .get(&(case, side))
                    .map_or(&[][..], Vec::as_slice);
                rounds = rounds.min(runs.len());
                let best = if is_latency {
                    least(runs)
                } else {
                    greatest(runs)
                };
                best.with_context(|| format!("{} of {} bytes gave no figure", case.test, case.size))
            };
            let (ours, reference) = (best(Side::Ours)?, best(Side::Reference)?);
            rows.push(Row {
                case: format!("{} {}", case.test, case.size),
                unit,
                ours: ours * factor,
                reference: Some(reference * factor),
                bar: Some(bar),
            });
        }
        Ok(Measured { rows, rounds })
    }
}

/// The figure in a result line. Our lines have size and figure; perftest's have size, iterations, two other columns and
/// the figure (typical latency or message rate). `None` for any other line.
fn figure(case: Case, side: Side, words: &[&str]) -> Option<f64> {
    let size = case.size.to_string();
    let text = match (side, words) {
        (Side::Ours, [first, figure]) if *first == size => figure,
        (Side::Reference, [first, iterations, _, _, figure, ..])
            if *first == size && *iterations == case.iterations.to_string() =>
        {
            figure
        }
        _ => return None,
    };
    text.parse().ok().filter(|figure| *figure > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: Case = Case {
        test: "send_lat",
        size: 2,
        iterations: 2000,
    };

    /// Output of one round of a case.
    fn round(case: Case, ours: &str, reference: &str) -> String {
        let Case {
            size, iterations, ..
        } = case;
        format!(
            "== ours {case}\n{size} {ours}\n== reference {case}\n------\n \
             {size} {iterations} 1.0 1.0 {reference} 1.0\n"
        )
    }

    fn read(text: &str) -> Transcript {
        let mut transcript = Transcript::default();
        text.lines().for_each(|line| transcript.read(line));
        transcript
    }

    fn of(side: Side, line: &str) -> Option<f64> {
        let words: Vec<&str> = line.split_whitespace().collect();
        figure(CASE, side, &words)
    }

    #[test]
    fn figure_of_perftest_latency_line_is_the_typical_latency() {
        let line = " 2       2000          31716.00        18607192.00      37560.00  \t       2132202.92     \t-nan   \t\t9459335.00 \t\t18607192.00";
        assert_eq!(of(Side::Reference, line), Some(37560.0));
        assert_eq!(of(Side::Ours, line), None);
        for other in [
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]",
            " 4096    2000          31716.00        18607192.00      37560.00",
            " TX depth        : 1",
            "",
        ] {
            assert_eq!(of(Side::Reference, other), None, "{other}");
        }
    }

    #[test]
    fn figure_of_perftest_bandwidth_line_is_the_message_rate() {
        let line = " 2          2000             0.08               0.04   \t\t   0.019448";
        assert_eq!(of(Side::Reference, line), Some(0.019_448));
    }

    #[test]
    fn transcript_becomes_rows() {
        let mut text = "cpu MHz\t\t: 2000.000\nregistration ours 2000000.0 1.0\nregistration reference 1000000.0 1.0\n".to_owned();
        for case in cases() {
            for _ in 0..2 {
                text += &round(case, "4000.0", "2000.0");
            }
        }
        let Measured { rows, rounds } = read(&text).measured().unwrap();
        assert_eq!(rounds, 2);
        assert_eq!(rows.len(), 1 + cases().len());
        assert_eq!((rows[0].ours, rows[0].reference), (2.0, Some(1.0)));
        assert_eq!(rows[1].case, "send_lat 2");
        assert_eq!((rows[1].ours, rows[1].reference), (2.0, Some(1.0)));
        assert_eq!(rows[1].pass(), Some(false));
        let last = rows.last().unwrap();
        assert_eq!((last.unit, last.ours), (PER_SECOND, 4e9));
        assert_eq!(last.pass(), Some(true));
    }

    #[test]
    fn rows_of_several_rounds_have_the_best_run_of_each_program() {
        let mut text = "cpu MHz : 1000.000\n".to_owned();
        for time in ["3e6", "2e6", "9e6"] {
            text += &format!("registration ours {time} 0\n");
        }
        // A disturbance makes times longer and rates lower; one run of ours gives no figure.
        for case in cases() {
            for (ours, reference) in [("10.0", "80.0"), ("", "90.0"), ("70.0", "20.0")] {
                text += &round(case, ours, reference);
            }
        }
        let Measured { rows, rounds } = read(&text).measured().unwrap();
        assert_eq!(rounds, 2);
        assert_eq!((rows[0].ours, rows[0].reference), (2.0, None));
        assert_eq!((rows[1].ours, rows[1].reference), (0.01, Some(0.02)));
        let last = rows.last().unwrap();
        assert_eq!((last.ours, last.reference), (7e7, Some(9e7)));
    }

    #[test]
    fn measured_without_samples_is_an_error() {
        let text = "cpu MHz : 2000.000\nregistration ours 1 1\n== ours send_lat 2 2000\n";
        let error = read(text).measured().unwrap_err().to_string();
        assert_eq!(error, "send_lat of 2 bytes gave no figure");
    }
}
