//! rdmacm-utils' `rping`.

use super::{Cell, CellOutput, Pairing};

const OURS: &str = env!("CARGO_BIN_EXE_rping");
const C: &str = "rping";

pub(super) fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut port = 7120;
    for pairing in [
        Pairing::OursServesC,
        Pairing::CServesOurs,
        Pairing::OursServesOurs,
    ] {
        for (any, address) in [("0.0.0.0", "$A"), ("::", "$A6")] {
            port += 1;
            let (server, client) = pairing.programs(OURS, C);
            cells.push(Cell {
                tool: "rping".to_owned(),
                pairing,
                server: format!("{server} -s -v -a {any} -p {port} -S 300"),
                client: format!("{client} -c -v -V -a {address} -p {port} -S 300 -C 5"),
                check: Box::new(has_five_pings),
            });
        }
        port += 1;
        cells.push(persistent(pairing, port));
    }
    cells
}

/// One client, then three concurrent ones, on a persistent server. The C server drops a request if another
/// arrives before the first is handled, so its clients run in turn.
fn persistent(pairing: Pairing, port: u32) -> Cell {
    let (server, client) = pairing.programs(OURS, C);
    let client = format!("timeout 50 {client} -c -V -v -C 5 -a $A -p {port}");
    let three = match pairing {
        Pairing::CServesOurs => format!("for i in 1 2 3; do {client} || exit 1; done"),
        _ => format!(
            "for i in 1 2 3; do {client} & pids=\"$pids $!\"; done; \
             for pid in $pids; do wait $pid || exit 1; done"
        ),
    };
    Cell {
        tool: "rping -P".to_owned(),
        pairing,
        // The server is killed after the last client.
        server: format!(
            "{server} -s -P -p {port} > {port} 2>&1 & pid=$!; \
             until [ \"$(grep -c DISCONNECT {port})\" -ge 4 ]; do sleep 0.5; done; \
             kill $pid; cat {port}"
        ),
        client: format!("{client} > /dev/null 2>&1 || {{ echo ejected; exit 1; }}; {three}"),
        check: Box::new(|output| {
            let pongs = output
                .client
                .iter()
                .filter(|line| line.starts_with("ping data: "));
            match (pongs.count(), succeeded(&output.client)) {
                (15, true) => Ok(()),
                (count, _) => Err(format!("{count} pings have come back")),
            }
        }),
    }
}

fn succeeded(lines: &[String]) -> bool {
    lines.last().is_some_and(|line| line == "exit 0")
}

/// Both sides have printed the five pings, in order, without errors.
fn has_five_pings(output: &CellOutput) -> Result<(), String> {
    let pings = |lines: &[String], prefix: &str| -> Vec<String> {
        let text = |line: &String| line.strip_prefix(prefix).map(str::to_owned);
        lines.iter().filter_map(text).collect()
    };
    let server = pings(&output.server, "server ping data: ");
    let client = pings(&output.client, "ping data: ");
    let expected: Vec<bool> = (0..5)
        .map(|i| {
            client
                .get(i)
                .is_some_and(|ping| ping.starts_with(&format!("rdma-ping-{i}: ")))
        })
        .collect();
    if client.len() != 5 || expected.contains(&false) || client[0].len() != 299 {
        return Err("the client did not get five pings".to_owned());
    }
    if server != client {
        return Err("the two sides have seen different pings".to_owned());
    }
    match (succeeded(&output.server), succeeded(&output.client)) {
        (true, true) => Ok(()),
        _ => Err("a side has failed".to_owned()),
    }
}
