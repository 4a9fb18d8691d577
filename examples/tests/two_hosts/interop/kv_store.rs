//! The tutorial's key-value store, with itself.

use super::{Cell, Said};

const SERVER: &str = env!("CARGO_BIN_EXE_kv-server");
const CLIENT: &str = env!("CARGO_BIN_EXE_kv-client");

pub(super) fn cells() -> Vec<Cell> {
    vec![
        Cell::of_ours(
            "kv-store",
            // One bucket, so that the fifth key finds it full.
            format!("{SERVER} -p 7161 --buckets 1 --clients 9"),
            format!(
                "kv() {{ {CLIENT} -p 7161 $A \"$@\" 2>&1; }}; kv put a one || exit; \
                 for key in b c d e; do kv put $key two; done; kv put a three; \
                 for key in a d e; do kv get $key; done; true"
            ),
            |said| {
                said.exactly(
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
            // Gets are not counted, so another server ends this one when its client comes.
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

/// Gets have met a put, and have seen what was there before or after it, never a mixture.
fn meets_a_put(said: &Said) -> Result<(), String> {
    let torn = "read again while it was written";
    let known = [
        torn,
        "key is stored as version 1",
        "key is stored as version 2",
        "key = old, version 1",
        "key = new, version 2",
        "exit 0",
    ];
    let lines = || said.client.iter().map(String::as_str);
    if let Some(mixture) = lines().find(|line| !known.contains(line)) {
        return Err(format!("{mixture:?} was read"));
    }
    if !lines().any(|line| line == torn) {
        return Err("no get has met the put".to_owned());
    }
    match said.client.as_slice() {
        [.., last, _] if last == "key = new, version 2" => Ok(()),
        _ => Err("the put is not seen in the end".to_owned()),
    }
}
