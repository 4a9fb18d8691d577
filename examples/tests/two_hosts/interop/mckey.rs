//! rdmacm-utils' `mckey`. The receiver is the server.

use super::{Cell, CellOutput, Pairing, refused_by};

const OURS: &str = env!("CARGO_BIN_EXE_mckey");
const C: &str = "mckey";

/// Options of both sides, of the receiver, and of the sender.
const RUNS: [(&str, &str, &str); 2] = [
    ("-C 5 -S 1000", "", ""),
    // Each of the two receives messages of both senders, up to the number of receives posted.
    ("-c 2 -p 273", "-C 4", "-C 2 -o"),
];

pub(super) fn cells(pairings: &[Pairing]) -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut number = 0;
    for &pairing in pairings {
        for (both, receiver, sender) in RUNS {
            number += 1;
            cells.push(cell(pairing, number, [both, receiver, sender]));
        }
    }
    cells.extend(refused_by(pairings).map(refusals));
    cells
}

/// A message sent before the receiver has joined is lost: an `rping` signals the sender to start.
fn cell(pairing: Pairing, number: u32, [both, receiver, sender]: [&str; 3]) -> Cell {
    let (server, client) = pairing.programs(OURS, C);
    let (group, port) = (format!("239.3.2.{number}"), 7250 + number);
    let members = if both.contains("-c 2") { 2 } else { 1 };
    let joined = format!("mckey: joined dgid: ::ffff:{group} mlid 0x0 sl 0");
    let common = format!("-m {group} {both}");
    Cell {
        tool: "mckey".to_owned(),
        pairing,
        server: format!(
            "timeout 200 stdbuf -oL {server} {common} {receiver} -b $A > mckey{number} 2>&1 & pid=$!; \
             until grep -q receiving mckey{number}; do sleep 0.2; kill -0 $pid || break; done; \
             rping -s -C 1 -p {port} > /dev/null 2>&1; wait $pid; code=$?; cat mckey{number}; \
             exit $code"
        ),
        client: format!(
            "rping -c -C 1 -a $A -p {port} > /dev/null 2>&1 || {{ echo ejected; exit 1; }}; \
             {client} {common} {sender} -s -b $B"
        ),
        check: Box::new(move |output| {
            let joined = vec![joined.as_str(); members];
            let end = [
                "data transfers complete",
                "test complete",
                "return status 0",
            ];
            let side = |begin: &[&'static str], middle| {
                [begin, &["mckey: joining"], &joined, &[middle], &end].concat()
            };
            output.exactly(
                &side(&["mckey: starting server"], "receiving data transfers"),
                &side(&["mckey: starting client"], "initiating data transfers"),
            )
        }),
    }
}

/// Errors of the kernel or the device: groups of IPv6 and of InfiniBand on RoCE v2, and a queue pair without
/// loopback. Both programs must fail alike.
fn refusals(pairing: Pairing) -> Cell {
    let (server, _) = pairing.programs(OURS, C);
    let attempts = [
        "-m ff0e::4:5 -b $A6",
        "-M ff0e::4:5 -b $A",
        "-l -m 239.3.2.99 -b $A",
        "-p 2 -m 239.3.2.99 -b $A",
        "-m 239.3.2.99 -S 5000 -b $A",
    ];
    let attempts = attempts.map(|options| format!("{server} {options} 2>&1 && exit 1; "));
    Cell {
        tool: "mckey".to_owned(),
        pairing,
        server: format!("{} exit 0", attempts.concat()),
        client: "exit 0".to_owned(),
        check: Box::new(is_refused),
    }
}

fn is_refused(output: &CellOutput) -> Result<(), String> {
    let expected = [
        ("mckey: failure joining: ", "error 524", 2),
        ("mckey: unable to create QP: ", "Operation not supported", 1),
        ("mckey: addr bind failure: ", "Invalid argument", 1),
        ("mckey: message_size 5000 is larger than active mtu ", "", 1),
        ("return status -", "", 5),
        ("exit 0", "", 1),
    ];
    for (begin, reason, count) in expected {
        let is_one = |line: &&String| line.starts_with(begin) && line.contains(reason);
        let found = output.server.iter().filter(is_one).count();
        if found != count {
            return Err(format!(
                "{begin:?} is printed {found} times, expected {count}"
            ));
        }
    }
    Ok(())
}
