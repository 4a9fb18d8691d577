//! rdmacm-utils' `rdma_client` and `rdma_server`.

use super::{Cell, Pairing};

const SERVER: &str = env!("CARGO_BIN_EXE_rdma_server");
const CLIENT: &str = env!("CARGO_BIN_EXE_rdma_client");

pub(super) fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut port = 7140;
    for pairing in [
        Pairing::OursServesC,
        Pairing::CServesOurs,
        Pairing::OursServesOurs,
    ] {
        for (any, address) in [("0.0.0.0", "$A"), ("::", "$A6")] {
            port += 1;
            let (server, _) = pairing.programs(SERVER, "rdma_server");
            let (_, client) = pairing.programs(CLIENT, "rdma_client");
            cells.push(Cell {
                tool: "rdma_client/server".to_owned(),
                pairing,
                server: format!("{server} -s {any} -p {port}"),
                client: format!("{client} -s {address} -p {port}"),
                check: Box::new(|output| {
                    output.exactly(
                        &["rdma_server: start", "rdma_server: end 0"],
                        &["rdma_client: start", "rdma_client: end 0"],
                    )
                }),
            });
        }
    }
    cells
}
