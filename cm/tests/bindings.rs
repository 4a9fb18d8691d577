//! Builds without bindgen, and builds with a defective libclang.

use std::{path::Path, process::Command};

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");

fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(arguments)
        .args(["--offline", "--locked", "--manifest-path", MANIFEST]);
    cargo
}

/// Packages in the build of a crate, including build scripts, one per line.
fn built_of(package: &str, features: &[&str]) -> String {
    let mut cargo = cargo(&["tree", "--edges", "normal,build", "--prefix", "none"]);
    let output = cargo.args(["--package", package]).args(features).output();
    let output = output.expect("cargo can be run");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("names of packages are UTF-8")
}

#[test]
fn crates_without_default_features_build_no_bindgen() {
    for package in [
        "rdma-ibverbs-sys",
        "rdmacm-sys",
        "rdma-verbs",
        "rdma-cm",
        "rdma-rsocket",
        "rdma-rds",
    ] {
        let bare = built_of(package, &["--no-default-features"]);
        assert!(bare.contains("pkg-config"), "{bare}");
        for unwanted in ["bindgen", "clang-sys", "syn"] {
            let found = bare.lines().find(|line| line.starts_with(unwanted));
            assert_eq!(found, None, "{package}");
        }
        // With default features, every crate above the bindings enables bindgen.
        let usual = built_of(package, &[]);
        assert!(usual.contains("bindgen"), "{package}: {usual}");
    }
}

#[test]
fn libclang_that_cannot_read_c_headers_leaves_checked_in_bindings() {
    // A separate folder, which keeps bindgen's build for the next run.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken-libclang");
    let output = cargo(&["check", "--package", "rdmacm-sys"])
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
