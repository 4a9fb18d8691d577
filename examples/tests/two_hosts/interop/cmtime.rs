//! rdmacm-utils' `cmtime`.

use super::{Cell, Said, Who};

const OURS: &str = env!("CARGO_BIN_EXE_cmtime");
const C: &str = "cmtime";

pub(super) fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut port = 7220;
    for who in [Who::OursServesC, Who::CServesOurs, Who::OursServesOurs] {
        for (any, address, options) in [("0.0.0.0", "$A", "-c 8 -b $B"), ("::", "$A6", "-c 4")] {
            port += 2;
            let (server, client) = who.programs(OURS, C);
            let done = port + 1;
            cells.push(Cell {
                tool: "cmtime".to_owned(),
                who,
                // It serves for ever: an `rping` tells that it may go. C's client succeeds
                // even if it is rejected.
                server: format!(
                    "{server} -b {any} -p {port} & pid=$!; rping -s -C 1 -p {done}; kill $pid"
                ),
                client: format!(
                    "out=$({client} -s {address} -p {port} {options} 2>&1); code=$?; \
                     echo \"$out\"; case \"$out\" in *event:*) exit 1;; esac; \
                     [ $code = 0 ] && rping -c -C 1 -a $A -p {done}"
                ),
                check: Box::new(move |said| has_taken_each_step(said, options.contains("-b"))),
            });
        }
    }
    cells
}

/// The client has timed every step, and nothing has failed.
fn has_taken_each_step(said: &Said, bound: bool) -> Result<(), String> {
    let steps = [
        "create id    ",
        "bind addr    ",
        "resolve addr ",
        "resolve route",
        "create qp    ",
        "connect      ",
        "disconnect   ",
        "destroy      ",
    ];
    let expected = steps
        .iter()
        .filter(|step| bound || !step.starts_with("bind"));
    let timed: Vec<&str> = said
        .client
        .iter()
        .filter_map(|line| line.split_once(": "))
        .filter(|(_, times)| {
            let mut times = times.split_whitespace().map(str::parse::<f64>);
            times.clone().count() == 4 && times.all(|time| time.is_ok_and(|time| time >= 0.0))
        })
        .map(|(step, _)| step)
        .collect();
    if timed != expected.copied().collect::<Vec<_>>() {
        return Err(format!("the client has timed {timed:?}"));
    }
    match said.client.last() {
        Some(last) if last == "exit 0" => Ok(()),
        _ => Err("the client has failed".to_owned()),
    }
}
