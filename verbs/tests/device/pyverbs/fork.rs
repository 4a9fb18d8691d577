//! `test_fork.py`

use verbs::fork::{ForkStatus, fork_init, fork_status};

/// The call is too late if an earlier test has registered memory.
#[test]
fn is_fork_initialized() {
    let expected = match fork_init() {
        Ok(()) => [ForkStatus::ENABLED, ForkStatus::UNNEEDED],
        Err(err) => {
            assert_eq!(err.raw_os_error(), Some(libc::EINVAL));
            [ForkStatus::DISABLED, ForkStatus::UNNEEDED]
        }
    };
    let status = fork_status();
    assert!(expected.contains(&status), "{status:?}");
}
