//! Long outages and lossy links, for the long test only.

use super::{flowed, in_turn, numbers, roles};
use crate::{
    guests::run_with,
    link::{CUT, PREPARE, RESTORE},
};

const OURS: &str = env!("CARGO_BIN_EXE_rds-peer");

/// The link is cut while idle, and later messages arrive.
pub(super) fn idle() {
    let b = format!(
        "{PREPARE} && {} && sleep 20 && {CUT} && sleep 20 && {RESTORE} && sleep 20 && {}",
        roles(&["sizes $B:4000 $A:4000"]),
        roles(&["sizes $B:4000 $A:4000", "stop $B:4000 $A:4000"]),
    );
    let printed = run_with(&["--rds", "b"], 280, &format!("{OURS} serve $A:4000"), &b);
    let echoed = printed.b.iter().filter(|line| *line == "echoed 11");
    assert_eq!(echoed.count(), 2, "{:?}", printed.b);
}

/// Simulates power loss of this host during messages in both directions: the link is cut for
/// 20 s, and then a new process starts without state.
pub(super) fn powered_off() {
    let (local, peer) = ("$A:4200", "$B:4200");
    // The link is cut before the kill, so that the kernel gets no notice, until shortly before the
    // restart.
    let a = format!(
        "{PREPARE} && {{ {OURS} load {local} {peer} 1 2 & ours=$!; sleep 12; {CUT}; kill -9 $ours; sleep 20; \
         {RESTORE}; sleep 3; {}; }}",
        in_turn(OURS, &[format!("load {local} {peer} 2 1")])
    );
    let b = format!(
        "{PREPARE} && {{ (sleep 10; {CUT}; sleep 24; {RESTORE}) & {}; }}",
        roles(&[format!("load {peer} {local} 1 2")])
    );
    let printed = run_with(&["--rds", "b"], 280, &a, &b);
    for side in [&printed.a, &printed.b] {
        let lived = side.iter().filter(|line| line.starts_with("lived"));
        assert_eq!(lived.count(), 1, "{side:?}");
    }
    let reported = printed
        .b
        .iter()
        .any(|line| line.starts_with("lived") && !line.ends_with(" 0"));
    assert!(reported, "{:?}", printed.b);
}

/// Ten minutes with 1 % packet loss. All messages arrive once and in order, and memory does
/// not grow.
pub(super) fn soak() {
    let lossy = "insmod $(find /lib/modules/$(uname -r) -name 'sch_netem.ko*') && \
                 tc qdisc add dev eth0 root netem loss 1%";
    let a = in_turn(OURS, &["flow $A:4100 $B:4100 600 0.01"]);
    let b = roles(&["flow $B:4100 $A:4100 600 0.01"]);
    let pings = roles(&["ping $B $A 300"]);
    let printed = run_with(
        &["--rds", "b"],
        900,
        &format!("{lossy} && {a}"),
        &format!("{lossy} && {{ ({pings}) & {b} && wait; }}"),
    );
    flowed(&printed.a, &printed.b);
    assert_eq!(numbers(&printed.b, "pongs"), [300]);
    let flow = numbers(&printed.a, "flow");
    let (early, late) = (flow[flow.len() - 2], flow[flow.len() - 1]);
    assert!(late < early + 4096, "{early} KiB were {late} in the end");
}
