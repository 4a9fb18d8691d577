//! The interop matrix: every tool with the C tool whose place it can take, as server and as client,
//! and with itself. Each test runs its part in one pair of guests; the long ones have more.
//!
//! The C originals of the-geek-in-the-corner are in no distribution, so those tools play with
//! themselves here; that their messages are laid out as in C is tested where the messages are.

#![expect(clippy::print_stdout, reason = "the matrix")]

mod cmtime;
mod file_transfer;
mod http;
mod kv_store;
mod mckey;
mod rcopy;
mod rdma_client_server;
mod rdma_xclient_xserver;
mod read_write;
mod rping;
mod rstream;
mod ucmatose;
mod udaddy;
mod udpong;

use std::{env, fmt::Write as _};

use crate::guests::{LINUX_6_1, lines_of, run_on_one, run_with};

/// Who serves whom: the columns of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    OursServesC,
    CServesOurs,
    OursServesOurs,
}

const COLUMNS: [(Who, &str); 3] = [
    (Who::OursServesC, "ours/C"),
    (Who::CServesOurs, "C/ours"),
    (Who::OursServesOurs, "ours/ours"),
];

impl Who {
    /// The program that serves, and the one that calls.
    pub(crate) fn programs<'a>(self, ours: &'a str, c: &'a str) -> (&'a str, &'a str) {
        match self {
            Self::OursServesC => (ours, c),
            Self::CServesOurs => (c, ours),
            Self::OursServesOurs => (ours, ours),
        }
    }
}

/// One cell: two commands, and what they must say.
pub(crate) struct Cell {
    /// The row.
    pub(crate) tool: String,
    pub(crate) who: Who,
    /// Runs on host a.
    pub(crate) server: String,
    /// Runs on host b, again and again until there is a server.
    pub(crate) client: String,
    pub(crate) check: Check,
}

impl Cell {
    /// A program of ours with another of ours.
    pub(crate) fn of_ours(
        tool: impl Into<String>,
        server: String,
        client: String,
        check: impl Fn(&Said) -> Result<(), String> + 'static,
    ) -> Self {
        Self {
            tool: tool.into(),
            who: Who::OursServesOurs,
            server,
            client,
            check: Box::new(check),
        }
    }
}

/// Says what is wrong with what two sides have said.
type Check = Box<dyn Fn(&Said) -> Result<(), String>>;

/// The lines of both sides. The last one is `exit` and the exit code.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) server: Vec<String>,
    pub(crate) client: Vec<String>,
}

impl Said {
    /// What both sides have said, but this line.
    pub(crate) fn without(&self, unwanted: &str) -> Self {
        let rest = |lines: &[String]| -> Vec<String> {
            let wanted = |line: &&String| *line != unwanted;
            lines.iter().filter(wanted).cloned().collect()
        };
        Self {
            server: rest(&self.server),
            client: rest(&self.client),
        }
    }

    /// Both sides say exactly this, with numbers of processes masked, and succeed. Where two
    /// threads of a C tool print, the order is free.
    pub(crate) fn exactly(&self, server: &[&str], client: &[&str]) -> Result<(), String> {
        let same = |said: &[String], expected: &[&str]| {
            let mut said: Vec<String> = said.iter().map(|line| masked(line)).collect();
            let mut expected: Vec<&str> = expected.iter().copied().chain(["exit 0"]).collect();
            said.sort();
            expected.sort_unstable();
            said == expected
        };
        match (same(&self.server, server), same(&self.client, client)) {
            (true, true) => Ok(()),
            (false, _) => Err("the server says something else".to_owned()),
            (true, false) => Err("the client says something else".to_owned()),
        }
    }
}

fn masked(line: &str) -> String {
    match line.rsplit_once(" pid ") {
        Some((text, pid)) if pid.parse::<u32>().is_ok() => format!("{text} pid N"),
        _ => line.to_owned(),
    }
}

/// The C tools, which are not to be mistaken for ours of the same name.
const C_TOOLS: &str = "cmtime mckey rcopy rdma_client rdma_server rdma_xclient rdma_xserver \
                       riostream rping rstream ucmatose udaddy";

/// What cells share, and how long things may take, in seconds.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// How many cells are played in one pair of guests.
    cells: usize,
    /// Memory of each guest, in MiB.
    memory: u32,
    /// Until when clients begin. Those whose turn has not come are left to the next round.
    clients: u32,
    /// One client.
    client: u32,
    attempts: u32,
    /// Whether one guest is both hosts.
    one_host: bool,
    /// Options that choose the kernel; none for the default.
    kernel: &'static [&'static str],
}

/// How often what has failed is played again over iWARP. There a message is lost for ever that
/// comes before the kernel's `siw_accept` listens to its socket: of a slow guest that is one
/// connection of a few, and a server of one message, like `rdma_xserver`, hangs while its client
/// has succeeded.
const AGAIN_OVER_IWARP: u32 = 5;

/// The same where datagrams may be lost, which these tools do not send again.
const AGAIN_BY_DATAGRAMS: u32 = 1;

impl Limits {
    /// For what takes long under emulation: each cell has guests of its own, with room for files.
    const LONG: Self = Self {
        cells: 1,
        memory: 4096,
        clients: 60,
        client: 7200,
        attempts: 1,
        one_host: false,
        kernel: &[],
    };

    /// For what would take hours with two guests: tools that go there and back a hundred thousand
    /// times for many sizes, and look for what comes without a pause.
    const ON_ONE_HOST: Self = Self {
        one_host: true,
        ..Self::LONG
    };

    /// For C's `udaddy` and `mckey`, which destroy their queue pairs without waiting for the completions of what they sent.
    /// Soft-RoCE sends from a workqueue since Linux 6.4, and what it has not sent by then is lost.
    fn of_datagrams() -> Self {
        Self {
            kernel: LINUX_6_1,
            ..Self::of("rxe")
        }
    }

    /// Over iWARP the kernel sometimes loses a connection that is being made (see `guests.rs`):
    /// there a side that fails gets another attempt, and what has failed in the end other rounds.
    /// What hangs takes the time of the cells after it, so there are not many of them.
    fn of(device: &str) -> Self {
        match device {
            "siw" => Self {
                cells: 8,
                memory: 1024,
                clients: 240,
                client: 60,
                attempts: 2,
                one_host: false,
                kernel: &[],
            },
            _ => Self {
                cells: usize::MAX,
                memory: 1024,
                clients: 480,
                client: 120,
                attempts: 1,
                one_host: false,
                kernel: &[],
            },
        }
    }

    /// For what is played again: each cell has guests of its own, in which nothing hangs of those
    /// before it.
    fn again(self) -> Self {
        Self { cells: 1, ..self }
    }

    /// How long a server waits for its turn, if nobody ends it.
    fn server(self) -> u32 {
        self.clients + self.client * self.attempts + 30
    }
}

/// One side of a cell: its lines, and its exit code, begin with the number of the cell. Of several
/// attempts, the last one counts. With a code for which `over` is true there is no other.
fn side(cell: usize, attempts: u32, seconds: u32, over: &str, command: &str) -> String {
    let command = command.replace('\'', "'\\''");
    format!(
        "for i in $(seq {attempts}); do out=$(timeout {seconds} sh -c '{command}' 2>&1); code=$?; \
         {over} && break; done; \
         printf '%s\\nexit %s\\n' \"$out\" $code | sed 's/^/{cell}: /'"
    )
}

/// A client that is run again while nobody listens yet.
fn patient(command: &str) -> String {
    format!(
        "for i in $(seq 40); do out=$( ( {command} ) 2>&1 ); code=$?; \
         case $code:$out in 0:*) break;; \
         *REJECTED*|*UNREACHABLE*|*ejected*|*\"onnection refused\"*) sleep 0.5;; \
         *) break;; esac; done; printf '%s\\n' \"$out\"; exit $code"
    )
}

/// Runs all cells on a device of that kind, those that fail up to so many times again, and prints the
/// matrix.
fn play(device: &str, again: u32, tools: impl IntoIterator<Item = Vec<Cell>>) {
    play_within(Limits::of(device), device, again, tools);
}

/// As [`play`], with other limits.
fn play_within(
    limits: Limits,
    device: &str,
    again: u32,
    tools: impl IntoIterator<Item = Vec<Cell>>,
) {
    let cells: Vec<Cell> = tools.into_iter().flatten().collect();
    let mut left: Vec<&Cell> = cells.iter().collect();
    let mut failures = Vec::new();
    for turn in 0..=again {
        if left.is_empty() {
            break;
        }
        let limits = if turn == 0 { limits } else { limits.again() };
        let complaints: Vec<_> = left
            .chunks(limits.cells)
            .flat_map(|cells| round(limits, device, cells))
            .collect();
        let failed = |(cell, complaint)| Option::map(complaint, |complaint| (cell, complaint));
        failures = left
            .into_iter()
            .zip(complaints)
            .filter_map(failed)
            .collect();
        for (_, complaint) in &failures {
            println!("turn {turn}: {complaint}");
        }
        left = failures.iter().map(|&(cell, _)| cell).collect();
    }
    let passed = |cell: &Cell| !left.iter().any(|&failed| std::ptr::eq(failed, cell));
    let outcomes: Vec<_> = cells
        .iter()
        .map(|cell| (cell.tool.as_str(), cell.who, passed(cell)))
        .collect();
    println!("{}", matrix(device, &outcomes));
    let complaints: Vec<String> = failures
        .into_iter()
        .map(|(_, complaint)| complaint)
        .collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Where host a hears that all clients are through. There is the file [`THROUGH`] then, and servers
/// that are still there a minute later are ended.
const THROUGH_PORT: u32 = 7099;
const THROUGH: &str = "/tmp/through";

/// Runs these cells in two guests, or in one; returns what is wrong with each.
fn round(limits: Limits, device: &str, cells: &[&Cell]) -> Vec<Option<String>> {
    let Limits {
        memory,
        clients,
        attempts,
        ..
    } = limits;
    let mut a = format!(
        "cd /tmp; for tool in {C_TOOLS}; do echo \"c: $(command -v $tool)\"; done; \
         {{ busybox nc -l -p {THROUGH_PORT}; touch {THROUGH}; sleep 60; busybox killall timeout; }} & waiting=$!; "
    );
    let mut b = "cd /tmp; begin=$(date +%s); ".to_owned();
    for (i, cell) in cells.iter().enumerate() {
        // A server that was ended has nobody to serve any more.
        let over = "[ $code = 0 -o $code -ge 124 ]";
        let server = side(i, attempts, limits.server(), over, &cell.server);
        let _ = write!(a, "{{ {server}; }} & servers=\"$servers $!\"; ");
        let over = "[ $code = 0 ]";
        let client = side(i, attempts, limits.client, over, &patient(&cell.client));
        let _ = write!(
            b,
            "[ $(($(date +%s) - begin)) -ge {clients} ] || {{ {client}; }}; "
        );
    }
    a += "wait $servers; kill $waiting || true";
    let _ = write!(b, "busybox nc -w 10 $A {THROUGH_PORT} < /dev/null; true");
    let memory = memory.to_string();
    let mut options = vec!["--device", device, "--memory", &memory];
    options.extend(limits.kernel);
    let run = if limits.one_host {
        run_on_one
    } else {
        run_with
    };
    let printed = run(&options, limits.server() + 30, &a, &b);
    let installed: Vec<String> = C_TOOLS
        .split(' ')
        .map(|tool| format!("c: /usr/bin/{tool}"))
        .collect();
    assert_eq!(printed.a[..installed.len().min(printed.a.len())], installed);
    let said = |lines: &[String], cell: usize| {
        let said = lines_of(lines, cell);
        said.into_iter().map(str::to_owned).collect()
    };
    let complaint = |(i, cell): (usize, &&Cell)| {
        let said = Said {
            server: said(&printed.a, i),
            client: said(&printed.b, i),
        };
        let reason = (cell.check)(&said).err()?;
        Some(format!(
            "{}, {:?}: {reason}: {said:#?}",
            cell.tool, cell.who
        ))
    };
    cells.iter().enumerate().map(complaint).collect()
}

/// The matrix: a row for each tool, and in each cell whether all of its runs have passed.
fn matrix(device: &str, outcomes: &[(&str, Who, bool)]) -> String {
    let mut text = format!("{device}, server/client:");
    let mut tools: Vec<&str> = Vec::new();
    for &(tool, ..) in outcomes {
        if !tools.contains(&tool) {
            tools.push(tool);
        }
    }
    let width = tools.iter().map(|tool| tool.len()).max().unwrap_or(0);
    let _ = write!(text, "\n{:width$}", "");
    for (_, name) in COLUMNS {
        let _ = write!(text, "  {name:9}");
    }
    for tool in tools {
        let _ = write!(text, "\n{tool:width$}");
        for (column, _) in COLUMNS {
            let runs = outcomes
                .iter()
                .filter(|(name, who, _)| (*name, *who) == (tool, column));
            let cell = match runs.clone().all(|&(.., passed)| passed) {
                _ if runs.count() == 0 => "-",
                true => "pass",
                false => "FAIL",
            };
            let _ = write!(text, "  {cell:9}");
        }
    }
    text
}

#[test]
fn every_tool_for_datagrams_speaks_with_its_original_over_roce() {
    let tools = [udaddy::cells(), mckey::cells()];
    play_within(Limits::of_datagrams(), "rxe", AGAIN_BY_DATAGRAMS, tools);
}

#[test]
fn every_tool_for_messages_speaks_with_its_original_over_roce() {
    let tools = [
        rdma_client_server::cells(),
        rdma_xclient_xserver::cells(),
        ucmatose::cells(),
        cmtime::cells(),
    ];
    play("rxe", 0, tools);
}

#[test]
fn every_tool_for_memory_speaks_with_its_original_over_roce() {
    let tools = [
        kv_store::cells(),
        read_write::cells("rxe"),
        file_transfer::cells(),
        rping::cells(),
    ];
    play("rxe", 0, tools);
}

#[test]
fn every_tool_speaks_with_its_original_over_iwarp() {
    let tools = [
        kv_store::cells(),
        read_write::cells("siw"),
        file_transfer::refused_by_iwarp(),
        rping::cells(),
        rdma_client_server::cells(),
        ucmatose::cells(),
        cmtime::cells(),
        rdma_xclient_xserver::cells(),
    ];
    play("siw", AGAIN_OVER_IWARP, tools);
}

#[test]
fn every_tool_of_rsockets_speaks_with_its_original_over_roce() {
    let tools = [
        // First, for they look again and again whether it is time to kill.
        rstream::killed(),
        rstream::cells("rxe"),
        rcopy::cells(),
        http::cells(),
    ];
    play("rxe", 0, tools);
    if env::var_os("LONG").is_some() {
        let tools = [rstream::measuring(), rcopy::large()];
        play_within(Limits::LONG, "rxe", 0, tools);
        let tools = [rstream::measuring_on_one_host()];
        play_within(Limits::ON_ONE_HOST, "rxe", 0, tools);
    }
}

#[test]
fn datagrams_of_rsockets_speak_with_the_originals_over_roce() {
    play("rxe", AGAIN_BY_DATAGRAMS, [udpong::cells()]);
}

#[test]
fn every_tool_of_rsockets_speaks_with_its_original_over_iwarp() {
    let tools = [rstream::cells("siw"), rcopy::cells()];
    play("siw", AGAIN_OVER_IWARP, tools);
}

#[test]
fn a_row_of_the_matrix_passes_when_all_its_runs_do() {
    let outcomes = [
        ("rping", Who::CServesOurs, true),
        ("rping", Who::OursServesOurs, true),
        ("cmtime", Who::OursServesC, true),
        ("rping", Who::OursServesOurs, false),
    ];
    assert_eq!(
        matrix("rxe", &outcomes),
        "rxe, server/client:\n  \
         \x20     ours/C     C/ours     ours/ours\n\
         rping   -          pass       FAIL     \n\
         cmtime  pass       -          -        "
    );
}
