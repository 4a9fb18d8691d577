//! rdmacm-utils' `rstream` and `riostream`: each way to use a stream, with data that are checked.

use super::{Cell, Said, Who};

/// A row: its test in the specification, the tool, and its options.
type Run = (&'static str, Tool, &'static str);

/// A program of ours, and of C.
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
    ("T-X1", RSTREAM, "-S 5000 -C 20 -I 3 -T b -T v"),
    ("T-X2", RSTREAM, "-S 100 -C 500 -I 2 -T n -T v -i 0"),
    ("T-X3", RSTREAM, "-S 200000 -C 5 -I 2 -T a -T v"),
    (
        "T-X4",
        RSTREAM,
        "-S 1000 -C 100 -I 2 -k 1 -B 4096 -T b -T v",
    ),
    ("T-X6", RSTREAM, "-S 5000 -C 20 -I 3 -T b -T v -f ipv6"),
    ("T-X7", RIOSTREAM, "-S 4096 -C 5 -I 3 -T b -T v"),
];

pub(super) fn cells(device: &str) -> Vec<Cell> {
    let wanted = |name| device == "rxe" || ["T-X1", "T-X2", "T-X7"].contains(&name);
    let mut cells = Vec::new();
    let mut port = 7500;
    for (name, tool, options) in RUNS.into_iter().filter(|&(name, ..)| wanted(name)) {
        for who in [Who::OursServesC, Who::CServesOurs, Who::OursServesOurs] {
            port += 1;
            let (server, client) = who.programs(tool.ours, tool.c);
            let (any, address) = match options.contains("ipv6") {
                true => ("::", "$A6"),
                false => ("0.0.0.0", "$A"),
            };
            cells.push(Cell {
                tool: format!("{} {name}", tool.c),
                who,
                server: format!("{server} -b {any} -p {port} {options}"),
                client: format!("{client} -s {address} -p {port} {options}"),
                check: Box::new(move |said| are_complete(said, name, who)),
            });
        }
    }
    cells
}

/// Kills the last process in the background a second after a queue pair of it has been connected.
/// Of those that threads have made, the kernel tells the thread.
const KILL: &str = "connected() { for thread in /proc/$!/task/*; do rdma resource show qp | \
                    grep 'state RTS' | grep -q \"pid ${thread##*/} \" && return; done; false; }; \
                    until ! kill -0 $! || connected; do sleep 0.5; done; \
                    sleep 1; kill -9 $!; wait $!; [ $? = 137 ]";

/// What ours says of a peer that is not there any more.
const LOSS: &str = "the peer \\(has gone\\|did not take what was sent\\)";

/// T-X11: the original is killed in the middle of a transfer, and ours says that it has failed.
pub(super) fn killed() -> Vec<Cell> {
    let Tool { ours, c } = RSTREAM;
    let cell = |who: Who, port: u16| {
        let options = format!("-p {port} -S 5000 -C 1000000 -I 1000 -T b > said{port} 2>&1");
        let (server, client) = who.programs(ours, c);
        let server = format!("{server} -b 0.0.0.0 {options}");
        let client = format!("{client} -s $A {options}");
        // Until there is somebody to connect to.
        let killed = |side| {
            format!("{{ until {side} & {KILL}; do sleep 0.5; done; }} 2> /dev/null; echo killed")
        };
        let told = |side| {
            format!(
                "until {side}; [ $? = 1 ] && ! grep -q \"cannot connect\" said{port}; do \
                 sleep 0.5; done; sed -n \"s/^ *{LOSS}$/told/p\" said{port}"
            )
        };
        let (dies, lives) = (["killed"], ["told"]);
        let (server, client, ends) = match who {
            Who::CServesOurs => (killed(server), told(client), (dies, lives)),
            Who::OursServesC | Who::OursServesOurs => (told(server), killed(client), (lives, dies)),
        };
        Cell {
            tool: format!("{c} T-X11"),
            who,
            server,
            client,
            check: Box::new(move |said| said.exactly(&ends.0, &ends.1)),
        }
    };
    vec![cell(Who::OursServesC, 7590), cell(Who::CServesOurs, 7591)]
}

/// What is measured without options.
const FEW_SIZES: &str = "64 4k 64k 1m";

/// What is measured with `-S all`.
const ALL_SIZES: &str = "64 128 192 256 384 512 768 1k 1.5k 2k 3k 4k 6k 8k 12k 16k 24k 32k 48k 64k \
                         96k 128k 192k 256k 384k 512k 768k 1m 1.5m 2m 3m 4m 6m";

const WITH_C: [Who; 2] = [Who::OursServesC, Who::CServesOurs];

/// T-X5: nothing is said of what to measure. So the latency of each size is measured, and then the
/// bandwidth with another connection.
pub(super) fn measuring() -> Vec<Cell> {
    let cell = |who| measured("T-X5", RSTREAM, who, "", FEW_SIZES);
    WITH_C.map(cell).into()
}

/// T-X5, T-X7: the same with all sizes, and with `riostream`.
pub(super) fn measuring_on_one_host() -> Vec<Cell> {
    let whos = [Who::OursServesC, Who::CServesOurs, Who::OursServesOurs];
    let few = whos.map(|who| measured("T-X7 default", RIOSTREAM, who, "", FEW_SIZES));
    let all = WITH_C.map(|who| measured("T-X5 all", RSTREAM, who, "-S all", ALL_SIZES));
    few.into_iter().chain(all).collect()
}

fn measured(row: &str, tool: Tool, who: Who, options: &str, sizes: &'static str) -> Cell {
    let (server, client) = who.programs(tool.ours, tool.c);
    Cell {
        tool: format!("{} {row}", tool.c),
        who,
        server: format!("{server} {options}"),
        client: format!("{client} -s $A {options}"),
        check: Box::new(|said| have_measured(said, sizes)),
    }
}

fn have_measured(said: &Said, sizes: &str) -> Result<(), String> {
    let of = |goal: &'static str| sizes.split(' ').map(move |size| format!("{size}_{goal}"));
    let name = || std::iter::once("name".to_owned());
    let expected: Vec<String> = name().chain(of("lat")).chain(of("bw")).collect();
    for (side, lines) in [("server", &said.server), ("client", &said.client)] {
        let Some((code, table)) = lines.split_last() else {
            return Err(format!("the {side} says nothing"));
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

fn are_complete(said: &Said, name: &str, who: Who) -> Result<(), String> {
    is_complete(&said.server, name, who == Who::CServesOurs)?;
    is_complete(&said.client, name, who == Who::OursServesC)
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
    // The C program takes a peer that has hung up with the last data for an error, when it polls.
    let hung_up = is_c && name == "T-X3" && code == Some("exit 16");
    match measured && code == Some("exit 0") || hung_up {
        true => Ok(()),
        false => Err("a side has not come to its end".to_owned()),
    }
}
