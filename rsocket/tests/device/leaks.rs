//! Detection of leaked resources.

use std::{
    fs, iter,
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Open files and sockets of this process.
fn files() -> Vec<PathBuf> {
    let entries = fs::read_dir("/proc/self/fd").unwrap().flatten();
    entries
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .collect()
}

/// Numbers of open descriptors and of RDMA objects.
pub(crate) fn resources() -> Vec<usize> {
    let files = files().len();
    let listed = |kind| {
        let shown = Command::new("rdma")
            .args(["resource", "show", kind])
            .output()
            .unwrap();
        assert!(shown.status.success(), "{shown:?}");
        String::from_utf8(shown.stdout).unwrap().lines().count()
    };
    iter::once(files)
        .chain(["qp", "mr", "cq", "pd", "cm_id"].map(listed))
        .collect()
}

/// Waits until no number exceeds its former value.
pub(crate) fn wait_for_release(before: &[usize]) {
    let start = Instant::now();
    loop {
        let now = resources();
        if now.iter().zip(before).all(|(now, before)| now <= before) {
            return;
        }
        assert!(
            start.elapsed() < TEST_TIMEOUT,
            "{now:?}, and before {before:?}; open: {:?}",
            files()
        );
        thread::sleep(Duration::from_millis(10));
    }
}
