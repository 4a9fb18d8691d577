//! The tutorial's key-value store, against itself.

use super::{Cell, CellOutput};

const SERVER: &str = env!("CARGO_BIN_EXE_kv-server");
const CLIENT: &str = env!("CARGO_BIN_EXE_kv-client");

pub(super) fn cells() -> Vec<Cell> {
    vec![
        Cell::of_ours(
            "kv-store",
            // A single bucket, so that the fifth key finds no room.
            format!("{SERVER} -p 7161 --buckets 1 --clients 9"),
            format!(
                "kv() {{ {CLIENT} -p 7161 $A \"$@\" 2>&1; }}; kv put a one || exit; \
                 for key in b c d e; do kv put $key two; done; kv put a three; \
                 for key in a d e; do kv get $key; done; true"
            ),
            |output| {
                output.exactly(
                    &["listening on port 7161"],
                    &[
                        "a is stored as version 1",
                        "b is stored as version 2",
                        "c is stored as version 3",
                        "d is stored as version 4",
                        "the server has no room for this key",
                        "a is stored as version 5",
                        "a = three, version 5",
                        "d = two, version 4",
                        "there is no e",
                    ],
                )
            },
        ),
        Cell::of_ours(
            "kv-store",
            // The first server does not count gets; a second server, on the client's connection, ends the
            // first.
            format!(
                "{SERVER} -b :: -p 7162 --slow-puts 3000 & {SERVER} -b :: -p 7163 --clients 1; \
                 kill $!"
            ),
            format!(
                "kv() {{ {CLIENT} -p 7162 $A6 \"$@\"; }}; kv put key old || exit; \
                 kv put key new & while kill -0 $!; do kv get key; done 2> /dev/null; kv get key; \
                 code=$?; {CLIENT} -p 7163 $A6 get key > /dev/null 2>&1; exit $code"
            ),
            meets_a_put,
        ),
    ]
}

/// Gets overlap with a put, and return the value before or after, never a mixture.
fn meets_a_put(output: &CellOutput) -> Result<(), String> {
    let torn = "read again during a put";
    let known = [
        torn,
        "key is stored as version 1",
        "key is stored as version 2",
        "key = old, version 1",
        "key = new, version 2",
        "exit 0",
    ];
    let lines = || output.client.iter().map(String::as_str);
    if let Some(mixture) = lines().find(|line| !known.contains(line)) {
        return Err(format!("{mixture:?} was read"));
    }
    if !lines().any(|line| line == torn) {
        return Err("no get has met the put".to_owned());
    }
    match output.client.as_slice() {
        [.., last, _] if last == "key = new, version 2" => Ok(()),
        _ => Err("the put is not seen in the end".to_owned()),
    }
}
