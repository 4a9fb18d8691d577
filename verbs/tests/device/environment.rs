//! Environment variables by which libibverbs hides failures of destroying calls.

use std::{env, io::ErrorKind, process::Command};

use crate::loopback::tested;

/// Set for a child that runs one test alone: the name of the variable to be found, or nothing.
const CHILD: &str = "HIDDEN_FAILURES";

#[test]
fn device_with_hidden_failures_is_refused() {
    if let Ok(found) = env::var(CHILD) {
        let opened = tested().open();
        if found.is_empty() {
            opened.unwrap();
            return;
        }
        let error = opened.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(error.call(), "ibv_open_device");
        let remedy = format!("unset {found} before the program starts");
        assert!(error.to_string().contains(&remedy), "{error}");
        return;
    }
    for name in ["RDMAV_ALLOW_DISASSOC_DESTROY", "MLX4_DEVICE_FATAL_CLEANUP"] {
        for (value, found) in [("1", name), ("", name), ("0", "")] {
            let test = "environment::device_with_hidden_failures_is_refused";
            let mut child = Command::new(env::current_exe().unwrap());
            child.args(["--exact", test, "--test-threads=1"]);
            let output = child.env(name, value).env(CHILD, found).output().unwrap();
            let printed = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{name}={value}: {printed}");
            assert!(printed.contains("1 passed"), "{printed}");
        }
    }
}
