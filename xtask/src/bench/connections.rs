//! Connection set-up and teardown against rdmacm-utils' `cmtime`, in one guest, and 1000 connections at once.
//!
//! Our program is `cmtime` of `examples`, with the same objects per connection. The programs alternate, client and
//! server of each in the same guest; the result is the ratio of the medians.

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

/// Maximum number of rounds of each program. Fewer run if `BUDGET` expires.
const MAX_ROUNDS: usize = 15;
/// Time after which no further round starts.
const BUDGET: Duration = Duration::from_secs(150);
const TIMEOUT: Duration = Duration::from_secs(300);
const MEMORY_MIB: u32 = 2048;
/// Number of connections per `cmtime` run. One-time costs of the first connection must stay small beside the rest:
/// under emulation, code is slow on first execution.
const CONNECTIONS: u32 = 500;
/// Number of simultaneous connections of the memory row.
const MANY: u32 = 1000;

/// Parsed output of the guest.
#[derive(Debug, Default)]
struct Transcript {
    /// Program of the lines being read.
    current: Option<Side>,
    /// Sum of the step times read so far, in milliseconds.
    milliseconds: f64,
    rates: BTreeMap<Side, Vec<f64>>,
    /// Bytes per connection, and number of threads.
    counted: Option<(f64, f64)>,
}

/// Runs all programs in a guest and returns the rows.
pub(super) fn measure(workspace: &Workspace) -> Result<Vec<Row>> {
    let counted = program::build_ours(workspace, "rdma-cm", "connections")?;
    let cmtime = program::build_example(workspace, "cmtime")?;
    eprintln!("Running cmtime and its twin in a guest");
    let plan = Run::single(script(&cmtime, &counted)?)
        .memory_mib(MEMORY_MIB)
        .timeout(TIMEOUT)
        .by_line();
    let mut transcript = Transcript::default();
    let read = |line: &str| transcript.read(line);
    let look = guest::record_success(workspace, "cmtime", plan, read)?;
    transcript.rows().with_context(|| look)
}

/// The guest's script. The programs swap order in each round.
fn script(cmtime: &Path, counted: &Path) -> Result<String> {
    let mut text = format!(
        "ours={}\nreference=/usr/bin/cmtime\nmany={}\nbudget={}\n",
        quote(cmtime)?,
        quote(counted)?,
        BUDGET.as_secs()
    );
    writeln!(text, "timeout 90 \"$many\" \"$A\" {MANY} || exit 1")?;
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
    # Deferred work of the kernel must not count for the next program.
    sleep 0.5
}
"#;
    for round in 0..MAX_ROUNDS {
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
                self.counted = Some((bytes, threads));
            }
        } else if let (Some(side), Some((step, total))) = (self.current, step(line)) {
            self.milliseconds += total;
            // The last step of a run.
            if step == "destroy" {
                let rate = f64::from(CONNECTIONS) * 1000.0 / self.milliseconds;
                self.rates.entry(side).or_default().push(rate);
                self.current = None;
            }
        }
    }

    fn rows(&self) -> Result<Vec<Row>> {
        let rate = |side| guest::typical("cmtime", self.rates.get(&side));
        let (bytes, threads) = self.counted.context("no connections were counted")?;
        Ok(vec![
            Row {
                case: format!("{CONNECTIONS} made and ended"),
                unit: "connections/s",
                ours: rate(Side::Ours)?,
                reference: Some(rate(Side::Reference)?),
                bar: Some(Bar::NotBelow(1.0)),
            },
            Row {
                case: format!("{MANY} at once, memory of each"),
                unit: "bytes",
                ours: bytes,
                reference: None,
                bar: None,
            },
            Row {
                case: format!("{MANY} at once, threads"),
                unit: "",
                ours: threads,
                reference: None,
                bar: Some(Bar::Total(1.0)),
            },
        ])
    }
}

/// A step's name and its total time for all connections, in milliseconds.
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

    /// Output of a `cmtime` run with one step of this duration.
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
        transcript.counted = Some((40960.0, 2.0));
        assert_eq!(transcript.rows().unwrap()[2].pass(), Some(false));
    }

    #[test]
    fn rows_without_samples_are_an_error() {
        let mut transcript = Transcript::default();
        let error = transcript.rows().unwrap_err().to_string();
        assert_eq!(error, "no connections were counted");
        transcript.read("connections 1000 1 1");
        transcript.read("== ours");
        transcript.read("connect: nothing");
        let error = transcript.rows().unwrap_err().to_string();
        assert_eq!(
            error,
            "cmtime gave 0 figures, and 3 are needed: if the machine is busy, try again"
        );
    }
}
