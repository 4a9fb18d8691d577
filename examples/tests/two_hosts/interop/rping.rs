//! rdmacm-utils' `rping`.

use super::{Cell, Said, Who};

const OURS: &str = env!("CARGO_BIN_EXE_rping");
const C: &str = "rping";

pub(super) fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut port = 7120;
    for who in [Who::OursServesC, Who::CServesOurs, Who::OursServesOurs] {
        for (any, address) in [("0.0.0.0", "$A"), ("::", "$A6")] {
            port += 1;
            let (server, client) = who.programs(OURS, C);
            cells.push(Cell {
                tool: "rping".to_owned(),
                who,
                server: format!("{server} -s -v -a {any} -p {port} -S 300"),
                client: format!("{client} -c -v -V -a {address} -p {port} -S 300 -C 5"),
                check: Box::new(has_five_pings),
            });
        }
        port += 1;
        cells.push(persistent(who, port));
    }
    cells
}

/// One client, and then three at once, of a server that goes on. C's forgets a request when the next
/// one comes before it has looked, so there they come one after the other.
fn persistent(who: Who, port: u32) -> Cell {
    let (server, client) = who.programs(OURS, C);
    let client = format!("timeout 50 {client} -c -V -v -C 5 -a $A -p {port}");
    let three = match who {
        Who::CServesOurs => format!("for i in 1 2 3; do {client} || exit 1; done"),
        _ => format!(
            "for i in 1 2 3; do {client} & pids=\"$pids $!\"; done; \
             for pid in $pids; do wait $pid || exit 1; done"
        ),
    };
    Cell {
        tool: "rping -P".to_owned(),
        who,
        // It is stopped when there were as many clients as there are.
        server: format!(
            "{server} -s -P -p {port} > {port} 2>&1 & pid=$!; \
             until [ \"$(grep -c DISCONNECT {port})\" -ge 4 ]; do sleep 0.5; done; \
             kill $pid; cat {port}"
        ),
        client: format!("{client} > /dev/null 2>&1 || {{ echo ejected; exit 1; }}; {three}"),
        check: Box::new(|said| {
            let pongs = said
                .client
                .iter()
                .filter(|line| line.starts_with("ping data: "));
            match (pongs.count(), succeeded(&said.client)) {
                (15, true) => Ok(()),
                (count, _) => Err(format!("{count} pings have come back")),
            }
        }),
    }
}

fn succeeded(lines: &[String]) -> bool {
    lines.last().is_some_and(|line| line == "exit 0")
}

/// Both sides have printed the five pings, in order, and nothing has gone wrong.
fn has_five_pings(said: &Said) -> Result<(), String> {
    let pings = |lines: &[String], prefix: &str| -> Vec<String> {
        let text = |line: &String| line.strip_prefix(prefix).map(str::to_owned);
        lines.iter().filter_map(text).collect()
    };
    let server = pings(&said.server, "server ping data: ");
    let client = pings(&said.client, "ping data: ");
    let expected: Vec<bool> = (0..5)
        .map(|i| {
            client
                .get(i)
                .is_some_and(|ping| ping.starts_with(&format!("rdma-ping-{i}: ")))
        })
        .collect();
    if client.len() != 5 || expected.contains(&false) || client[0].len() != 299 {
        return Err("the client has not got its five pings".to_owned());
    }
    if server != client {
        return Err("the two sides have seen different pings".to_owned());
    }
    match (succeeded(&said.server), succeeded(&said.client)) {
        (true, true) => Ok(()),
        _ => Err("a side has failed".to_owned()),
    }
}
