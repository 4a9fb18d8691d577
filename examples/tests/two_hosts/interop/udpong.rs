//! rdmacm-utils' `udpong`.
//!
//! Over RoCE, the C program fails with `ENOENT` where it needs a queue pair: its way to itself has no
//! global route, which Ethernet wants. `global_route.c` adds that; all else is the original's own.
//! As a client, it does not wait for a server, so ours sees to it first that there is one.

use std::{path::Path, process::Command};

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
    let with_route = format!("LD_PRELOAD={} ", global_route());
    let mut cells = Vec::new();
    let mut port = 7600;
    for (tool, options) in RUNS {
        for who in [Who::OursServesC, Who::CServesOurs, Who::OursServesOurs] {
            port += 1;
            let (server, client) = who.programs(OURS, C);
            let preload = |program| {
                if program == C {
                    with_route.as_str()
                } else {
                    ""
                }
            };
            let (for_server, for_client) = (preload(server), preload(client));
            let (any, address) = match options.contains("ipv6") {
                true => ("::", "$A6"),
                false => ("0.0.0.0", "$A"),
            };
            let options = options.trim_end_matches(" ipv6");
            let plain = if options.contains("-T s") { "-T s" } else { "" };
            let wait = match who {
                Who::OursServesC => format!(
                    "until {OURS} -s {address} -p {port} -S 16 -C 1 -T b {plain} > /dev/null 2>&1; \
                     do sleep 1; done; "
                ),
                Who::CServesOurs | Who::OursServesOurs => String::new(),
            };
            // A server goes on for ever. It is ended when all clients are through.
            cells.push(Cell {
                tool: tool.to_owned(),
                who,
                server: format!(
                    "{for_server}stdbuf -oL {server} -b {any} -p {port} -T b {plain} > udpong{port} & \
                     server=$!; until [ -e through ]; do sleep 1; done; kill $server; cat udpong{port}"
                ),
                client: format!("{wait}{for_client}{client} -s {address} -p {port} {options}"),
                check: Box::new(are_complete),
            });
        }
    }
    cells
}

/// Builds what the C program lacks, where guests find it.
fn global_route() -> String {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/two_hosts/interop/global_route.c");
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libglobal_route.so");
    let built = Command::new("cc")
        .args([
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-o",
        ])
        .arg(&library)
        .arg(source)
        .arg("-libverbs")
        .status()
        .expect("there is no C compiler");
    assert!(built.success());
    library.display().to_string()
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
