//! rdmacm-utils' `udpong`.
//!
//! Over RoCE, the C program fails with `ENOENT` where it needs a queue pair: its way to itself has no
//! global route, which Ethernet wants. So it takes part with plain UDP only, where the messages are the
//! same.

use super::{Cell, Said, Who};

const OURS: &str = env!("CARGO_BIN_EXE_udpong");
const C: &str = "udpong";

/// The options of a client: T-X10, and by plain UDP.
const RUNS: [(&str, &str); 4] = [
    ("udpong T-X10", "-S 512 -C 50 -T b"),
    ("udpong T-X10", "-S 64 -C 20 -T n -T e"),
    ("udpong T-X10", "-S 1000 -C 20 -T a -T e ipv6"),
    ("udpong -T s", "-S 64 -C 20 -T a -T e -T s"),
];

/// The servers block: all of them wait at once for their clients.
pub(super) fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut port = 7600;
    for (tool, options) in RUNS {
        let whose = match tool {
            "udpong T-X10" => &[Who::OursServesOurs][..],
            _ => &[Who::OursServesC, Who::CServesOurs, Who::OursServesOurs][..],
        };
        for &who in whose {
            port += 1;
            let (server, client) = who.programs(OURS, C);
            let (any, address) = match options.contains("ipv6") {
                true => ("::", "$A6"),
                false => ("0.0.0.0", "$A"),
            };
            let options = options.trim_end_matches(" ipv6");
            let plain = if options.contains("-T s") { "-T s" } else { "" };
            // A server goes on for ever. It is ended some time after its client has come.
            cells.push(Cell {
                tool: tool.to_owned(),
                who,
                server: format!(
                    "stdbuf -oL {server} -b {any} -p {port} -T b {plain} > udpong{port} & \
                     server=$!; until grep -q login udpong{port}; do sleep 2; done; \
                     sleep 20; kill $server; cat udpong{port}"
                ),
                client: format!("{client} -s {address} -p {port} {options}"),
                check: Box::new(are_complete),
            });
        }
    }
    cells
}

fn are_complete(said: &Said) -> Result<(), String> {
    let login = |line: &String| line.starts_with("client login from ");
    if !said.server.iter().any(login) {
        return Err("nobody has been served".to_owned());
    }
    let measured = said.client.iter().any(|line| line.starts_with("custom"));
    match measured && said.client.last().is_some_and(|code| code == "exit 0") {
        true => Ok(()),
        false => Err("the client has not come to its end".to_owned()),
    }
}
