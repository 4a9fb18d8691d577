//! rdmacm-utils' `ucmatose`.

use super::{Cell, Said, Who};

const OURS: &str = env!("CARGO_BIN_EXE_ucmatose");
const C: &str = "ucmatose";

pub(super) fn cells() -> Vec<Cell> {
    let variants = [
        ("0.0.0.0", "$A", "-c 3 -C 4 -S 3000"),
        ("::", "$A6", "-m"),
        // Nothing is sent.
        ("0.0.0.0", "$A", "-c 2 -C 0 -t 8 -f ip"),
    ];
    let mut cells = Vec::new();
    let mut port = 7200;
    for who in [Who::OursServesC, Who::CServesOurs, Who::OursServesOurs] {
        for (any, address, options) in variants {
            port += 1;
            let (server, client) = who.programs(OURS, C);
            cells.push(Cell {
                tool: "ucmatose".to_owned(),
                who,
                server: format!("{server} -b {any} -p {port} {options}"),
                client: format!("{client} -s {address} -p {port} {options}"),
                check: Box::new(move |said| says_what_c_says(said, options)),
            });
        }
    }
    cells
}

/// The two sides say, line by line, what C's do.
fn says_what_c_says(said: &Said, options: &str) -> Result<(), String> {
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
    said.exactly(&server, &client)
}
