//! rdmacm-utils' `rcopy` (T-X8): the files arrive as they were.

use super::{Cell, Said, Who};

const OURS: &str = env!("CARGO_BIN_EXE_rcopy");
const C: &str = "rcopy";

/// Sizes of files: with and without whole pages and messages.
const SIZES: [u64; 4] = [1, 4096, 65537, 3_000_000];

pub(super) fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut port = 7600;
    for who in [Who::OursServesC, Who::CServesOurs, Who::OursServesOurs] {
        port += 1;
        let (server, client) = who.programs(OURS, C);
        let folder = format!("/tmp/rcopy{port}");
        // C cannot copy a file of no bytes, which it cannot map.
        let empty = match who {
            Who::OursServesOurs => Some(0),
            Who::OursServesC | Who::CServesOurs => None,
        };
        let sizes: Vec<u64> = empty.into_iter().chain(SIZES).collect();
        let count = sizes.len();
        let words: Vec<String> = sizes.iter().map(u64::to_string).collect();
        let words = words.join(" ");
        let sums = format!(
            "for size in {words}; do echo \"$size $(wc -c < $size) $(md5sum < $size)\"; done"
        );
        cells.push(Cell {
            tool: "rcopy".to_owned(),
            who,
            // It is stopped when all has been copied.
            server: format!(
                "mkdir {folder}; {server} -p {port} > /dev/null & server=$!; \
                 while [ ! -e {folder}/done ]; do sleep 0.1; done; \
                 kill -9 $server; cd {folder}; {sums}"
            ),
            client: format!(
                "mkdir {folder}; cd {folder}; echo > done; for size in {words}; do \
                 head -c $size /dev/urandom > $size; done; \
                 for file in {words} done; do for i in $(seq 40); do \
                 {client} $file $A:{folder}/$file -p {port} > /dev/null 2>&1 && break; sleep 0.5; \
                 done; done; {sums}"
            ),
            check: Box::new(move |said| are_copies(said, count)),
        });
    }
    cells
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
