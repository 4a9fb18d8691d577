//! Link cuts, permanent or temporary, in every phase of a connection: each side must get an event or a
//! completion, and no resource may leak.
//!
//! The cut is emulated as if in the network: no device and no address changes state, but each host drops all
//! incoming packets.

#![expect(clippy::print_stdout, reason = "how each case has ended")]

use std::env;

use super::PEER;
use crate::{
    guests::{named, run_for},
    link::{CUT as CUT_LINK, PREPARE, RESTORE, SPARE, SPARED_PORTS},
};

/// Actions of both sides, the phase of the link cut, and the expected outcomes.
struct Case {
    point: &'static str,
    passive: &'static str,
    active: &'static str,
}

const LOST: &str = "lost: RETRY_EXC_ERR";

/// Outcomes for a permanent cut.
const CUT: &[Case] = &[
    Case {
        point: "resolve",
        passive: "no request",
        active: "no address: ",
    },
    Case {
        point: "connect",
        passive: "no request",
        active: "unreachable: ",
    },
    Case {
        point: "accept",
        passive: "unreachable: ",
        active: "`rdma_connect` failed (10.9.0.",
    },
    Case {
        point: "idle",
        passive: LOST,
        active: LOST,
    },
    Case {
        point: "load",
        passive: LOST,
        active: LOST,
    },
    Case {
        point: "disconnect",
        passive: "disconnected",
        active: "disconnected",
    },
];

/// Duration of a temporary cut, in seconds.
const SECONDS: u32 = 8;

/// An address of host b absent from host a's neighbor table.
const UNKNOWN: &str = "10.9.0.77";

/// A side on a host: phase, port and expected outcome.
struct Side {
    point: &'static str,
    port: usize,
    command: String,
    end: &'static str,
}

/// Each case with the passive side on either host; only host b has an unknown address.
fn sides(restored: bool) -> (Vec<Side>, Vec<Side>) {
    let (mut of_a, mut of_b) = (vec![], vec![]);
    for (number, case) in CUT.iter().enumerate() {
        for passive_is_b in [true, false] {
            if case.point == "resolve" && !passive_is_b {
                continue;
            }
            // This case takes two minutes.
            if case.point == "accept" && !restored && env::var_os("LONG").is_none() {
                continue;
            }
            let port = 7620 + 2 * number + usize::from(passive_is_b);
            let host = match (case.point, passive_is_b) {
                ("resolve", _) => UNKNOWN,
                (_, true) => "$B",
                (_, false) => "$A",
            };
            let side = |role: &str, end| Side {
                point: case.point,
                port,
                command: format!("{role} {host}:{port} --cut {}", case.point),
                end: if restored { "disconnected" } else { end },
            };
            let (passive, active) = (side("passive", case.passive), side("active", case.active));
            if passive_is_b {
                of_b.push(passive);
                of_a.push(active);
            } else {
                of_a.push(passive);
                of_b.push(active);
            }
        }
    }
    (of_a, of_b)
}

/// Script of a host: starts all sides, cuts the link once every side of both hosts is ready, and prints the
/// resources left at the end.
fn script(host: char, sides: &[Side], restored: bool) -> String {
    let again = if restored { " --restored" } else { "" };
    let start = |side: &Side| {
        let port = side.port;
        let command = format!("timeout 330 {PEER} {}{again}", side.command);
        format!("{} & pids=\"$pids $!\"; ", named(port, &command))
    };
    let ready: Vec<String> = sides
        .iter()
        .map(|side| format!("ready-{}", side.port))
        .collect();
    let peer = if host == 'a' { "$B" } else { "$A" };
    let meet = |port: u16| match host {
        'a' => format!("busybox nc -l -p {port} < /dev/null; "),
        _ => format!("until busybox nc $A {port} < /dev/null; do sleep 0.2; done; "),
    };
    // A host still in the first meeting does not notice that the other one has cut the link already.
    let [both_are_ready, both_have_cut, both_have_ended] = SPARED_PORTS.map(meet);
    let (back, end) = match restored {
        true => (
            format!("sleep {SECONDS}; {RESTORE}; touch restored; "),
            both_have_ended.as_str(),
        ),
        false => (String::new(), ""),
    };
    // A permanent neighbor entry, so that missing ARP answers go unnoticed.
    format!(
        "cd /tmp; {PREPARE}; {SPARE}; \
         until mac=$(ip neigh show {peer} | grep -o 'lladdr [^ ]*'); do \
         timeout 1 bash -c '</dev/tcp/{peer}/9' 2> /dev/null; sleep 0.2; done; \
         ip neigh replace {peer} $mac dev eth0 nud permanent; \
         [ {host} = b ] && ip address add {UNKNOWN}/24 dev eth0; \
         {}for file in {}; do until [ -e $file ]; do sleep 0.1; done; done; \
         {both_are_ready}{CUT_LINK}; {both_have_cut}touch cut; {back}\
         wait $pids; {end}{}",
        sides.iter().map(start).collect::<String>(),
        ready.join(" "),
        super::LEFT
    )
}

fn play(restored: bool) {
    let (of_a, of_b) = sides(restored);
    let printed = run_for(
        400,
        "rxe",
        &script('a', &of_a, restored),
        &script('b', &of_b, restored),
    );
    let mut wrong = vec![];
    for (host, sides, lines) in [('a', &of_a, &printed.a), ('b', &of_b, &printed.b)] {
        for side in sides {
            let complaint = super::complaint(side.port, lines, Some(&[side.end]));
            let observed = complaint.as_deref().unwrap_or("ok");
            println!("  {host}, {}: {observed}", side.command);
            wrong.extend(complaint.map(|lines| format!("{}: {lines}", side.point)));
        }
        let remaining = lines.iter().rfind(|line| line.starts_with("left "));
        if remaining.is_none_or(|remaining| remaining != "left 0 0") {
            wrong.push(format!("on {host}: {remaining:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn permanent_link_cut_in_any_phase_is_reported() {
    play(false);
}

#[test]
fn temporary_link_cut_in_any_phase_is_harmless() {
    play(true);
}
