//! hyper over rsockets, on both sides.

use super::Cell;

const SERVER: &str = env!("CARGO_BIN_EXE_http-server");
const CLIENT: &str = env!("CARGO_BIN_EXE_http-client");

pub(super) fn cells() -> Vec<Cell> {
    let paths = "/ /bytes/0 /bytes/1 /bytes/1000000 /nowhere";
    vec![Cell::of_ours(
        "hyper",
        format!("{SERVER} -p 7680 --clients 1"),
        format!("{CLIENT} -p 7680 --echo 300000 $A {paths} 2>&1"),
        |output| {
            output.exactly(
                &["listening on port 7680"],
                &[
                    "GET /: 200 OK, 16 bytes",
                    "GET /bytes/0: 200 OK, 0 bytes",
                    "GET /bytes/1: 200 OK, 1 bytes",
                    "GET /bytes/1000000: 200 OK, 1000000 bytes",
                    "GET /nowhere: 404 Not Found, 0 bytes",
                    "POST /echo: 200 OK, 300000 bytes",
                ],
            )
        },
    )]
}
