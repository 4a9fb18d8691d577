//! Streams whose peer is no rsocket: the private data with which it asks or answers are something else.

use super::PEER;
use crate::guests::{lines_of, named};

const STREAM: &str = env!("CARGO_BIN_EXE_rstream");

/// One exchange of streams.
const ONCE: &str = "-S 64 -C 10 -I 1";

/// A listener of each kind, for [`callers`] on the other host.
pub(super) fn listeners() -> String {
    let stream = format!("timeout 180 {STREAM} -b $A -p 7640 {ONCE}");
    let stranger = format!("timeout 180 {PEER} passive $A:7641 --say nonsense");
    format!(
        "{} & {}",
        named("stream", &stream),
        named("stranger", &stranger)
    )
}

/// A stranger, and then a stream, ask a stream, and a stream asks a stranger.
pub(super) fn callers() -> String {
    let stranger = format!("timeout 60 {PEER} active $A:7640 --say nonsense");
    // The error is all that is said of it.
    let stream = |port| format!("RUST_BACKTRACE=0 timeout 60 {STREAM} -s $A -p {port} {ONCE}");
    [
        named("stranger", &stranger),
        named("stream", &stream(7640)),
        named("refused", &stream(7641)),
    ]
    .join("; ")
}

/// What is wrong with how they ended.
pub(super) fn complaints(listeners: &[String], callers: &[String]) -> Vec<String> {
    let ends = |lines: &[String], name, wanted: &[&str]| {
        let said = lines_of(lines, name);
        let right = said.len() >= wanted.len()
            && said[said.len() - wanted.len()..]
                .iter()
                .zip(wanted)
                .all(|(said, wanted)| said.trim() == *wanted);
        (!right).then(|| format!("{name}: {said:?}"))
    };
    let rejected = ["rejected 28", "torn down", "exit 0"];
    [
        ends(callers, "stranger", &rejected),
        ends(callers, "stream", &["exit 0"]),
        ends(callers, "refused", &["version 110, not 1", "exit 1"]),
        ends(listeners, "stream", &["exit 0"]),
        ends(listeners, "stranger", &rejected),
    ]
    .into_iter()
    .flatten()
    .collect()
}
