//! Objects of the device, as the kernel counts them.

use std::process::Command;

/// The output of `rdma resource show`.
pub(crate) fn shown() -> String {
    let shown = Command::new("rdma").args(["resource", "show"]).output();
    let shown = shown.unwrap();
    assert!(shown.status.success(), "{shown:?}");
    String::from_utf8_lossy(&shown.stdout).into_owned()
}
