//! `test_fork.py`

use std::{env, process::Command};

use verbs::fork::{ForkStatus, fork_init, fork_status};

/// Set in the child process of the test.
const ALONE: &str = "VERBS_ALONE";

/// In a process without registered memory. The guests' kernels copy registered pages at the fork.
#[test]
fn is_fork_initialized() {
    if env::var_os(ALONE).is_none() {
        let name = "pyverbs::fork::is_fork_initialized";
        let mut command = Command::new(env::current_exe().unwrap());
        let status = command.args(["--exact", name]).env(ALONE, "1").status();
        assert!(status.unwrap().success());
        return;
    }
    fork_init().unwrap();
    assert_eq!(fork_status(), ForkStatus::UNNEEDED);
}
