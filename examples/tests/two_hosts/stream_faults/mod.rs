//! Streams with killed peers, cut links or exhausted resources. The survivor must be notified, or continue
//! without losses; no call may hang, and no wrong bytes may arrive.

#![expect(clippy::print_stdout, reason = "the list of cases")]

mod cuts;

use crate::guests::{lines_of, named, run_for};

const PEER: &str = env!("CARGO_BIN_EXE_stream-fault-peer");

/// Action of a side when killed or when the peer is killed, and the survivor's allowed outcomes.
const KILLED: &[(&str, &[&str])] = &[
    // A connecting client is notified of the acceptor's death as soon as the connection is established.
    ("connecting", &["ConnectionReset", "served another"]),
    ("receiving", &["ConnectionReset, ConnectionReset"]),
    ("sending", &["ConnectionReset, ConnectionReset"]),
    ("polling", &["ConnectionReset, ConnectionReset"]),
    ("transferring", &["ConnectionReset"]),
    // Both sides may have shut down before the kill. If only the killed side has, its end is read, and the shutdown of this side
    // fails, as TCP's is answered by a reset.
    (
        "ending",
        &[
            "end, BrokenPipe",
            "end, ConnectionReset",
            "ConnectionReset, ConnectionReset",
        ],
    ),
];

fn peer(role: &str, port: u16, more: &str) -> String {
    format!("timeout 250 {PEER} {role} $A:{port} {more}")
}

/// Two sides, and the allowed outcomes.
struct Case {
    name: String,
    server: String,
    client: String,
    server_ends: Vec<&'static str>,
    client_ends: Vec<&'static str>,
}

const DIED: &str = "exit 137";

fn killed() -> Vec<Case> {
    let mut cases = vec![];
    for (port, (doing, ends)) in (7700..).step_by(2).zip(KILLED) {
        for (port, server_dies) in [(port, true), (port + 1, false)] {
            let die = format!("{doing} --die");
            let (server, client) = match server_dies {
                true => (die.as_str(), *doing),
                false => (*doing, die.as_str()),
            };
            let mut calls = peer("client", port, client);
            if !server_dies && *doing == "connecting" {
                // Another client is served afterwards.
                let other = peer("client", port, "ending");
                calls = format!("{calls}; code=$?; {other} > /dev/null; (exit $code)");
            }
            let lives = ends.to_vec();
            let (server_ends, client_ends) = match server_dies {
                true => (vec![DIED], lives),
                false => (lives, vec![DIED]),
            };
            cases.push(Case {
                name: format!(
                    "the {} is killed {doing}",
                    if server_dies { "server" } else { "client" }
                ),
                server: peer("server", port, server),
                client: calls,
                server_ends,
                client_ends,
            });
        }
    }
    cases
}

/// Checks the outcome of a side, and returns a description of the error.
fn complaint(name: &str, lines: &[String], ends: &[&str]) -> Option<String> {
    let local = lines_of(lines, name);
    let right = match &local[..] {
        [.., code] if ends == [DIED] => *code == DIED,
        [outcome, "exit 0"] => ends.iter().any(|end| outcome.starts_with(end)),
        _ => false,
    };
    (!right).then(|| format!("{local:?}"))
}

/// Errors of all cases, with a description.
fn complaints(cases: &[Case], a: &[String], b: &[String], first: usize) -> Vec<String> {
    let mut wrong = vec![];
    for (number, case) in (first..).zip(cases) {
        let name = number.to_string();
        for (lines, ends) in [(a, &case.server_ends), (b, &case.client_ends)] {
            let complaint = complaint(&name, lines, ends);
            let received = complaint.as_deref().unwrap_or("ok");
            println!("  {}: {received}", case.name);
            wrong.extend(complaint.map(|ends| format!("{}: {ends}", case.name)));
        }
    }
    wrong
}

#[test]
fn stream_with_killed_peer_fails() {
    let cases = killed();
    let sides = |command: fn(&Case) -> &str| -> Vec<String> {
        (0..)
            .zip(&cases)
            .map(|(number, case)| named(number, command(case)))
            .collect()
    };
    let servers = sides(|case| &case.server);
    let clients = sides(|case| &case.client);
    let printed = run_for(
        280,
        "rxe",
        &format!("{} & wait", servers.join(" & ")),
        &clients.join("; "),
    );
    let wrong = complaints(&cases, &printed.a, &printed.b, 0);
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn streams_survive_exhaustion_and_report_device_removal() {
    let exhausting = format!("timeout 200 {PEER} exhausting $A:7790");
    // Root has no limit on locked memory.
    let unprivileged = "setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock";
    let commands = [
        named(
            "memory",
            &format!("{unprivileged} sh -c \"ulimit -l 3000; {exhausting}\""),
        ),
        named(
            "descriptors",
            &format!("sh -c \"ulimit -n 64; {exhausting}\""),
        ),
        named("device", &format!("timeout 150 {PEER} removed $A:7791")),
        "for i in $(seq 50); do links=$(rdma link show); [ \"$links\" ] || break; sleep 0.2; done; \
         echo \"links $links\""
            .to_owned(),
    ];
    let printed = run_for(280, "rxe", &commands.join("; "), "true");
    let mut wrong = vec![];
    for (name, ends) in [
        // The client fails locally, is rejected, or is reset when the accepting side fails after the
        // handshake.
        (
            "memory",
            &["exhausted: 12", "exhausted: 111", "exhausted: 104"][..],
        ),
        (
            "descriptors",
            &["exhausted: 24", "exhausted: 111", "exhausted: 104"],
        ),
        ("device", &["removed"]),
    ] {
        let complaint = complaint(name, &printed.a, ends);
        println!("  {name}: {}", complaint.as_deref().unwrap_or("ok"));
        wrong.extend(complaint);
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_eq!(printed.a.last().map(String::as_str), Some("links "));
}

/// The hardware address of the server's host changes, as when its network card is replaced: the kernel ends the client's
/// connection, and the client's error has the report of the connection manager.
#[test]
fn stream_whose_peer_changes_its_hardware_address_names_the_cause() {
    let server = named("server", &peer("server", 7795, "receiving"));
    let explaining = peer("client", 7795, "explaining --ready /tmp/met");
    let client = named("client", &explaining);
    // It has the old address again before the client answers, so that the disconnect gets through: a server that only
    // receives would wait on.
    let change = "while [ ! -e /tmp/met ]; do sleep 0.1; done; \
         mac=$(ip neigh show $A dev eth0 | grep -o 'lladdr [^ ]*'); \
         for mac in 'lladdr 02:00:00:00:00:99' \"$mac\"; do \
         echo neigh replace $A $mac dev eth0 nud permanent; done | ip -batch -; wait";
    let printed = run_for(120, "rxe", &server, &format!("{client} & {change}"));
    let explained = lines_of(&printed.b, "client");
    let expected = "the peer has gone: unreachable: Connection timed out (os error 110)";
    assert_eq!(explained, [expected, "exit 0"]);
    let reported = lines_of(&printed.a, "server");
    assert_eq!(reported, ["ConnectionReset, ConnectionReset", "exit 0"]);
}
