//! `rstream` and `riostream`: this repository's against itself, and against the C programs both ways.

#![expect(clippy::print_stdout, reason = "the table of who talks with whom")]

use crate::guests::run;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Ours,
    C,
}

use Whose::{C, Ours};

/// A program that both have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Rstream,
    Riostream,
}

impl Whose {
    fn path(self, program: Program) -> &'static str {
        match (self, program) {
            (Ours, Program::Rstream) => env!("CARGO_BIN_EXE_rstream"),
            (C, Program::Rstream) => "rstream",
            (Ours, Program::Riostream) => env!("CARGO_BIN_EXE_riostream"),
            (C, Program::Riostream) => "riostream",
        }
    }
}

/// A row of the table: the test's name, the program, and its options.
type Run = (&'static str, Program, &'static str);

/// The ways to use a stream, each with data that are checked.
const RUNS: &[Run] = &[
    ("T-X1", Program::Rstream, "-S 5000 -C 20 -I 3 -T b -T v"),
    (
        "T-X2",
        Program::Rstream,
        "-S 100 -C 500 -I 2 -T n -T v -i 0",
    ),
    ("T-X3", Program::Rstream, "-S 200000 -C 5 -I 2 -T a -T v"),
    (
        "T-X4",
        Program::Rstream,
        "-S 1000 -C 100 -I 2 -k 1 -B 4096 -T b -T v",
    ),
    (
        "T-X6",
        Program::Rstream,
        "-S 5000 -C 20 -I 3 -T b -T v -f ipv6",
    ),
    ("T-X7", Program::Riostream, "-S 4096 -C 5 -I 3 -T b -T v"),
];

/// Who serves, and who calls.
const PAIRS: [(Whose, Whose); 3] = [(Ours, Ours), (C, Ours), (Ours, C)];

/// One side of a run. A client that finds no server yet tries again. All its lines begin with the
/// number of the run.
fn command(number: usize, path: &str, options: &str, more: &str) -> String {
    let port = 7471 + number;
    format!(
        "{{ for i in $(seq 20); do \
         out=$(timeout 60 {path} -p {port} {options} {more} 2>&1); code=$?; \
         case $out in *onnect*efused*|*\"nobody listens\"*) sleep 0.5;; *) break;; esac; \
         done; echo \"$out\"; echo \"exit $code\"; }} | sed 's/^/{number}: /'"
    )
}

/// Runs everything, and tells of it. Soft-iWARP may fail to connect when it is in a hurry, so what
/// fails over it is tried once more.
fn play(device: &str, runs: &[Run]) {
    let mut failures = failures(device, runs);
    if device == "siw" && !failures.is_empty() {
        println!("  again");
        failures = self::failures(device, runs);
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Who was it, and what has it printed?
type Printed = [(Whose, Vec<String>); 2];

fn failures(device: &str, runs: &[Run]) -> Vec<(&'static str, Printed)> {
    let mut servers = vec![];
    let mut clients = vec![];
    let all: Vec<_> = runs
        .iter()
        .flat_map(|run| PAIRS.map(|pair| (*run, pair)))
        .collect();
    for (number, ((_, program, options), (server, client))) in all.iter().enumerate() {
        let (bind, address) = match options.contains("ipv6") {
            true => ("-b ::", "-s $A6"),
            false => ("-b 0.0.0.0", "-s $A"),
        };
        servers.push(command(number, server.path(*program), options, bind));
        clients.push(command(number, client.path(*program), options, address));
    }
    let printed = run(
        device,
        &format!("{} & wait", servers.join(" & ")),
        &clients.join("; "),
    );
    let mut failures = vec![];
    for (number, ((name, program, options), (server, client))) in all.iter().enumerate() {
        let lines = |lines: &[String]| -> Vec<String> {
            let prefix = format!("{number}: ");
            let own = lines.iter().filter_map(|line| line.strip_prefix(&prefix));
            own.map(str::to_owned).collect()
        };
        let sides = [(*server, lines(&printed.a)), (*client, lines(&printed.b))];
        let ok = sides
            .iter()
            .all(|(whose, lines)| is_complete(*whose, name, lines));
        let outcome = if ok { "ok" } else { "FAILED" };
        println!(
            "  {device} {name} {program:?} server {server:?}, client {client:?}, {options}: {outcome}"
        );
        if !ok {
            failures.push((*name, sides));
        }
    }
    failures
}

fn is_complete(whose: Whose, name: &str, lines: &[String]) -> bool {
    let measured = lines.iter().any(|line| line.starts_with("custom"));
    let complained = lines
        .iter()
        .any(|line| line.contains("verification failed"));
    let code = lines.last().map(String::as_str);
    // The C program takes a peer that has hung up with the last data for an error, when it polls.
    let hung_up = whose == C && name == "T-X3" && code == Some("exit 16");
    !complained && (measured && code == Some("exit 0") || hung_up)
}

#[test]
fn rstream_talks_with_itself_and_with_c() {
    println!("rstream");
    play("rxe", RUNS);
}

#[test]
fn rstream_talks_over_iwarp() {
    let over_iwarp = ["T-X1", "T-X2", "T-X7"];
    let runs = RUNS.iter().filter(|(name, ..)| over_iwarp.contains(name));
    play("siw", &runs.copied().collect::<Vec<_>>());
}
