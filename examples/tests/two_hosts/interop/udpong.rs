//! rdmacm-utils' `udpong`.
//!
//! Over RoCE, the C program fails with `ENOENT` when creating a queue pair: the address handle to the local
//! port lacks the global route required on Ethernet. `global_route.c` adds the route; all else is the
//! original.
//!
//! The C client does not wait for a server, so a client of this crate checks for the server first.

use std::{path::Path, process::Command};

use super::{Cell, CellOutput, Pairing};

const OURS: &str = env!("CARGO_BIN_EXE_udpong");
const C: &str = "udpong";

/// Options of a client, and over plain UDP.
const RUNS: [(&str, &str); 4] = [
    ("udpong", "-S 512 -C 50 -T b"),
    ("udpong", "-S 64 -C 20 -T n -T e"),
    ("udpong", "-S 1000 -C 20 -T a -T e ipv6"),
    ("udpong -T s", "-S 64 -C 20 -T a -T e -T s"),
];

/// The servers block: all of them wait at once for clients.
pub(super) fn cells() -> Vec<Cell> {
    let with_route = format!("LD_PRELOAD={} ", global_route());
    let mut cells = Vec::new();
    let mut port = 7600;
    for (tool, options) in RUNS {
        for pairing in [
            Pairing::OursServesC,
            Pairing::CServesOurs,
            Pairing::OursServesOurs,
        ] {
            port += 1;
            let (server, client) = pairing.programs(OURS, C);
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
            let wait = match pairing {
                Pairing::OursServesC => format!(
                    "until {OURS} -s {address} -p {port} -S 16 -C 1 -T b {plain} > /dev/null 2>&1; \
                     do sleep 1; done; "
                ),
                Pairing::CServesOurs | Pairing::OursServesOurs => String::new(),
            };
            // A server runs without end, and is killed after all clients.
            cells.push(Cell {
                tool: tool.to_owned(),
                pairing,
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

/// Builds the missing function for the C program, in a folder visible in guests.
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

fn are_complete(output: &CellOutput) -> Result<(), String> {
    let login = |line: &String| line.starts_with("client login from ");
    if !output.server.iter().any(login) {
        return Err("no client was served".to_owned());
    }
    let measured = output.client.iter().any(|line| line.starts_with("custom"));
    match measured && output.client.last().is_some_and(|code| code == "exit 0") {
        true => Ok(()),
        false => Err("the client did not finish".to_owned()),
    }
}
