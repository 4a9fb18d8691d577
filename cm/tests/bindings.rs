//! Builds without bindgen.

use std::process::Command;

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
