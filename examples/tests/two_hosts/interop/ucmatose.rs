//! rdmacm-utils' `ucmatose`.

use super::{Cell, CellOutput, Pairing};

const OURS: &str = env!("CARGO_BIN_EXE_ucmatose");
const C: &str = "ucmatose";

pub(super) fn cells() -> Vec<Cell> {
    let variants = [
        ("0.0.0.0", "$A", "-c 3 -C 4 -S 3000"),
        ("::", "$A6", "-m"),
        // No messages.
        ("0.0.0.0", "$A", "-c 2 -C 0 -t 8 -f ip"),
    ];
    let mut cells = Vec::new();
    let mut port = 7200;
    for pairing in [
        Pairing::OursServesC,
        Pairing::CServesOurs,
        Pairing::OursServesOurs,
    ] {
        for (any, address, options) in variants {
            port += 1;
            let (server, client) = pairing.programs(OURS, C);
            cells.push(Cell {
                tool: "ucmatose".to_owned(),
                pairing,
                server: format!("{server} -b {any} -p {port} {options}"),
                client: format!("{client} -s {address} -p {port} {options}"),
                check: Box::new(move |output| matches_output_of_c(output, options)),
            });
        }
    }
    cells
}

/// The output of both sides must match C's, line by line.
fn matches_output_of_c(output: &CellOutput, options: &str) -> Result<(), String> {
    let mut server = vec!["cmatose: starting server"];
    let mut client = vec!["cmatose: starting client", "cmatose: connecting"];
    if !options.contains("-C 0") {
        server.extend([
            "initiating data transfers",
            "completing sends",
            "receiving data transfers",
            "data transfers complete",
        ]);
        client.extend([
            "receiving data transfers",
            "sending replies",
            "data transfers complete",
        ]);
    }
    if options.contains("-m") {
        server.push("migrating to new event channel");
        client.push("migrating to new event channel");
    }
    server.extend(["cmatose: disconnecting", "disconnected"]);
    for side in [&mut server, &mut client] {
        side.extend(["test complete", "return status 0"]);
    }
    output.exactly(&server, &client)
}
