//! Peers of a kernel that violate the protocol, and connections reset by third parties.

use super::{flowed, in_turn, numbers, roles};
use crate::guests::run_with;

const OURS: &str = env!("CARGO_BIN_EXE_rds-peer");

/// Host b runs the kernel's RDS, so no process can use the port there. Host a violates the
/// protocol. Connections are reset under load, by a rival
/// request, and by a failed operation of the kernel.
#[test]
fn interop_unknown_peers_are_rejected_without_damage() {
    // More if the kernel polls an unsolicited frame by accident.
    let requests = 6;
    let a = format!(
        "{OURS} probe $A $B && {{ (sleep 3; {OURS} rival $A $B; sleep 3; {OURS} rival $A $B) & \
         {OURS} flow $A:4100 $B:4100 8 0.01; }} && wait && {OURS} serve $A:4000"
    );
    let b = roles(&[
        &format!("pinged $B {requests}"),
        "flow $B:4100 $A:4100 8 0.01",
        "wrong $B:4000 $A:4000",
        "stop $B:4000 $A:4000",
    ]);
    let conflict = in_turn(OURS, &["conflict $B:4000"]);
    let printed = run_with(&["--rds", "b"], 280, &a, &format!("{conflict} && {b}"));
    let line = printed.b.iter().find(|line| line.starts_with("conflict"));
    assert!(
        line.is_some_and(|line| line.contains("conflict 98:") && line.contains("rds_rdma")),
        "{line:?}"
    );
    assert_eq!(numbers(&printed.a, "bad frames"), [3]);
    assert!(numbers(&printed.a, "asked")[0] >= requests);
    flowed(&printed.a, &printed.b);
    let rivals = printed.a.iter().filter(|line| *line == "rival refused");
    assert_eq!(rivals.count(), 2, "{:?}", printed.a);
    assert_eq!(numbers(&printed.b, "wrong"), [20]);
}
