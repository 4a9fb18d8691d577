//! Builds without rdma-core's packages: in this workspace, and of a dependent crate.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Set by the workspace's `.cargo/config.toml` for cargo and all programs that cargo runs.
const ENABLE: &str = "RDMA_STUB_LIBRARIES";

/// Runs cargo in `folder`, as on a machine without rdma-core's packages.
fn cargo(folder: &Path, target: &str, stub: bool, arguments: &[&str]) -> Output {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(target);
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(arguments)
        .args(["--offline", "--target-dir"])
        .arg(target)
        .current_dir(folder)
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("LD_LIBRARY_PATH")
        .env("PKG_CONFIG", "/nonexistent/pkg-config");
    for (name, _) in std::env::vars().filter(|(name, _)| is_override(name)) {
        cargo.env_remove(name);
    }
    if stub {
        cargo.env(ENABLE, "1");
    } else {
        cargo.env_remove(ENABLE);
    }
    cargo.output().unwrap()
}

/// Whether a variable names folders of a library in place of pkg-config.
fn is_override(name: &str) -> bool {
    name.starts_with("IBVERBS_") || name.starts_with("RDMACM_")
}

#[test]
fn program_of_the_workspace_without_packages_links_functions_that_fail() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let arguments = ["run", "--locked", "--no-default-features", "--example"];
    let arguments = [&arguments[..], &["first-calls"]].concat();
    let run = cargo(package, "stub", true, &arguments);
    let error = "Can not access a needed shared library (os error 79)";
    let expected = format!(
        "device list: {error}\nfork: -79\ntext: (libibverbs or librdmacm is not installed)\n\
         event channel: {error}\nsocket: -1, {error}\n"
    );
    let (printed, log) = (run.stdout.as_slice(), String::from_utf8_lossy(&run.stderr));
    assert_eq!(String::from_utf8_lossy(printed), expected, "{log}");
    assert!(
        log.contains("libibverbs is not installed (libibverbs-dev)"),
        "{log}"
    );
    assert!(
        log.contains("librdmacm is not installed (librdmacm-dev)"),
        "{log}"
    );
}

#[test]
fn dependent_crate_without_packages_is_refused_with_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let manifest = format!(
        "[package]\nname = \"dependent\"\nversion = \"1.0.0\"\nedition = \"2024\"\n[workspace]\n\
         [dependencies.rdmacm-sys]\npath = {:?}\ndefault-features = false\n",
        checkout.join("rdmacm-sys")
    );
    fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
    fs::create_dir(folder.path().join("src")).unwrap();
    fs::write(folder.path().join("src/lib.rs"), "").unwrap();
    fs::copy(
        checkout.join("Cargo.lock"),
        folder.path().join("Cargo.lock"),
    )
    .unwrap();
    let build = cargo(folder.path(), "stub-dependent", false, &["check"]);
    let log = String::from_utf8_lossy(&build.stderr);
    assert!(!build.status.success(), "{log}");
    assert!(
        log.contains("apt install libibverbs-dev pkg-config"),
        "{log}"
    );
}
