//! `rds-stress`: both sides send, and verify received data.

use std::env;

use crate::guests::{Printed, run_with};

const STRESS: &str = env!("CARGO_BIN_EXE_rds-stress");

/// `rds-stress` on the kernel's sockets.
const KERNEL: &str = concat!(
    "/usr/bin/python3 -B ",
    env!("CARGO_MANIFEST_DIR"),
    "/tests/two_hosts/kernel_rds/stress.py"
);

/// Runs both sides; `options` are those of the active one.
fn run(options: &str) -> Printed {
    let active = format!("{STRESS} --connect-retries 60 -s $B -r $A {options}");
    run_with(&[], 200, &active, STRESS)
}

/// The numbers of the last line.
fn average(lines: &[String]) -> Vec<f64> {
    let line = lines.iter().find(|line| line.ends_with("(average)"));
    assert!(line.is_some(), "no end in {lines:?}");
    let words = line.into_iter().flat_map(|line| line.split_whitespace());
    words.filter_map(|word| word.parse().ok()).collect()
}

/// Messages between all tasks in both directions, with every byte verified.
#[test]
fn rds_stress_sends_and_verifies() {
    let printed = run("-q 10000 -a 1024 -d 4 -t 2 -T 5 -v -c --show-histogram");
    for lines in [&printed.a, &printed.b] {
        let average = average(lines);
        assert_eq!(average[0], 2.0);
        assert!(average[1] > 0.0 && average[2] > 0.0, "{average:?}");
    }
    let histogram = printed.a.iter().filter(|line| line.starts_with('['));
    let trips = histogram.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    assert!(trips.sum::<u64>() > 0, "{:?}", printed.a);
}

/// Requests of one side only.
#[test]
fn rds_stress_runs_simplex() {
    let printed = run("-q 63 -a 63 -d 32 -t 2 -T 3 -o -z -R");
    let (a, b) = (average(&printed.a), average(&printed.b));
    assert!(a[1] > 0.0 && b[2] > 0.0, "{a:?} {b:?}");
    assert_eq!((a[2], b[1]), (0.0, 0.0));
}

/// Operations on memory, verified on both sides.
#[test]
fn rds_stress_runs_rdma() {
    for options in [
        "-I 4",
        "--rdma-use-once 1 -M 1",
        "--rdma-cache-mrs 1 -M 2 --rdma-alignment 24",
    ] {
        let printed = run(&format!(
            "-q 1K -a 100 -d 2 -t 2 -T 4 -v -D 20000 {options}"
        ));
        for lines in [&printed.a, &printed.b] {
            let average = average(lines);
            assert!(average[4] + average[5] > 0.0, "{average:?}");
        }
    }
}

/// A run of this crate with a kernel.
struct Run {
    /// Whether the kernel is the active side.
    kernel: bool,
    /// Options of the active side.
    options: &'static str,
    /// Whether requests go in one direction only.
    simplex: bool,
    /// Whether memory is read, and written.
    memory: [bool; 2],
    /// Type of service.
    tos: u64,
}

impl Run {
    const fn of_ours(options: &'static str, memory: [bool; 2]) -> Self {
        Self {
            kernel: false,
            options,
            simplex: false,
            memory,
            tos: 0,
        }
    }

    const fn of_the_kernels(options: &'static str, memory: [bool; 2]) -> Self {
        Self {
            kernel: true,
            ..Self::of_ours(options, memory)
        }
    }

    const fn one_way(self) -> Self {
        Self {
            simplex: true,
            ..self
        }
    }

    const fn of_service(self, tos: u64) -> Self {
        Self { tos, ..self }
    }

    /// The commands of both sides, running for `seconds`.
    fn commands(&self, seconds: u32) -> [String; 2] {
        let options = self.options;
        if self.kernel {
            let active = format!("{KERNEL} active $B $A seconds={seconds} {options}");
            [STRESS.to_owned(), active]
        } else {
            let active = "--connect-retries 60 -s $B -r $A";
            let active = format!("{STRESS} {active} -T {seconds} {options}");
            [active, format!("{KERNEL} passive 1")]
        }
    }

    /// The first fault in the output of both sides.
    fn complaint(&self, ours: &str, kernels: &str) -> Option<String> {
        let rates = average(&[ours.to_owned()]);
        let words: Vec<_> = kernels.split_whitespace().collect();
        let names = [
            "asked", "answered", "seen", "answers", "read", "written", "acks", "tos",
        ];
        let counts = names.map(|name| {
            let at = words.iter().position(|word| *word == name);
            let count = at.and_then(|at| words.get(at + 1)?.parse::<u64>().ok());
            count.unwrap_or(u64::MAX)
        });
        let [
            requests,
            answered,
            received,
            answers,
            read,
            written,
            acks,
            tos,
        ] = counts;
        let kernel_asks = !self.simplex || self.kernel;
        let we_ask = !self.simplex || !self.kernel;
        let right = (requests > 0) == kernel_asks
            && (received > 0) == we_ask
            // The kernel's active side waits for every answer.
            && (!self.kernel || requests == answered)
            && answers <= received
            && (rates[1] > 0.0) == we_ask
            && (rates[2] > 0.0) == kernel_asks
            && [read > 0, written > 0] == self.memory
            && tos == self.tos
            // D07: most acknowledgements are in messages, or cover several.
            && (self.options != SMALL || acks * 2 < requests + answers);
        (!right).then(|| format!("{} | {ours} | {kernels}", self.options))
    }
}

const BOTH: [bool; 2] = [true, true];
const NONE: [bool; 2] = [false, false];

/// Many small messages at a time.
const SMALL: &str = "-q 63 -a 63 -d 32 -t 4 --tos 3";

/// The runs of the short test, one of each kind.
const RUNS: [Run; 4] = [
    Run::of_the_kernels("request=10000 depth=4 tasks=2 verify=1 least=5", NONE),
    Run::of_the_kernels(
        "request=63 ack=63 depth=4 tasks=2 simplex=1 least=5 tos=5",
        NONE,
    )
    .one_way()
    .of_service(5),
    Run::of_ours(SMALL, NONE).of_service(3),
    Run::of_ours("-q 1K -D 20000 -I 4 -v", BOTH),
];

/// Additional runs of the long test.
const MORE: [Run; 8] = [
    Run::of_ours("-q 1K -D 20000 -v -Q 2", BOTH).of_service(2),
    Run::of_ours("-q 10000 -a 1024 -d 4 -t 2 -v", NONE),
    Run::of_the_kernels("rdma=20000 vector=4 verify=1 least=20", BOTH),
    Run::of_ours("-q 1K -D 20000 -M 2 -v --rdma-use-once 1", [false, true]),
    Run::of_ours("-q 63 -a 63 -d 4 -t 2 -o", NONE).one_way(),
    Run::of_ours("-q 1K -D 20000 -M 1 -v", [true, false]),
    Run::of_the_kernels(
        "rdma=20000 mode=1 verify=1 use_once=1 least=20",
        [true, false],
    ),
    Run::of_the_kernels("rdma=20000 mode=2 verify=1 least=20", [false, true]),
];

/// Every message is the next of its sender, and every byte of
/// messages and memory is correct.
#[test]
fn rds_stress_interoperates_with_kernel() {
    let mut runs: Vec<_> = RUNS.iter().collect();
    let long = env::var_os("LONG").is_some();
    if long {
        runs.extend(&MORE);
    }
    // The first second is not in the average.
    let seconds = if long { 10 } else { 4 };
    let commands = runs.iter().map(|run| run.commands(seconds));
    let (a, b): (Vec<_>, Vec<_>) = commands.map(|[a, b]| (a, b)).unzip();
    let printed = run_with(&["--rds", "b"], 290, &a.join(" && "), &b.join(" && "));
    let lines = |all: &[String], is: fn(&str) -> bool| -> Vec<String> {
        let lines = all.iter().filter(|line| is(line));
        lines.cloned().collect()
    };
    let ours = lines(&printed.a, |line| line.ends_with("(average)"));
    let kernels = lines(&printed.b, |line| line.starts_with("stress"));
    println!("{kernels:#?}");
    let counts = (ours.len(), kernels.len());
    assert_eq!(counts, (runs.len(), runs.len()), "{:?}", printed.a);
    let printed = ours.iter().zip(&kernels);
    let wrong: Vec<_> = std::iter::zip(&runs, printed)
        .filter_map(|(run, (ours, kernels))| run.complaint(ours, kernels))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
