//! rdmacm-utils' `rcopy`: the copied files must be identical.

use super::{Cell, CellOutput, Limits, Pairing, THROUGH};

const OURS: &str = env!("CARGO_BIN_EXE_rcopy");
const C: &str = "rcopy";

/// Sizes of files: with and without whole pages and messages.
const SIZES: [u64; 4] = [1, 4096, 65537, 3_000_000];

/// Timeout of one copy, in seconds, before another attempt. Over iWARP the kernel may have lost the
/// connection without an event.
const COPY_TIMEOUT: u32 = 20;

/// One GiB.
const LARGE: u64 = 1 << 30;

const DIRECTIONS: [Pairing; 3] = [
    Pairing::OursServesC,
    Pairing::CServesOurs,
    Pairing::OursServesOurs,
];

pub(super) fn cells() -> Vec<Cell> {
    let cell = |(port, pairing)| {
        // The C program cannot copy an empty file, because `mmap` fails.
        let empty = match pairing {
            Pairing::OursServesOurs => Some(0),
            Pairing::OursServesC | Pairing::CServesOurs => None,
        };
        let sizes: Vec<u64> = empty.into_iter().chain(SIZES).collect();
        copying(
            "rcopy",
            pairing,
            &format!("-p {port}"),
            &sizes,
            COPY_TIMEOUT,
        )
    };
    (7601..).zip(DIRECTIONS).map(cell).collect()
}

/// A large file, at the tools' default port.
pub(super) fn large() -> Vec<Cell> {
    DIRECTIONS
        .map(|pairing| copying("rcopy 1 GiB", pairing, "", &[LARGE], Limits::LONG.client))
        .into()
}

/// A cell copying files of these sizes, with a timeout for each attempt.
fn copying(row: &str, pairing: Pairing, options: &str, sizes: &[u64], seconds: u32) -> Cell {
    let (server, client) = pairing.programs(OURS, C);
    let folder = format!("/tmp/rcopy{}", options.trim_start_matches("-p "));
    let count = sizes.len();
    let words: Vec<String> = sizes.iter().map(u64::to_string).collect();
    let words = words.join(" ");
    let sums =
        format!("for size in {words}; do echo \"$size $(wc -c < $size) $(md5sum < $size)\"; done");
    Cell {
        tool: row.to_owned(),
        pairing,
        // The server is killed after the client's end, because waiting for the last answer can take forever.
        server: format!(
            "mkdir {folder}; {server} {options} > /dev/null & server=$!; \
             while [ ! -e {folder}/done ]; do sleep 0.1; done; cd {folder}; {sums}; \
             while [ ! -e {THROUGH} ]; do sleep 0.1; done; kill -9 $server"
        ),
        client: format!(
            "mkdir {folder}; cd {folder}; echo > done; for size in {words}; do \
             head -c $size /dev/urandom > $size; done; \
             for file in {words} done; do for i in $(seq 40); do \
             timeout {seconds} {client} $file $A:{folder}/$file {options} > /dev/null 2>&1 && break; sleep 0.5; \
             done; done; {sums}"
        ),
        check: Box::new(move |output| are_copies(output, count)),
    }
}

fn are_copies(output: &CellOutput, count: usize) -> Result<(), String> {
    if output.client.len() != count + 1 {
        return Err("the client has not copied all".to_owned());
    }
    match output.server == output.client && output.client[count] == "exit 0" {
        true => Ok(()),
        false => Err("the copies are not the originals".to_owned()),
    }
}
