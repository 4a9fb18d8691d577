//! Environment variables by which libibverbs hides failures of destroying calls.

use std::{env, io::ErrorKind, process::Command};

use cm::EventChannel;

/// Set for a child that runs one test alone.
const CHILD: &str = "HIDDEN_FAILURES";

#[test]
fn channel_with_hidden_failures_is_refused() {
    const NAME: &str = "RDMAV_ALLOW_DISASSOC_DESTROY";
    if env::var_os(CHILD).is_some() {
        let refused = [
            EventChannel::new().map(drop).unwrap_err(),
            cm::devices().map(drop).unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(NAME), "{error}");
        }
        return;
    }
    let test = "environment::channel_with_hidden_failures_is_refused";
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", test, "--test-threads=1"]);
    let output = child.env(NAME, "1").env(CHILD, "1").output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("1 passed"), "{printed}");
}
