//! The kernel's RDS, from Python: the peer that ours is to talk to, here talking to itself.
//!
//! `peer.py` says what it can be asked to do, and `afrds.py` has the kernel's sockets.

mod interop;

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
