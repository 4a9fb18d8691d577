//! rdmacm-utils' `udaddy`.

use super::{Cell, Said, Who};

const OURS: &str = env!("CARGO_BIN_EXE_udaddy");
const C: &str = "udaddy";

/// There is no choice of ports, so one pair runs after the other: the client has to be done with
/// a server before the next one listens.
pub(super) fn cells() -> Vec<Cell> {
    let both = [Who::OursServesC, Who::CServesOurs, Who::OursServesOurs];
    let runs = both.into_iter().flat_map(|who| {
        [("0.0.0.0", "$A", "-c 3 -C 5 -S 1000"), ("::", "$A6", "")].map(|run| (who, run))
    });
    let speaking = runs
        .enumerate()
        .map(|(turn, (who, (any, address, options)))| {
            let (server, client) = who.programs(OURS, C);
            // A server waits until the one before it has gone.
            let wait = match turn {
                0 => String::new(),
                _ => format!("until [ -e udaddy{turn} ]; do sleep 0.2; done; "),
            };
            Cell {
                tool: "udaddy".to_owned(),
                who,
                server: format!(
                    "{wait}{server} -b {any} {options}; code=$?; touch udaddy{}; exit $code",
                    turn + 1
                ),
                client: format!("{client} -s {address} {options}"),
                check: Box::new(|said| {
                    said.exactly(
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
    let refused = [Who::CServesOurs, Who::OursServesOurs].map(refusals);
    speaking.chain(refused).collect()
}

/// InfiniBand's own addresses are none on RoCE: a server cannot have one, and there is no route to
/// one. Both programs fail alike.
fn refusals(who: Who) -> Cell {
    let (server, _) = who.programs(OURS, C);
    let attempts = ["-b $A6", "-s $A6", "-s ::ffff:$A", "-s $A6 -b $A6"];
    let attempts = attempts.map(|options| format!("{server} -f gid {options} 2>&1 && exit 1; "));
    Cell {
        tool: "udaddy".to_owned(),
        who,
        server: format!("{} exit 0", attempts.concat()),
        client: "exit 0".to_owned(),
        check: Box::new(is_refused),
    }
}

fn is_refused(said: &Said) -> Result<(), String> {
    let refused = said
        .server
        .iter()
        .filter(|line| line.contains("No such device"));
    match (refused.count(), said.server.last()) {
        (4, Some(last)) if last == "exit 0" => Ok(()),
        (count, _) => Err(format!("{count} addresses are refused")),
    }
}
