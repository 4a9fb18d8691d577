//! Numbers of device objects by kind, as counted by the kernel.

use std::process::Command;

/// Numbers in the output of `rdma resource show`, in its order.
pub(crate) fn counts() -> Vec<usize> {
    let shown = Command::new("rdma").args(["resource", "show"]).output();
    let shown = shown.unwrap();
    assert!(shown.status.success(), "{shown:?}");
    let shown = String::from_utf8(shown.stdout).unwrap();
    shown
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

/// Whether no number exceeds its former value. Objects of earlier tests may have been released meanwhile.
pub(crate) fn are_released(before: &[usize]) -> bool {
    counts()
        .iter()
        .zip(before)
        .all(|(now, before)| now <= before)
}
