//! Numbers of RDMA objects by kind, as counted by the kernel.

use std::process::Command;

/// Output of `rdma resource show`.
pub(crate) fn shown() -> String {
    let shown = Command::new("rdma").args(["resource", "show"]).output();
    let shown = shown.unwrap();
    assert!(shown.status.success(), "{shown:?}");
    String::from_utf8_lossy(&shown.stdout).into_owned()
}
