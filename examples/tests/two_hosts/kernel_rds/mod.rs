//! The kernel's RDS, from Python: the peer that ours is to talk to, here talking to itself.
//!
//! `peer.py` says what it can be asked to do, and `afrds.py` has the kernel's sockets.

mod interop;
mod stress;
mod zero_copy;

use crate::guests::run_with;

/// Python as the system has it: `ctypes` and few other modules are all that is needed.
const PEER: &str = concat!(
    "/usr/bin/python3 -B ",
    env!("CARGO_MANIFEST_DIR"),
    "/tests/two_hosts/kernel_rds/peer.py"
);

/// Each role, one after the other.
fn roles(roles: &[&str]) -> String {
    let commands: Vec<_> = roles.iter().map(|role| format!("{PEER} {role}")).collect();
    commands.join(" && ")
}

/// The numbers of the line that begins with `name`.
fn numbers(lines: &[String], name: &str) -> Vec<u64> {
    let line = lines.iter().find(|line| line.starts_with(name));
    assert!(line.is_some(), "no `{name}` in {lines:?}");
    let words = line.into_iter().flat_map(|line| line.split_whitespace());
    words.filter_map(|word| word.parse().ok()).collect()
}

/// What makes an unchanged program use this crate.
fn preload() -> String {
    let own = std::env::current_exe().expect("this program has no name");
    // Cargo puts it there as it is a dependency.
    let library = own.with_file_name("librdspreload.so");
    assert!(library.exists(), "there is no {}", library.display());
    format!("LD_PRELOAD={}", library.display())
}

/// A program for the kernel's sockets uses this crate's without knowing, and talks to the kernel's.
#[test]
fn a_program_of_the_kernels_sockets_runs_on_ours() {
    let a = roles(&[
        "serve $A:4000",
        "slow $A:5000 2",
        "flow $A:4100 $B:4100 3 0.05",
    ]);
    let ours = roles(&[
        "calls $B",
        "child $B:4800",
        "sizes $B:4000 $A:4000",
        "rdma $B:4000 $A:4000",
        "ping $B $A 5",
        "stop $B:4000 $A:4000",
        "press $B:5000 $A:5000",
        "flow $B:4100 $A:4100 3 0.05",
        "info $B:4200",
    ]);
    let b = format!("export {}; {ours}", preload());
    let printed = run_with(&["--rds", "a"], 280, &a, &b);
    println!("{:#?}\n{:#?}", printed.a, printed.b);
    assert_eq!(numbers(&printed.b, "echoed"), [11]);
    assert_eq!(numbers(&printed.b, "operations"), [24]);
    assert_eq!(numbers(&printed.b, "pongs"), [5]);
    let refused = numbers(&printed.b, "refused after");
    assert!((20..30).contains(&refused[0]), "{refused:?}");
    assert_eq!(numbers(&printed.a, "slow"), refused);
    let (a, b) = (numbers(&printed.a, "flow"), numbers(&printed.b, "flow"));
    assert_eq!((a[0], a[1]), (b[1], b[0]));
}

/// The other way round: the kernel's sockets ask, and ours, unknown to the program, answer.
#[test]
fn a_program_of_the_kernels_sockets_serves_a_kernel() {
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
    assert_eq!(numbers(&printed.a, "echoed"), [11]);
    assert_eq!(numbers(&printed.a, "operations"), [24]);
    let refused = numbers(&printed.a, "refused after");
    assert!((20..30).contains(&refused[0]), "{refused:?}");
    assert_eq!(numbers(&printed.b, "slow"), refused);
}

/// X-D02, X-D03, X-C12: both ask each other, over IPv4 and IPv6.
#[test]
fn rds_ping_and_a_kernel_ask_each_other() {
    let ping = env!("CARGO_BIN_EXE_rds-ping");
    // The fifth question is that of the last program.
    let a = roles(&["ping $A $B 100", "pinged $A 5"]);
    // Ours answers as long as it asks. The last question has one interval to be answered.
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

/// What the specification says of the kernel is so, and the driver can tell.
#[test]
fn kernels_talk_to_each_other() {
    let a = roles(&[
        "calls $A",
        "serve $A:4000",
        "slow $A:5000 2",
        "flow $A:4100 $B:4100 3 0.05",
        "info $A:4200",
    ]);
    let b = roles(&[
        "sizes $B:4000 $A:4000",
        "rdma $B:4000 $A:4000",
        "ping $B $A 5",
        "stop $B:4000 $A:4000",
        "press $B:5000 $A:5000",
        "flow $B:4100 $A:4100 3 0.05",
        "info $B:4200",
    ]);
    let printed = run_with(&["--rds", "a,b"], 280, &a, &b);
    for line in printed.a.iter().chain(&printed.b) {
        println!("{line}");
    }
    assert_eq!(numbers(&printed.b, "echoed"), [11]);
    assert_eq!(numbers(&printed.b, "operations"), [24]);
    assert_eq!(numbers(&printed.b, "pongs"), [5]);
    // The last message that is taken fills it up: 21 of 1000 bytes are more than 20 000.
    let refused = numbers(&printed.b, "refused after");
    assert!((20..30).contains(&refused[0]), "{refused:?}");
    assert_eq!(numbers(&printed.a, "slow"), refused);
    let (a, b) = (numbers(&printed.a, "flow"), numbers(&printed.b, "flow"));
    assert_eq!((a[0], a[1]), (b[1], b[0]));
    assert!(a[0] > 0 && b[0] > 0, "{a:?} {b:?}");
}
