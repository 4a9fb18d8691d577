//! `rcopy`: this repository's against itself, and against the C program both ways.

use crate::guests::run;

const OURS: &str = env!("CARGO_BIN_EXE_rcopy");
const C: &str = "rcopy";

/// Sizes of files: with and without whole pages and messages.
const SIZES: [u64; 4] = [1, 4096, 65537, 3_000_000];

/// T-X8. C cannot copy a file of no bytes, which it cannot map; ours can.
#[test]
fn rcopy_copies_to_itself_and_to_c() {
    let pairs = [(OURS, OURS), (C, OURS), (OURS, C)];
    let mut servers = vec![];
    let mut clients = vec![];
    for (pair, (server, client)) in pairs.into_iter().enumerate() {
        let port = 7427 + pair;
        let folder = format!("/tmp/rcopy{pair}");
        let sizes = SIZES.map(|size| size.to_string()).join(" ");
        let sizes = if pair == 0 {
            format!("0 {sizes}")
        } else {
            sizes
        };
        // The server is stopped when the sums of its files have been printed.
        servers.push(format!(
            "{{ mkdir {folder}; {server} -p {port} > /dev/null & server=$!; \
             i=0; while [ ! -e {folder}/done ] && [ $i -lt 450 ]; do sleep 0.1; i=$((i+1)); done; \
             kill -9 $server; cd {folder}; for size in {sizes}; do \
             echo \"{pair}: $size $(wc -c < $size) $(md5sum < $size)\"; done; }}"
        ));
        clients.push(format!(
            "{{ mkdir {folder}; cd {folder}; for size in {sizes}; do \
             head -c $size /dev/urandom > $size; \
             for i in $(seq 40); do {client} $size $A:{folder}/$size -p {port} > /dev/null 2>&1 \
             && break; sleep 0.5; done; \
             echo \"{pair}: $size $(wc -c < $size) $(md5sum < $size)\"; done; \
             echo > done; {client} done $A:{folder}/done -p {port} > /dev/null; }}"
        ));
    }
    let printed = run(
        "rxe",
        &format!("{} & wait", servers.join(" & ")),
        &clients.join("; "),
    );
    let of = |lines: &[String], pair: usize| -> Vec<String> {
        let prefix = format!("{pair}: ");
        let own = lines.iter().filter_map(|line| line.strip_prefix(&prefix));
        own.map(str::to_owned).collect()
    };
    println!("rcopy");
    for (pair, (server, client)) in pairs.into_iter().enumerate() {
        let whose = |program| if program == OURS { "ours" } else { "C" };
        let (copies, originals) = (of(&printed.a, pair), of(&printed.b, pair));
        let count = SIZES.len() + usize::from(pair == 0);
        let ok = copies == originals && copies.len() == count;
        let outcome = if ok { "ok" } else { "FAILED" };
        println!(
            "  server {}, client {}: {outcome}",
            whose(server),
            whose(client)
        );
        assert!(ok, "{copies:#?}, and not {originals:#?}");
    }
}
