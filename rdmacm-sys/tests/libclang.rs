//! Builds with a defective libclang.

use std::{path::Path, process::Command};

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");

#[cfg_attr(stub, ignore = "needs libclang, and the headers of librdmacm-dev")]
#[test]
fn libclang_that_cannot_read_c_headers_leaves_checked_in_bindings() {
    // A separate folder, which keeps bindgen's build for the next run.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken-libclang");
    let output = Command::new(env!("CARGO"))
        .args(["check", "--package", "rdmacm-sys", "--offline", "--locked"])
        .args(["--manifest-path", MANIFEST])
        .arg("--target-dir")
        .arg(&target)
        // As on systems without the headers of the compiler or of the target.
        .env("BINDGEN_EXTRA_CLANG_ARGS", "-nostdinc")
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    for package in ["rdma-ibverbs-sys", "rdmacm-sys"] {
        let warning = "using the checked-in bindings, as libclang cannot read";
        let warned = |line: &str| line.contains(package) && line.contains(warning);
        assert!(text.lines().any(warned), "{package}: {text}");
    }
}
