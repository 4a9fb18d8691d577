//! rdmacm-utils' `udaddy`.

use super::{Cell, CellOutput, Pairing, refused_by};

const OURS: &str = env!("CARGO_BIN_EXE_udaddy");
const C: &str = "udaddy";

/// The port is fixed, so pairs run in turn: a client must end before the next server listens.
pub(super) fn cells(pairings: &[Pairing]) -> Vec<Cell> {
    let runs = pairings.iter().flat_map(|&pairing| {
        [("0.0.0.0", "$A", "-c 3 -C 5 -S 1000"), ("::", "$A6", "")].map(|run| (pairing, run))
    });
    let printing = runs
        .enumerate()
        .map(|(number, (pairing, (any, address, options)))| {
            let (server, client) = pairing.programs(OURS, C);
            // A server waits for the end of the previous one.
            let wait = match number {
                0 => String::new(),
                _ => format!("until [ -e udaddy{number} ]; do sleep 0.2; done; "),
            };
            Cell {
                tool: "udaddy".to_owned(),
                pairing,
                server: format!(
                    "{wait}{server} -b {any} {options}; code=$?; touch udaddy{}; exit $code",
                    number + 1
                ),
                client: format!("{client} -s {address} {options}"),
                check: Box::new(|output| {
                    output.exactly(
                        &[
                            "udaddy: starting server",
                            "receiving data transfers",
                            "sending replies",
                            "data transfers complete",
                            "test complete",
                            "return status 0",
                        ],
                        &[
                            "udaddy: starting client",
                            "udaddy: connecting",
                            "initiating data transfers",
                            "receiving data transfers",
                            "data transfers complete",
                            "test complete",
                            "return status 0",
                        ],
                    )
                }),
            }
        });
    printing.chain(refused_by(pairings).map(refusals)).collect()
}

/// InfiniBand addresses on RoCE: a server cannot bind one, and no route exists. Both programs must fail
/// alike.
fn refusals(pairing: Pairing) -> Cell {
    let (server, _) = pairing.programs(OURS, C);
    let attempts = ["-b $A6", "-s $A6", "-s ::ffff:$A", "-s $A6 -b $A6"];
    let attempts = attempts.map(|options| format!("{server} -f gid {options} 2>&1 && exit 1; "));
    Cell {
        tool: "udaddy".to_owned(),
        pairing,
        server: format!("{} exit 0", attempts.concat()),
        client: "exit 0".to_owned(),
        check: Box::new(is_refused),
    }
}

fn is_refused(output: &CellOutput) -> Result<(), String> {
    let refused = output
        .server
        .iter()
        .filter(|line| line.contains("No such device"));
    match (refused.count(), output.server.last()) {
        (4, Some(last)) if last == "exit 0" => Ok(()),
        (count, _) => Err(format!("{count} addresses are refused")),
    }
}
