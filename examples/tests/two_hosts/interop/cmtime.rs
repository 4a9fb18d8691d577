//! rdmacm-utils' `cmtime`.

use std::process::Command;

use super::{Cell, CellOutput, Pairing, c_tool};

const OURS: &str = env!("CARGO_BIN_EXE_cmtime");
const C: &str = "cmtime";

/// Whether the C program synchronizes its sides over TCP, as since rdma-core 64. The port follows the program before, which
/// does not, so the two do not interoperate.
fn c_synchronizes_over_tcp() -> bool {
    let usage = Command::new(c_tool(C)).arg("-?").output();
    let usage = usage.expect("rdma-core has a cmtime");
    String::from_utf8_lossy(&usage.stdout).contains("oob_port")
}

pub(super) fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut port = 7220;
    let with_c = match c_synchronizes_over_tcp() {
        false => &[Pairing::OursServesC, Pairing::CServesOurs][..],
        true => &[],
    };
    for pairing in with_c.iter().copied().chain([Pairing::OursServesOurs]) {
        for (any, address, options) in [("0.0.0.0", "$A", "-c 8 -b $B"), ("::", "$A6", "-c 4")] {
            port += 2;
            let (server, client) = pairing.programs(OURS, C);
            let done = port + 1;
            cells.push(Cell {
                tool: "cmtime".to_owned(),
                pairing,
                // The server runs without end: an `rping` signals the end of the test. The C client succeeds
                // even if rejected.
                server: format!(
                    "{server} -b {any} -p {port} & pid=$!; rping -s -C 1 -p {done}; kill $pid"
                ),
                client: format!(
                    "out=$({client} -s {address} -p {port} {options} 2>&1); code=$?; \
                     echo \"$out\"; case \"$out\" in *event:*) exit 1;; esac; \
                     [ $code = 0 ] && rping -c -C 1 -a $A -p {done}"
                ),
                check: Box::new(move |output| has_taken_each_step(output, options.contains("-b"))),
            });
        }
    }
    cells
}

/// The client has timed every step without a failure.
fn has_taken_each_step(output: &CellOutput, bound: bool) -> Result<(), String> {
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
    let timed: Vec<&str> = output
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
    match output.client.last() {
        Some(last) if last == "exit 0" => Ok(()),
        _ => Err("the client has failed".to_owned()),
    }
}
