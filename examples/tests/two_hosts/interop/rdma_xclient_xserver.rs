//! rdmacm-utils' `rdma_xclient` and `rdma_xserver`.

use super::{Cell, Pairing};

const SERVER: &str = env!("CARGO_BIN_EXE_rdma_xserver");
const CLIENT: &str = env!("CARGO_BIN_EXE_rdma_xclient");

pub(super) fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut port = 7240;
    for pairing in [
        Pairing::OursServesC,
        Pairing::CServesOurs,
        Pairing::OursServesOurs,
    ] {
        for options in ["", "-c r"] {
            port += 1;
            let (server, _) = pairing.programs(SERVER, "rdma_xserver");
            let (_, client) = pairing.programs(CLIENT, "rdma_xclient");
            cells.push(Cell {
                tool: "rdma_xclient/xserver".to_owned(),
                pairing,
                server: format!("{server} -p {port} {options}"),
                client: format!("{client} -s $A -p {port} {options}"),
                check: Box::new(|output| {
                    output.exactly(
                        &["rdma_xserver: start", "rdma_xserver: end 0"],
                        &["rdma_xclient: start", "rdma_xclient: end 0"],
                    )
                }),
            });
        }
    }
    cells
}
