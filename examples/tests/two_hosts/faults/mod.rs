//! Killed processes and removed devices: the peer must be notified, and no call may hang.
//!
//! All cases of one test run in one pair of guests, each on a port of its own.

mod bad_private_data;
mod cuts;

use crate::guests::{lines_of, named, run_for};

const PEER: &str = env!("CARGO_BIN_EXE_fault-peer");

/// Actions of both sides, and the outcomes allowed for the survivor, as prefixes.
struct Case {
    name: &'static str,
    passive: &'static str,
    active: &'static str,
    /// Allowed outcomes of the passive side; `None` if killed.
    passive_ends: Option<&'static [&'static str]>,
    active_ends: Option<&'static [&'static str]>,
}

/// Outcome after the peer's death, once a message has been exchanged.
const DISCONNECTED: &[&str] = &["disconnected, flushed"];

/// Outcomes when the peer dies during connection setup. The kernel may detect the death in any step.
const EARLY: &[&str] = &[
    "disconnected",
    "rejected",
    "the peer disconnected during the handshake",
    "not accepted",
    "not established",
    "Disconnected",
];

const CASES: &[Case] = &[
    Case {
        name: "the listener dies with a request waiting",
        passive: "passive --die listening",
        active: "active",
        passive_ends: None,
        active_ends: Some(&["rejected"]),
    },
    Case {
        name: "passive side dies after the request",
        passive: "passive --die requested",
        active: "active",
        passive_ends: None,
        active_ends: Some(&["rejected"]),
    },
    Case {
        name: "passive side dies after accepting",
        passive: "passive --die accepted",
        active: "active",
        passive_ends: None,
        active_ends: Some(EARLY),
    },
    Case {
        name: "the passive side dies when connected",
        passive: "passive --die established",
        active: "active",
        passive_ends: None,
        active_ends: Some(DISCONNECTED),
    },
    Case {
        name: "the passive side dies disconnecting",
        passive: "passive --hang-up --die disconnecting",
        active: "active",
        passive_ends: None,
        active_ends: Some(DISCONNECTED),
    },
    Case {
        name: "the passive side dies instead of answering",
        passive: "passive --die disconnected",
        active: "active --hang-up",
        passive_ends: None,
        active_ends: Some(DISCONNECTED),
    },
    Case {
        name: "the active side dies asking",
        passive: "passive",
        active: "active --die connecting",
        passive_ends: Some(EARLY),
        active_ends: None,
    },
    Case {
        name: "active side dies after being accepted",
        passive: "passive",
        active: "active --die responded",
        passive_ends: Some(EARLY),
        active_ends: None,
    },
    Case {
        name: "the active side dies when connected",
        passive: "passive",
        active: "active --die established",
        passive_ends: Some(DISCONNECTED),
        active_ends: None,
    },
    Case {
        name: "the active side dies disconnecting",
        passive: "passive",
        active: "active --hang-up --die disconnecting",
        passive_ends: Some(DISCONNECTED),
        active_ends: None,
    },
    Case {
        name: "the active side dies instead of answering",
        passive: "passive --hang-up",
        active: "active --die disconnected",
        passive_ends: Some(DISCONNECTED),
        active_ends: None,
    },
    Case {
        name: "both sides survive",
        passive: "passive",
        active: "active --hang-up",
        passive_ends: Some(DISCONNECTED),
        active_ends: Some(DISCONNECTED),
    },
    Case {
        name: "the listener rejects",
        passive: "passive --reject full",
        active: "active",
        passive_ends: Some(&["rejected"]),
        active_ends: Some(&["rejected 28 full"]),
    },
    Case {
        name: "request has wrong private data",
        passive: "passive --want version-1",
        active: "active --say version-2",
        passive_ends: Some(&["rejected"]),
        active_ends: Some(&["rejected 28 version-1 is wanted"]),
    },
    Case {
        name: "request has truncated private data",
        passive: "passive --want version-1",
        active: "active --say version",
        passive_ends: Some(&["rejected"]),
        active_ends: Some(&["rejected 28 version-1 is wanted"]),
    },
    Case {
        name: "answer has no private data",
        passive: "passive",
        active: "active --want version-1",
        passive_ends: Some(&["rejected 28"]),
        active_ends: Some(&["version-1 is wanted"]),
    },
    Case {
        name: "both have the expected private data",
        passive: "passive --want version-1 --say version-2",
        active: "active --say version-1 --want version-2 --hang-up",
        passive_ends: Some(DISCONNECTED),
        active_ends: Some(DISCONNECTED),
    },
    Case {
        name: "requests above the backlog of a listener that closes",
        passive: "unresponsive",
        active: "backlog",
        passive_ends: Some(&["unresponsive"]),
        active_ends: Some(&["rejected, and the others given up"]),
    },
];

/// Prints the number of queue pairs and identifiers left. The kernel ends connections asynchronously.
const LEFT: &str = "for i in $(seq 50); do left=$(rdma resource show qp | grep -c 'type RC'; \
                    rdma resource show cm_id | wc -l); left=$(echo $left); \
                    [ \"$left\" = '0 0' ] && break; sleep 0.2; done; echo \"left $left\"";

/// One side of each case. Lines start with the number of the case; the last one is the exit code.
fn command(number: usize, arguments: &str) -> String {
    let (role, more) = arguments.split_once(' ').unwrap_or((arguments, ""));
    let port = 7600 + number;
    named(
        number,
        &format!("timeout 180 {PEER} {role} $A:{port} {more}"),
    )
}

/// Checks the outcome of a side, and returns a description of the error.
fn complaint(number: usize, lines: &[String], ends: Option<&[&str]>) -> Option<String> {
    let local = lines_of(lines, number);
    let right = match (ends, &local[..]) {
        // Killed by signal 9.
        (None, [.., "exit 137"]) => true,
        (Some(ends), [outcome, "torn down", "exit 0"]) => {
            ends.iter().any(|end| outcome.starts_with(end))
        }
        _ => false,
    };
    (!right).then(|| format!("{local:?}"))
}

#[test]
fn peer_death_in_any_phase_is_reported() {
    let (mut passive, mut active) = (vec![], vec![]);
    for (number, case) in CASES.iter().enumerate() {
        passive.push(command(number, case.passive));
        active.push(command(number, case.active));
    }
    let away = named("away", &format!("{PEER} active 10.9.0.99:9"));
    let printed = run_for(
        300,
        "rxe",
        &format!(
            "{} & {} & wait; {LEFT}",
            passive.join(" & "),
            bad_private_data::listeners()
        ),
        &format!(
            "{}; {}; {LEFT}; {away}",
            active.join("; "),
            bad_private_data::callers()
        ),
    );
    let mut wrong = vec![];
    for (number, case) in CASES.iter().enumerate() {
        for (lines, ends) in [
            (&printed.a, case.passive_ends),
            (&printed.b, case.active_ends),
        ] {
            let complaint = complaint(number, lines, ends);
            let observed = complaint.as_deref().unwrap_or("ok");
            println!("  {}: {observed}", case.name);
            wrong.extend(complaint);
        }
    }
    let bad_data = bad_private_data::complaints(&printed.a, &printed.b);
    println!("  streams with bad private data: {bad_data:?}");
    wrong.extend(bad_data);
    let has =
        |lines: &[String], requested: &str| lines.iter().any(|line| line.starts_with(requested));
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(has(&printed.a, "left 0 0"), "{:?}", printed.a);
    assert!(has(&printed.b, "left 0 0"), "{:?}", printed.b);
    assert!(has(&printed.b, "away: no address: "), "{:?}", printed.b);
    assert!(has(&printed.b, "away: exit 0"), "{:?}", printed.b);
}

#[test]
fn device_removal_with_connections_is_reported() {
    let removed = format!(
        "timeout 60 {PEER} removed $A:7600 2>&1; echo \"exit $?\"; \
         for i in $(seq 50); do links=$(rdma link show); [ \"$links\" ] || break; sleep 0.2; done; \
         echo \"links $links\""
    );
    let printed = run_for(120, "rxe", &removed, "true");
    println!("{:?}", printed.a);
    let [outcome, rest @ ..] = &printed.a[..] else {
        panic!("nothing was printed")
    };
    assert!(outcome.starts_with("removed"), "{:?}", printed.a);
    assert_eq!(rest, ["torn down", "exit 0", "links "]);
}
