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

/// The kernel's list of objects of one kind, a line each.
fn listed(kind: &str) -> String {
    let shown = Command::new("rdma")
        .args(["resource", "show", kind])
        .output()
        .unwrap();
    assert!(shown.status.success(), "{shown:?}");
    String::from_utf8(shown.stdout).unwrap()
}

/// Numbers of open descriptors and of RDMA objects.
pub(crate) fn resources() -> Vec<usize> {
    let files = files().len();
    let listed = |kind| listed(kind).lines().count();
    iter::once(files)
        .chain(["qp", "mr", "cq", "pd", "cm_id"].map(listed))
        .collect()
}

/// Lengths in bytes of the host's memory regions.
pub(crate) fn regions() -> Vec<usize> {
    let len = |line: &str| {
        let mut words = line.split_whitespace();
        words.find(|&word| word == "mrlen")?;
        words.next()?.parse().ok()
    };
    let listed = listed("mr");
    listed.lines().map(|line| len(line).unwrap()).collect()
}

/// Waits until at most `max` memory regions are left.
pub(crate) fn wait_for_regions(max: usize) {
    let start = Instant::now();
    while regions().len() > max {
        let found = regions();
        assert!(start.elapsed() < TEST_TIMEOUT, "{found:?}, more than {max}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until the memory regions of earlier tests are released, which can follow the end of these tests. A test that counts
/// regions begins with this.
pub(crate) fn wait_for_earlier_tests() {
    wait_for_regions(0);
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
