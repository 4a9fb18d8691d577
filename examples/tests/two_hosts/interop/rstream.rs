//! rdmacm-utils' `rstream` and `riostream`: each mode of a stream, with verified data.

use super::{Cell, CellOutput, Pairing};

/// A row: name, tool and options.
type Run = (&'static str, Tool, &'static str);

/// A program of this crate and the C original.
#[derive(Clone, Copy)]
struct Tool {
    ours: &'static str,
    c: &'static str,
}

const RSTREAM: Tool = Tool {
    ours: env!("CARGO_BIN_EXE_rstream"),
    c: "rstream",
};

const RIOSTREAM: Tool = Tool {
    ours: env!("CARGO_BIN_EXE_riostream"),
    c: "riostream",
};

const RUNS: [Run; 6] = [
    ("blocking", RSTREAM, "-S 5000 -C 20 -I 3 -T b -T v"),
    ("nonblocking", RSTREAM, "-S 100 -C 500 -I 2 -T n -T v -i 0"),
    ("asynchronous", RSTREAM, "-S 200000 -C 5 -I 2 -T a -T v"),
    (
        "keepalive",
        RSTREAM,
        "-S 1000 -C 100 -I 2 -k 1 -B 4096 -T b -T v",
    ),
    ("ipv6", RSTREAM, "-S 5000 -C 20 -I 3 -T b -T v -f ipv6"),
    ("offsets", RIOSTREAM, "-S 4096 -C 5 -I 3 -T b -T v"),
];

pub(super) fn cells(device: &str) -> Vec<Cell> {
    let is_run = |name| device == "rxe" || ["blocking", "nonblocking", "offsets"].contains(&name);
    let mut cells = Vec::new();
    let mut port = 7500;
    for (name, tool, options) in RUNS.into_iter().filter(|&(name, ..)| is_run(name)) {
        for pairing in [
            Pairing::OursServesC,
            Pairing::CServesOurs,
            Pairing::OursServesOurs,
        ] {
            port += 1;
            let (server, client) = pairing.programs(tool.ours, tool.c);
            let (any, address) = match options.contains("ipv6") {
                true => ("::", "$A6"),
                false => ("0.0.0.0", "$A"),
            };
            cells.push(Cell {
                tool: format!("{} {name}", tool.c),
                pairing,
                server: format!("{server} -b {any} -p {port} {options}"),
                client: format!("{client} -s {address} -p {port} {options}"),
                check: Box::new(move |output| are_complete(output, name, pairing)),
            });
        }
    }
    cells
}

/// Kills the last background process one second after the connection of a queue pair. For queue pairs created
/// by threads, the kernel reports the thread.
const KILL: &str = "connected() { for thread in /proc/$!/task/*; do rdma resource show qp | \
                    grep 'state RTS' | grep -q \"pid ${thread##*/} \" && return; done; false; }; \
                    until ! kill -0 $! || connected; do sleep 0.5; done; \
                    sleep 1; kill -9 $!; wait $!; [ $? = 137 ]";

/// Error of this crate's program after the loss of the peer.
const LOSS: &str = "^ *\\(the peer has gone\\|a request to the peer has failed\\)";

/// The original is killed during a transfer; the program of this crate must fail with an error.
pub(super) fn killed() -> Vec<Cell> {
    let Tool { ours, c } = RSTREAM;
    let cell = |pairing: Pairing, port: u16| {
        let options = format!("-p {port} -S 5000 -C 1000000 -I 1000 -T b > output{port} 2>&1");
        let (server, client) = pairing.programs(ours, c);
        let server = format!("{server} -b 0.0.0.0 {options}");
        let client = format!("{client} -s $A {options}");
        // Repeat until the peer listens.
        let killed = |side| {
            format!("{{ until {side} & {KILL}; do sleep 0.5; done; }} 2> /dev/null; echo killed")
        };
        let reported = |side| {
            format!(
                "until {side}; [ $? = 1 ] && ! grep -q \"cannot connect\" output{port}; do \
                 sleep 0.5; done; sed -n \"/{LOSS}/{{s/.*/told/p;q}}\" output{port}"
            )
        };
        let (dies, lives) = (["killed"], ["told"]);
        let (server, client, ends) = match pairing {
            Pairing::CServesOurs => (killed(server), reported(client), (dies, lives)),
            Pairing::OursServesC | Pairing::OursServesOurs => {
                (reported(server), killed(client), (lives, dies))
            }
        };
        Cell {
            tool: format!("{c} killed"),
            pairing,
            server,
            client,
            check: Box::new(move |output| output.exactly(&ends.0, &ends.1)),
        }
    };
    vec![
        cell(Pairing::OursServesC, 7590),
        cell(Pairing::CServesOurs, 7591),
    ]
}

/// Sizes measured without options.
const FEW_SIZES: &str = "64 4k 64k 1m";

/// Sizes measured with `-S all`.
const ALL_SIZES: &str = "64 128 192 256 384 512 768 1k 1.5k 2k 3k 4k 6k 8k 12k 16k 24k 32k 48k 64k \
                         96k 128k 192k 256k 384k 512k 768k 1m 1.5m 2m 3m 4m 6m";

const WITH_C: [Pairing; 2] = [Pairing::OursServesC, Pairing::CServesOurs];

/// Without options, the tools measure the latency of each size, then the bandwidth over another
/// connection.
pub(super) fn measuring() -> Vec<Cell> {
    let cell = |pairing| measured("sizes", RSTREAM, pairing, "", FEW_SIZES);
    WITH_C.map(cell).into()
}

/// With all sizes, and with `riostream`.
pub(super) fn measuring_on_one_host() -> Vec<Cell> {
    let pairings = [
        Pairing::OursServesC,
        Pairing::CServesOurs,
        Pairing::OursServesOurs,
    ];
    let few = pairings.map(|pairing| measured("offsets, sizes", RIOSTREAM, pairing, "", FEW_SIZES));
    let all = WITH_C.map(|pairing| measured("all sizes", RSTREAM, pairing, "-S all", ALL_SIZES));
    few.into_iter().chain(all).collect()
}

fn measured(row: &str, tool: Tool, pairing: Pairing, options: &str, sizes: &'static str) -> Cell {
    let (server, client) = pairing.programs(tool.ours, tool.c);
    Cell {
        tool: format!("{} {row}", tool.c),
        pairing,
        server: format!("{server} {options}"),
        client: format!("{client} -s $A {options}"),
        check: Box::new(|output| have_measured(output, sizes)),
    }
}

fn have_measured(output: &CellOutput, sizes: &str) -> Result<(), String> {
    let of = |goal: &'static str| sizes.split(' ').map(move |size| format!("{size}_{goal}"));
    let name = || std::iter::once("name".to_owned());
    let expected: Vec<String> = name().chain(of("lat")).chain(of("bw")).collect();
    for (side, lines) in [("server", &output.server), ("client", &output.client)] {
        let Some((code, table)) = lines.split_last() else {
            return Err(format!("the {side} printed nothing"));
        };
        let measured: Vec<&str> = table
            .iter()
            .map(|line| line.split(' ').next().unwrap_or_default())
            .collect();
        if measured != expected || code != "exit 0" {
            return Err(format!("the {side} has not measured everything"));
        }
    }
    Ok(())
}

fn are_complete(output: &CellOutput, name: &str, pairing: Pairing) -> Result<(), String> {
    is_complete(&output.server, name, pairing == Pairing::CServesOurs)?;
    is_complete(&output.client, name, pairing == Pairing::OursServesC)
}

fn is_complete(lines: &[String], name: &str, is_c: bool) -> Result<(), String> {
    if lines
        .iter()
        .any(|line| line.contains("verification failed"))
    {
        return Err("the data are wrong".to_owned());
    }
    let measured = lines.iter().any(|line| line.starts_with("custom"));
    let code = lines.last().map(String::as_str);
    // When polling, the C program reports a peer's disconnect after the last data as an error.
    let hung_up = is_c && name == "asynchronous" && code == Some("exit 16");
    match measured && code == Some("exit 0") || hung_up {
        true => Ok(()),
        false => Err("a side did not finish".to_owned()),
    }
}
