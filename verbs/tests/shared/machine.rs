//! The machine of the device tests: a guest, or a machine in use with a card (`cargo xtask test --device`).

use std::env;

/// Fails a test that would make the `change`, unless the machine is a guest, which has the variable `HOSTS`. The report of
/// `cargo xtask test --device` lists such a test as left out.
#[track_caller]
pub(crate) fn require_guest(change: &str) {
    assert!(env::var_os("HOSTS").is_some(), "left out: {change}");
}
