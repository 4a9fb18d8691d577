//! Making and ending connections, against rdmacm-utils' `cmtime`, in one guest; and many connections at once.
//!
//! Ours is the `cmtime` of `examples`, which makes the same objects. The two take turns, with both sides of each,
//! and what counts is the ratio of the medians.

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

/// How often each side runs, at most: as often as there is time.
const MOST_ROUNDS: usize = 15;
/// The time for it.
const BUDGET: Duration = Duration::from_secs(150);
const TIMEOUT: Duration = Duration::from_secs(300);
const MEMORY_MIB: u32 = 2048;
/// How many connections `cmtime` makes and ends: enough that what happens once, at the first of them, is
/// not most of it. Under emulation a program runs slowly where it has not been before.
const CONNECTIONS: u32 = 500;
/// How many there are at once in one process.
const CROWD: u32 = 1000;

/// What the guest has printed so far.
#[derive(Debug, Default)]
struct Transcript {
    /// Whose lines come.
    current: Option<Side>,
    /// The milliseconds of the steps so far.
    milliseconds: f64,
    rates: BTreeMap<Side, Vec<f64>>,
    /// Bytes for each connection, and threads.
    crowd: Option<(f64, f64)>,
}

/// Runs everything.
pub(super) fn measure(workspace: &Workspace) -> Result<Vec<Row>> {
    let crowd = program::build_ours(workspace, "cm", "connections")?;
    let cmtime = program::build_example(workspace, "cmtime")?;
    eprintln!("Running cmtime and its twin in a guest");
    let plan = Run::single(script(&cmtime, &crowd)?)
        .memory_mib(MEMORY_MIB)
        .timeout(TIMEOUT)
        .by_line();
    let mut transcript = Transcript::default();
    let read = |line: &str| transcript.read(line);
    let look = guest::record_success(workspace, "cmtime", plan, read)?;
    transcript.rows().with_context(|| look)
}

/// What the guest does: who begins changes from round to round.
fn script(cmtime: &Path, crowd: &Path) -> Result<String> {
    let mut text = format!(
        "ours={}\nreference=/usr/bin/cmtime\ncrowd={}\nbudget={}\n",
        quote(cmtime)?,
        quote(crowd)?,
        BUDGET.as_secs()
    );
    writeln!(text, "timeout 90 \"$crowd\" \"$A\" {CROWD} || exit 1")?;
    text += r#"
end=$(($(date +%s) + budget))
port=7500
measure() { # SIDE PROGRAM CONNECTIONS
    [ "$(date +%s)" -lt "$end" ] || exit 0
    port=$((port + 1))
    "$2" -p $port >/dev/null 2>&1 & server=$!
    until rdma resource show cm_id | grep -q 'state LISTEN'; do
        kill -0 $server || exit 1
        sleep 0.02
    done
    echo "== $1"
    timeout 30 "$2" -s "$A" -p $port -c "$3" || exit 1
    kill $server
    wait $server || :
    # Whoever comes next does not pay for what the kernel does later.
    sleep 0.5
}
"#;
    for round in 0..MOST_ROUNDS {
        for side in guest::sides(round) {
            let name = side.name();
            writeln!(text, "measure {name} \"${name}\" {CONNECTIONS}")?;
        }
    }
    text += "exit 0\n";
    Ok(text)
}

impl Transcript {
    fn read(&mut self, line: &str) {
        if let Some(side) = line.strip_prefix("== ") {
            self.current = Side::of_name(side);
            self.milliseconds = 0.0;
        } else if let Some(numbers) = line.strip_prefix("connections ") {
            let numbers: Vec<f64> = numbers
                .split_whitespace()
                .filter_map(|number| number.parse().ok())
                .collect();
            if let [_, bytes, threads] = numbers[..] {
                self.crowd = Some((bytes, threads));
            }
        } else if let (Some(side), Some((step, total))) = (self.current, step(line)) {
            self.milliseconds += total;
            // It is the last one.
            if step == "destroy" {
                let rate = f64::from(CONNECTIONS) * 1000.0 / self.milliseconds;
                self.rates.entry(side).or_default().push(rate);
                self.current = None;
            }
        }
    }

    fn rows(&self) -> Result<Vec<Row>> {
        let rate = |side| guest::typical("cmtime", self.rates.get(&side));
        let (bytes, threads) = self.crowd.context("no connections were counted")?;
        Ok(vec![
            Row {
                case: format!("{CONNECTIONS} made and ended"),
                unit: "connections/s",
                ours: rate(Side::Ours)?,
                reference: Some(rate(Side::Reference)?),
                bar: Some(Bar::NotBelow(1.0)),
            },
            Row {
                case: format!("{CROWD} at once, memory of each"),
                unit: "bytes",
                ours: bytes,
                reference: None,
                bar: None,
            },
            Row {
                case: format!("{CROWD} at once, threads"),
                unit: "",
                ours: threads,
                reference: None,
                bar: Some(Bar::Total(1.0)),
            },
        ])
    }
}

/// A step, and how many milliseconds all connections together took for it.
fn step(line: &str) -> Option<(&str, f64)> {
    let (step, times) = line.split_once(':')?;
    let mut times = times.split_whitespace();
    let total = times.next()?.parse().ok()?;
    (times.count() == 3).then_some((step.trim(), total))
}

#[cfg(test)]
mod tests {
    use super::super::guest::LEAST_ROUNDS;
    use super::*;

    /// What `cmtime` prints, in so many milliseconds.
    fn run(side: &str, milliseconds: f64) -> String {
        format!(
            "== {side}\ncreating id\nstep              total ms     max ms     min us  us / conn\n\
             connect      :  {milliseconds:.2}     2.01       1.50    1234.50\n\
             destroy      :        0.00       2.01       1.50    1234.50\n"
        )
    }

    #[test]
    fn transcript_becomes_rows() {
        let mut text = "connections 1000 40960 1\n".to_owned();
        for _ in 0..LEAST_ROUNDS {
            text += &run("ours", 50.0);
            text += &run("reference", 100.0);
        }
        let mut transcript = Transcript::default();
        text.lines().for_each(|line| transcript.read(line));
        let rows = transcript.rows().unwrap();
        let rate = |milliseconds: f64| f64::from(CONNECTIONS) * 1000.0 / milliseconds;
        assert_eq!(rows[0].ours, rate(50.0));
        assert_eq!(rows[0].reference, Some(rate(100.0)));
        assert_eq!((rows[1].ours, rows[2].ours), (40960.0, 1.0));
        assert_eq!(rows[0].pass(), Some(true));
        transcript.crowd = Some((40960.0, 2.0));
        assert_eq!(transcript.rows().unwrap()[2].pass(), Some(false));
    }

    #[test]
    fn runs_without_a_result_are_noticed() {
        let mut transcript = Transcript::default();
        let error = transcript.rows().unwrap_err().to_string();
        assert_eq!(error, "no connections were counted");
        transcript.read("connections 1000 1 1");
        transcript.read("== ours");
        transcript.read("connect: nothing");
        let error = transcript.rows().unwrap_err().to_string();
        assert_eq!(
            error,
            "cmtime gave 0 figures, and 3 are wanted: is the machine busy?"
        );
    }
}
