//! Tests with the kernel's RDS, driven from Python, as the peer or on both sides.
//!
//! `peer.py` documents its roles, and `afrds.py` has the kernel's sockets.

mod capture;
mod faulty_link;
mod interop;
mod outages;
mod protocol_violations;
mod stress;
mod zero_copy;

use std::fmt::Display;

use crate::guests::run_with;

/// The system's Python: `ctypes` and few other modules are needed.
const PEER: &str = concat!(
    "/usr/bin/python3 -B ",
    env!("CARGO_MANIFEST_DIR"),
    "/tests/two_hosts/kernel_rds/peer.py"
);

/// Commands for roles of `program`, in sequence.
fn in_turn(program: &str, roles: &[impl Display]) -> String {
    let commands: Vec<_> = roles
        .iter()
        .map(|role| format!("{program} {role}"))
        .collect();
    commands.join(" && ")
}

/// Commands for roles of `peer.py`, in sequence.
fn roles(roles: &[impl Display]) -> String {
    in_turn(PEER, roles)
}

/// Roles of a client of everything.
fn questions(local: &str, peer: &str) -> Vec<String> {
    vec![
        format!("sizes {local}:4000 {peer}:4000"),
        format!("rdma {local}:4000 {peer}:4000"),
        format!("ping {local} {peer} 5"),
        format!("stop {local}:4000 {peer}:4000"),
        format!("press {local}:5000 {peer}:5000"),
        format!("flow {local}:4100 {peer}:4100 3 0.05"),
    ]
}

/// Roles of the server.
fn answers(local: &str, peer: &str) -> Vec<String> {
    vec![
        format!("serve {local}:4000"),
        format!("slow {local}:5000 2"),
        format!("flow {local}:4100 {peer}:4100 3 0.05"),
    ]
}

/// Checks for an answer to every request.
fn answered(asker: &[String], answerer: &[String]) {
    served(asker, answerer);
    assert_eq!(numbers(asker, "pongs"), [5]);
    flowed(asker, answerer);
}

/// Checks the answers of `serve` and `slow`.
fn served(asker: &[String], answerer: &[String]) {
    assert_eq!(numbers(asker, "echoed"), [11]);
    assert_eq!(numbers(asker, "operations"), [24]);
    // The last accepted message exceeds the limit: 21 messages of 1000 bytes exceed 20 000 bytes.
    let refused = numbers(asker, "refused after");
    assert!((20..30).contains(&refused[0]), "{refused:?}");
    assert_eq!(numbers(answerer, "slow"), refused);
}

/// Checks that each side received everything sent by the other.
fn flowed(one: &[String], other: &[String]) {
    let (one, other) = (numbers(one, "flow"), numbers(other, "flow"));
    assert_eq!((one[0], one[1]), (other[1], other[0]));
    assert!(one[0] > 0 && other[0] > 0, "{one:?} {other:?}");
}

/// The numbers in the line with the prefix `name`.
fn numbers(lines: &[String], name: &str) -> Vec<u64> {
    let line = lines.iter().find(|line| line.starts_with(name));
    assert!(line.is_some(), "no `{name}` in {lines:?}");
    let words = line.into_iter().flat_map(|line| line.split_whitespace());
    words.filter_map(|word| word.parse().ok()).collect()
}

/// Environment to run an unchanged program with this crate.
fn preload() -> String {
    let local = std::env::current_exe().expect("this program has no name");
    // Cargo builds the library there as a dependency.
    let library = local.with_file_name("librdspreload.so");
    assert!(library.exists(), "there is no {}", library.display());
    format!("LD_PRELOAD={}", library.display())
}

/// A program for the kernel's sockets runs with the preload library, with a kernel as peer.
#[test]
fn preload_runs_kernel_rds_program() {
    let a = roles(&answers("$A", "$B"));
    let ours = [
        roles(&["calls $B", "child $B:4800"]),
        roles(&questions("$B", "$A")),
        roles(&["info $B:4200"]),
    ];
    let b = format!("export {}; {}", preload(), ours.join(" && "));
    let printed = run_with(&["--rds", "a"], 280, &a, &b);
    println!("{:#?}\n{:#?}", printed.a, printed.b);
    answered(&printed.b, &printed.a);
}

/// The other direction: a kernel client, and a server with the preload library.
#[test]
fn preload_serves_kernel_client() {
    let a = roles(&[
        "sizes $A:4000 $B:4000",
        "rdma $A:4000 $B:4000",
        "stop $A:4000 $B:4000",
        "press $A:5000 $B:5000",
    ]);
    let ours = roles(&["serve $B:4000", "slow $B:5000 2"]);
    let b = format!("export {}; {ours}", preload());
    let printed = run_with(&["--rds", "a"], 280, &a, &b);
    println!("{:#?}\n{:#?}", printed.a, printed.b);
    served(&printed.a, &printed.b);
}

/// Both hosts ping each other, over IPv4 and IPv6.
#[test]
fn rds_ping_interoperates_with_kernel() {
    let ping = env!("CARGO_BIN_EXE_rds-ping");
    // The fifth ping is of the last program.
    let a = roles(&["ping $A $B 100", "pinged $A 5"]);
    // The program answers while it pings. The last ping has one interval to be answered.
    let b = format!(
        "{ping} -c 2 -i 8 -I $B6 $A6 | sed 's/^/v6/'; {ping} -c 2 -i 8 $A; \
         timeout 250 {ping} -i 100ms $A >/dev/null"
    );
    let printed = run_with(&["--rds", "a", "--until", "a"], 280, &a, &b);
    println!("{:#?}", printed.b);
    assert_eq!(numbers(&printed.a, "pongs"), [100]);
    let answers = |prefix: &str| {
        let lines = printed.b.iter().filter(|line| line.starts_with(prefix));
        let right = lines.filter(|line| line.ends_with(" usec"));
        right.count()
    };
    assert_eq!(answers(" "), 2, "{:?}", printed.b);
    assert_eq!(answers("v6"), 2, "{:?}", printed.b);
}

/// Two kernels behave as specified, as seen by `peer.py`.
#[test]
fn two_kernels_interoperate() {
    let a = [
        roles(&["calls $A"]),
        roles(&answers("$A", "$B")),
        roles(&["info $A:4200"]),
    ];
    let b = [roles(&questions("$B", "$A")), roles(&["info $B:4200"])];
    let (a, b) = (a.join(" && "), b.join(" && "));
    let printed = run_with(&["--rds", "a,b"], 280, &a, &b);
    for line in printed.a.iter().chain(&printed.b) {
        println!("{line}");
    }
    answered(&printed.b, &printed.a);
}
