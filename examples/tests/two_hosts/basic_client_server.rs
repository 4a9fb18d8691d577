//! The first example: a server, a client, and one message in each direction.

use crate::guests::{run, run_with};

const SERVER: &str = env!("CARGO_BIN_EXE_basic-server");
const CLIENT: &str = env!("CARGO_BIN_EXE_basic-client");

/// Masks process numbers, and sorts all lines but the first two: two threads print in parallel.
fn normal(lines: &[String]) -> Vec<String> {
    let masked = |line: &String| match line.rsplit_once(" pid ") {
        Some((text, pid)) if pid.parse::<u32>().is_ok() => format!("{text} pid N"),
        _ => line.clone(),
    };
    let mut lines: Vec<String> = lines.iter().map(masked).collect();
    if let Some(exchange) = lines.get_mut(2..) {
        exchange.sort();
    }
    lines
}

/// Checks the output of a server and a client.
fn check(server: &[String], client: &[String]) {
    assert_eq!(
        normal(server),
        [
            "listening on port 7471.",
            "received connection request.",
            "connected. posting send...",
            "peer disconnected.",
            "received message: message from active/client side with pid N",
            "send completed successfully.",
        ]
    );
    assert_eq!(
        normal(client),
        [
            "address resolved.",
            "route resolved.",
            "connected. posting send...",
            "disconnected.",
            "received message: message from passive/server side with pid N",
            "send completed successfully.",
        ]
    );
    assert_eq!(client.last().map(String::as_str), Some("disconnected."));
}

/// The client's command; waits until the server listens.
fn client(address: &str) -> String {
    format!("sleep 1; {CLIENT} {address} 7471")
}

/// Over IPv4, over IPv6, and to an unbound port, one after another.
#[test]
fn basic_exchange_over_roce_succeeds() {
    let server = format!(
        "{SERVER} --port 7471 --clients 1; echo; {SERVER} -6 --port 7471 --clients 1; \
         sleep 110"
    );
    let clients = format!(
        "{}; echo; {}; echo; {CLIENT} $A 9999 2>&1; echo exit $?",
        client("$A"),
        client("$A6")
    );
    // The other host must still run to reject the connection.
    let printed = run_with(&["--until", "b"], 120, &server, &clients);
    let servers: Vec<_> = printed.a.split(String::is_empty).collect();
    let clients: Vec<_> = printed.b.split(String::is_empty).collect();
    assert_eq!((servers.len(), clients.len()), (2, 3), "{clients:?}");
    check(servers[0], clients[0]);
    check(servers[1], clients[1]);
    assert_eq!(
        clients[2],
        [
            "address resolved.",
            "route resolved.",
            "no connection to 10.9.0.1:9999: rejected: no listener there",
            "exit 1",
        ]
    );
}

#[test]
fn basic_exchange_over_iwarp_succeeds() {
    let server = format!("{SERVER} --port 7471 --clients 1");
    let printed = run("siw", &server, &client("$A"));
    check(&printed.a, &printed.b);
}

#[test]
fn server_with_killed_clients_serves_the_others() {
    let server = format!("{SERVER} --port 7471 2>&1");
    // Eight concurrent clients, one client killed at a random point, and one unaffected client.
    let clients = format!(
        "sleep 1; for i in 1 2 3 4 5 6 7 8; do {CLIENT} $A 7471 & pids=\"$pids $!\"; done; \
         for pid in $pids; do wait $pid || exit 1; done; \
         {CLIENT} $A 7471 > /dev/null & sleep 0.05; kill -9 $!; {CLIENT} $A 7471; code=$?; \
         sleep 2; exit $code"
    );
    let printed = run_with(&["--until", "b"], 120, &server, &clients);
    let count =
        |lines: &[String], start: &str| lines.iter().filter(|line| line.starts_with(start)).count();
    assert_eq!(
        count(
            &printed.b,
            "received message: message from passive/server side"
        ),
        9
    );
    assert_eq!(count(&printed.b, "disconnected."), 9);
    assert!(
        count(
            &printed.a,
            "received message: message from active/client side"
        ) >= 9
    );
    assert!(count(&printed.a, "peer disconnected.") >= 9);
}
