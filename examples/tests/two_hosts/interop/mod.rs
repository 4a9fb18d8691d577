//! The interop matrix: every tool with the original C tool, as server and as client, and with itself. Each
//! test runs in one pair of guests; the long ones use more.
//!
//! The C originals of the-geek-in-the-corner are packaged by no distribution, so those tools run only against
//! themselves here; unit tests compare their message layouts with C.

#![expect(clippy::print_stdout, reason = "the matrix")]

mod cmtime;
mod file_transfer;
mod http;
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

use crate::guests::{LINUX_6_1, by_link, lines_of, quoted, run_on_one, run_with};

/// Pairing of programs: the columns of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pairing {
    OursServesC,
    CServesOurs,
    OursServesOurs,
}

const COLUMNS: [(Pairing, &str); 3] = [
    (Pairing::OursServesC, "ours/C"),
    (Pairing::CServesOurs, "C/ours"),
    (Pairing::OursServesOurs, "ours/ours"),
];

impl Pairing {
    /// The server program and the client program.
    pub(crate) fn programs<'a>(self, ours: &'a str, c: &'a str) -> (&'a str, &'a str) {
        match self {
            Self::OursServesC => (ours, c),
            Self::CServesOurs => (c, ours),
            Self::OursServesOurs => (ours, ours),
        }
    }
}

/// One cell: two commands and a check of the output.
pub(crate) struct Cell {
    /// Row of the matrix.
    pub(crate) tool: String,
    pub(crate) pairing: Pairing,
    /// Command on host a.
    pub(crate) server: String,
    /// Command on host b, repeated until the server listens.
    pub(crate) client: String,
    pub(crate) check: Check,
}

impl Cell {
    /// A cell with programs of this crate on both sides.
    pub(crate) fn of_ours(
        tool: impl Into<String>,
        server: String,
        client: String,
        check: impl Fn(&CellOutput) -> Result<(), String> + 'static,
    ) -> Self {
        Self {
            tool: tool.into(),
            pairing: Pairing::OursServesOurs,
            server,
            client,
            check: Box::new(check),
        }
    }
}

/// Checks the output of both sides; returns a description of the error.
type Check = Box<dyn Fn(&CellOutput) -> Result<(), String>>;

/// Output lines of both sides. The last one is `exit` and the exit code.
#[derive(Debug)]
pub(crate) struct CellOutput {
    pub(crate) server: Vec<String>,
    pub(crate) client: Vec<String>,
}

impl CellOutput {
    /// Copies the output without lines equal to `unwanted`.
    pub(crate) fn without(&self, unwanted: &str) -> Self {
        let rest = |lines: &[String]| -> Vec<String> {
            let requested = |line: &&String| *line != unwanted;
            lines.iter().filter(requested).cloned().collect()
        };
        Self {
            server: rest(&self.server),
            client: rest(&self.client),
        }
    }

    /// Checks for exactly these lines, with process numbers masked, and for success. With two printing
    /// threads in a C tool, the order is free.
    pub(crate) fn exactly(&self, server: &[&str], client: &[&str]) -> Result<(), String> {
        let same = |output: &[String], expected: &[&str]| {
            let mut output: Vec<String> = output.iter().map(|line| masked(line)).collect();
            let mut expected: Vec<&str> = expected.iter().copied().chain(["exit 0"]).collect();
            output.sort();
            expected.sort_unstable();
            output == expected
        };
        match (same(&self.server, server), same(&self.client, client)) {
            (true, true) => Ok(()),
            (false, _) => Err("unexpected output of the server".to_owned()),
            (true, false) => Err("unexpected output of the client".to_owned()),
        }
    }
}

fn masked(line: &str) -> String {
    match line.rsplit_once(" pid ") {
        Some((text, pid)) if pid.parse::<u32>().is_ok() => format!("{text} pid N"),
        _ => line.to_owned(),
    }
}

/// The C tools, distinct from tools of this crate with the same names.
const C_TOOLS: &str = "cmtime mckey rcopy rdma_client rdma_server rdma_xclient rdma_xserver \
                       riostream rping rstream ucmatose udaddy";

/// Path of a C tool, on the host and in guests.
fn c_tool(name: &str) -> String {
    let folder = env::var("SOFT_ROCE_RDMA_CORE").unwrap_or("/usr".to_owned());
    format!("{folder}/bin/{name}")
}

/// Limits of a round, and timeouts in seconds.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Number of cells in one pair of guests.
    cells: usize,
    /// Memory of each guest, in MiB.
    memory: u32,
    /// Latest start of clients. Cells not started by then move to the next round.
    clients: u32,
    /// Timeout of one client.
    client: u32,
    attempts: u32,
    /// Whether one guest plays both hosts.
    one_host: bool,
    /// Options for the choice of the kernel; empty for the default.
    kernel: &'static [&'static str],
}

/// Number of repetitions of failed cells over RoCE. At a load of seven, a client's first connection attempt has timed out while two
/// dozen servers of one guest were starting; the server then counted that attempt as its only client.
const AGAIN_UNDER_LOAD: u32 = 1;

/// Number of repetitions of failed cells over iWARP. A message is lost there if received before the kernel's
/// `siw_accept` listens to the socket. On a slow guest this affects one connection of a few, and a server of
/// one message, like `rdma_xserver`, hangs after the client's success.
const AGAIN_OVER_IWARP: u32 = 5;

/// Number of repetitions where datagrams may be lost; the tests do not retransmit.
const AGAIN_BY_DATAGRAMS: u32 = 1;

impl Limits {
    /// Slow cells under emulation: each has guests of its own, with room for files.
    const LONG: Self = Self {
        cells: 1,
        memory: 4096,
        clients: 60,
        client: 7200,
        attempts: 1,
        one_host: false,
        kernel: &[],
    };

    /// Cells too slow for two guests: tools with a hundred thousand round trips for many sizes, and busy
    /// polling.
    const ON_ONE_HOST: Self = Self {
        one_host: true,
        ..Self::LONG
    };

    /// C's `udaddy` and `mckey` destroy the queue pairs without waiting for send completions. Soft-RoCE sends
    /// from a workqueue since Linux 6.4, so sends still queued are lost.
    fn of_c_datagrams() -> Self {
        Self {
            kernel: LINUX_6_1,
            ..Self::of("rxe")
        }
    }

    /// Over iWARP the kernel sometimes loses a connection during setup (see `guests.rs`): a failed side gets
    /// another attempt, and a failed cell other rounds. A hung cell delays the cells behind it, so the number
    /// of cells is small.
    fn of(device: &str) -> Self {
        match device {
            "siw" => Self {
                cells: 8,
                memory: 1024,
                clients: 240,
                client: 30,
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

    /// Limits of a repetition: each cell has guests of its own, free of earlier hung processes.
    fn again(self) -> Self {
        Self { cells: 1, ..self }
    }

    /// Timeout of a server, if not ended earlier.
    fn server(self) -> u32 {
        self.clients + self.client * self.attempts + 30
    }
}

/// One side of a cell: lines and exit code start with the number of the cell. Of several attempts, the last
/// one counts. An exit code matching `ended` ends the attempts.
fn side(cell: usize, attempts: u32, seconds: u32, ended: &str, command: &str) -> String {
    let command = quoted(&by_link(command));
    format!(
        "for i in $(seq {attempts}); do out=$(timeout {seconds} sh -c {command} 2>&1); code=$?; \
         {ended} && break; done; \
         printf '%s\\nexit %s\\n' \"$out\" $code | sed 's/^/{cell}: /'"
    )
}

/// Repeats a client until a server listens.
fn retried(command: &str) -> String {
    format!(
        "for i in $(seq 40); do out=$( ( {command} ) 2>&1 ); code=$?; \
         case $code:$out in 0:*) break;; \
         *REJECTED*|*UNREACHABLE*|*ejected*|*\"onnection refused\"*) sleep 0.5;; \
         *) break;; esac; done; printf '%s\\n' \"$out\"; exit $code"
    )
}

/// Runs all cells on a device of the given kind, repeats failed cells up to `again` times, and prints the
/// matrix.
fn play(device: &str, again: u32, tools: impl IntoIterator<Item = Vec<Cell>>) {
    play_within(Limits::of(device), device, again, tools);
}

/// Like [`play`], with other limits.
fn play_within(
    limits: Limits,
    device: &str,
    again: u32,
    tools: impl IntoIterator<Item = Vec<Cell>>,
) {
    let cells: Vec<Cell> = tools.into_iter().flatten().collect();
    let mut remaining: Vec<&Cell> = cells.iter().collect();
    let mut failures = Vec::new();
    for attempt in 0..=again {
        if remaining.is_empty() {
            break;
        }
        let limits = if attempt == 0 { limits } else { limits.again() };
        let complaints: Vec<_> = remaining
            .chunks(limits.cells)
            .flat_map(|cells| round(limits, device, cells))
            .collect();
        let failed = |(cell, complaint)| Option::map(complaint, |complaint| (cell, complaint));
        failures = remaining
            .into_iter()
            .zip(complaints)
            .filter_map(failed)
            .collect();
        for (_, complaint) in &failures {
            println!("turn {attempt}: {complaint}");
        }
        remaining = failures.iter().map(|&(cell, _)| cell).collect();
    }
    let passed = |cell: &Cell| !remaining.iter().any(|&failed| std::ptr::eq(failed, cell));
    let outcomes: Vec<_> = cells
        .iter()
        .map(|cell| (cell.tool.as_str(), cell.pairing, passed(cell)))
        .collect();
    println!("{}", matrix(device, &outcomes));
    let complaints: Vec<String> = failures
        .into_iter()
        .map(|(_, complaint)| complaint)
        .collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Port on host a for the signal of finished clients. Then the file [`THROUGH`] is created, and servers still
/// running after the timeout of one more client are killed.
const THROUGH_PORT: u32 = 7099;
const THROUGH: &str = "/tmp/through";

/// Runs the cells in two guests, or in one; returns the error of each.
fn round(limits: Limits, device: &str, cells: &[&Cell]) -> Vec<Option<String>> {
    let Limits {
        memory,
        clients,
        client: last,
        attempts,
        ..
    } = limits;
    let mut a = format!(
        "cd /tmp; for tool in {C_TOOLS}; do echo \"c: $(command -v $tool)\"; done; \
         {{ busybox nc -l -p {THROUGH_PORT}; touch {THROUGH}; sleep {last}; busybox killall timeout; }} & waiting=$!; "
    );
    let mut b = "cd /tmp; begin=$(date +%s); ".to_owned();
    for (i, cell) in cells.iter().enumerate() {
        // A killed server needs no further attempt.
        let ended = "[ $code = 0 -o $code -ge 124 ]";
        let server = side(i, attempts, limits.server(), ended, &cell.server);
        let _ = write!(a, "{{ {server}; }} & servers=\"$servers $!\"; ");
        let ended = "[ $code = 0 ]";
        let client = side(i, attempts, limits.client, ended, &retried(&cell.client));
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
        .map(|tool| format!("c: {}", c_tool(tool)))
        .collect();
    assert_eq!(printed.a[..installed.len().min(printed.a.len())], installed);
    let output = |lines: &[String], cell: usize| {
        let output = lines_of(lines, cell);
        output.into_iter().map(str::to_owned).collect()
    };
    let complaint = |(i, cell): (usize, &&Cell)| {
        let output = CellOutput {
            server: output(&printed.a, i),
            client: output(&printed.b, i),
        };
        let reason = (cell.check)(&output).err()?;
        Some(format!(
            "{}, {:?}: {reason}: {output:#?}",
            cell.tool, cell.pairing
        ))
    };
    cells.iter().enumerate().map(complaint).collect()
}

/// The matrix: a row for each tool, and in each cell whether all runs have passed.
fn matrix(device: &str, outcomes: &[(&str, Pairing, bool)]) -> String {
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
                .filter(|(name, pairing, _)| (*name, *pairing) == (tool, column));
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

/// The pairings with one server program each, for calls refused to the server.
fn refused_by(pairings: &[Pairing]) -> impl Iterator<Item = Pairing> {
    let pairings = pairings.iter().copied();
    pairings.filter(|pairing| *pairing != Pairing::OursServesC)
}

#[test]
fn every_datagram_tool_over_roce_interoperates_with_c() {
    let pairings = [Pairing::OursServesC, Pairing::CServesOurs];
    let tools = [udaddy::cells(&pairings), mckey::cells(&pairings)];
    play_within(Limits::of_c_datagrams(), "rxe", AGAIN_BY_DATAGRAMS, tools);
}

#[test]
fn every_datagram_tool_over_roce_exchanges_messages_with_itself() {
    let pairings = [Pairing::OursServesOurs];
    let tools = [udaddy::cells(&pairings), mckey::cells(&pairings)];
    play("rxe", AGAIN_BY_DATAGRAMS, tools);
}

#[test]
fn every_message_tool_over_roce_interoperates_with_c() {
    let tools = [
        rdma_client_server::cells(),
        rdma_xclient_xserver::cells(),
        ucmatose::cells(),
        cmtime::cells(),
    ];
    play("rxe", AGAIN_UNDER_LOAD, tools);
}

#[test]
fn every_rdma_tool_over_roce_interoperates_with_c() {
    let tools = [
        read_write::cells("rxe"),
        file_transfer::cells(),
        rping::cells(),
    ];
    play("rxe", AGAIN_UNDER_LOAD, tools);
}

#[test]
fn every_message_tool_over_iwarp_interoperates_with_c() {
    let tools = [
        rdma_client_server::cells(),
        rdma_xclient_xserver::cells(),
        ucmatose::cells(),
        cmtime::cells(),
    ];
    play("siw", AGAIN_OVER_IWARP, tools);
}

#[test]
fn every_rdma_tool_over_iwarp_interoperates_with_c() {
    let tools = [
        read_write::cells("siw"),
        file_transfer::refused_by_iwarp(),
        rping::cells(),
    ];
    play("siw", AGAIN_OVER_IWARP, tools);
}

#[test]
fn every_rsocket_tool_over_roce_interoperates_with_c() {
    let tools = [
        // First, because these cells poll for the time of the kill.
        rstream::killed(),
        rstream::cells("rxe"),
        rcopy::cells(),
        http::cells(),
    ];
    play("rxe", AGAIN_UNDER_LOAD, tools);
    if env::var_os("LONG").is_some() {
        let tools = [rstream::measuring(), rcopy::large()];
        play_within(Limits::LONG, "rxe", 0, tools);
        let tools = [rstream::measuring_on_one_host()];
        play_within(Limits::ON_ONE_HOST, "rxe", 0, tools);
    }
}

#[test]
fn rsocket_datagrams_over_roce_interoperate_with_c() {
    play("rxe", AGAIN_BY_DATAGRAMS, [udpong::cells()]);
}

#[test]
fn every_rsocket_tool_over_iwarp_interoperates_with_c() {
    let tools = [rstream::cells("siw"), rcopy::cells()];
    play("siw", AGAIN_OVER_IWARP, tools);
}

#[test]
fn matrix_row_passes_only_if_all_runs_pass() {
    let outcomes = [
        ("rping", Pairing::CServesOurs, true),
        ("rping", Pairing::OursServesOurs, true),
        ("cmtime", Pairing::OursServesC, true),
        ("rping", Pairing::OursServesOurs, false),
    ];
    assert_eq!(
        matrix("rxe", &outcomes),
        "rxe, server/client:\n  \
         \x20     ours/C     C/ours     ours/ours\n\
         rping   -          pass       FAIL     \n\
         cmtime  pass       -          -        "
    );
}
