//! What is open, and what has been left behind.

use std::{
    fs, iter,
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(20);

/// The files, sockets and so on that this process has open.
fn files() -> Vec<PathBuf> {
    let entries = fs::read_dir("/proc/self/fd").unwrap().flatten();
    entries
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .collect()
}

/// Numbers of what this process, or any device, has open.
pub(crate) fn held() -> Vec<usize> {
    let files = files().len();
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
        assert!(
            start.elapsed() < PATIENCE,
            "{now:?}, and before {before:?}; open: {:?}",
            files()
        );
        thread::sleep(Duration::from_millis(10));
    }
}
