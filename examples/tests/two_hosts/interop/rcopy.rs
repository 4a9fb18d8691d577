//! rdmacm-utils' `rcopy` (T-X8): the files arrive as they were.

use super::{Cell, Limits, Said, THROUGH, Who};

const OURS: &str = env!("CARGO_BIN_EXE_rcopy");
const C: &str = "rcopy";

/// Sizes of files: with and without whole pages and messages.
const SIZES: [u64; 4] = [1, 4096, 65537, 3_000_000];

/// After so many seconds a copy is begun anew. Over iWARP the kernel may have lost the connection, of which
/// nobody is told.
const PATIENCE: u32 = 20;

/// A GiB.
const LARGE: u64 = 1 << 30;

const DIRECTIONS: [Who; 3] = [Who::OursServesC, Who::CServesOurs, Who::OursServesOurs];

pub(super) fn cells() -> Vec<Cell> {
    let cell = |(port, who)| {
        // C cannot copy a file of no bytes, which it cannot map.
        let empty = match who {
            Who::OursServesOurs => Some(0),
            Who::OursServesC | Who::CServesOurs => None,
        };
        let sizes: Vec<u64> = empty.into_iter().chain(SIZES).collect();
        copying("rcopy", who, &format!("-p {port}"), &sizes, PATIENCE)
    };
    (7601..).zip(DIRECTIONS).map(cell).collect()
}

/// A large file, at the port that the tools have agreed on.
pub(super) fn large() -> Vec<Cell> {
    DIRECTIONS
        .map(|who| copying("rcopy 1 GiB", who, "", &[LARGE], Limits::LONG.client))
        .into()
}

/// A cell in which files of these sizes are copied, each attempt within so many seconds.
fn copying(row: &str, who: Who, options: &str, sizes: &[u64], seconds: u32) -> Cell {
    let (server, client) = who.programs(OURS, C);
    let folder = format!("/tmp/rcopy{}", options.trim_start_matches("-p "));
    let count = sizes.len();
    let words: Vec<String> = sizes.iter().map(u64::to_string).collect();
    let words = words.join(" ");
    let sums =
        format!("for size in {words}; do echo \"$size $(wc -c < $size) $(md5sum < $size)\"; done");
    Cell {
        tool: row.to_owned(),
        who,
        // It is stopped when the client has ended, which may wait for its last answer for ever.
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
        check: Box::new(move |said| are_copies(said, count)),
    }
}

fn are_copies(said: &Said, count: usize) -> Result<(), String> {
    if said.client.len() != count + 1 {
        return Err("the client has not copied all".to_owned());
    }
    match said.server == said.client && said.client[count] == "exit 0" {
        true => Ok(()),
        false => Err("the copies are not the originals".to_owned()),
    }
}
