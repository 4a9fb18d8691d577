//! What is open, and what has been left behind.

use std::{
    fs, iter,
    process::Command,
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(20);

/// Numbers of what this process, or any device, has open.
pub(crate) fn held() -> Vec<usize> {
    let files = fs::read_dir("/proc/self/fd").unwrap().count();
    let listed = |what| {
        let shown = Command::new("rdma")
            .args(["resource", "show", what])
            .output()
            .unwrap();
        assert!(shown.status.success(), "{shown:?}");
        String::from_utf8(shown.stdout).unwrap().lines().count()
    };
    iter::once(files)
        .chain(["qp", "mr", "cq", "pd", "cm_id"].map(listed))
        .collect()
}

/// Waits until there is no more than that.
pub(crate) fn wait_for_the_rest_to_go(before: &[usize]) {
    let start = Instant::now();
    loop {
        let now = held();
        if now.iter().zip(before).all(|(now, before)| now <= before) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{now:?}, and before {before:?}");
        thread::sleep(Duration::from_millis(10));
    }
}
