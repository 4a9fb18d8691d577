//! Streams with a peer other than an rsocket: the private data of the request or the answer is invalid.

use super::PEER;
use crate::guests::{lines_of, named};

const STREAM: &str = env!("CARGO_BIN_EXE_rstream");

/// Options for one exchange.
const ONCE: &str = "-S 64 -C 10 -I 1";

/// A listener of each kind, for the [`callers`] on the other host.
pub(super) fn listeners() -> String {
    let stream = format!("timeout 180 {STREAM} -b $A -p 7640 {ONCE}");
    let bad_peer = format!("timeout 180 {PEER} passive $A:7641 --say nonsense");
    format!(
        "{} & {}",
        named("stream", &stream),
        named("bad_peer", &bad_peer)
    )
}

/// A raw client and then a stream connect to a stream listener; a stream connects to a raw listener.
pub(super) fn callers() -> String {
    let bad_peer = format!("timeout 60 {PEER} active $A:7640 --say nonsense");
    // Without a backtrace, the error is the whole output.
    let stream = |port| format!("RUST_BACKTRACE=0 timeout 60 {STREAM} -s $A -p {port} {ONCE}");
    [
        named("bad_peer", &bad_peer),
        named("stream", &stream(7640)),
        named("refused", &stream(7641)),
    ]
    .join("; ")
}

/// Checks the outcomes.
pub(super) fn complaints(listeners: &[String], callers: &[String]) -> Vec<String> {
    let ends = |lines: &[String], name, requested: &[&str]| {
        let said = lines_of(lines, name);
        let right = said.len() >= requested.len()
            && said[said.len() - requested.len()..]
                .iter()
                .zip(requested)
                .all(|(said, requested)| said.trim() == *requested);
        (!right).then(|| format!("{name}: {said:?}"))
    };
    let rejected = ["rejected 28", "torn down", "exit 0"];
    [
        ends(callers, "bad_peer", &rejected),
        ends(callers, "stream", &["exit 0"]),
        ends(callers, "refused", &["version 110, not 1", "exit 1"]),
        ends(listeners, "stream", &["exit 0"]),
        ends(listeners, "bad_peer", &rejected),
    ]
    .into_iter()
    .flatten()
    .collect()
}
