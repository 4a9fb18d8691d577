//! Frames recorded from Linux's rxe, by the names of their kinds. Used by the tests of the engine as well.

use std::collections::BTreeMap;

/// Frames by the names of their kinds.
pub(crate) fn recorded() -> BTreeMap<&'static str, Vec<u8>> {
    let mut frames = BTreeMap::new();
    let mut name = "";
    for line in include_str!("rxe.txt").lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            name = comment;
            continue;
        }
        let digits = |at: usize| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
        let bytes = (0..line.len()).step_by(2).map(digits).collect();
        assert!(frames.insert(name, bytes).is_none(), "{name} twice");
    }
    frames
}
