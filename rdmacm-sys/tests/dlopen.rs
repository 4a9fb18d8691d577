//! Programs with the feature `dlopen`, with and without the libraries.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the example and returns the path of the program; without `packages`, as on a machine without rdma-core.
fn first_calls(packages: bool) -> PathBuf {
    // A separate folder, which keeps the build for the next run.
    let folder = if packages {
        "dlopen"
    } else {
        "dlopen-without-packages"
    };
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--offline", "--locked", "--manifest-path"])
        .args([manifest, "--no-default-features", "--features", "dlopen"])
        .args(["--example", "first-calls", "--target-dir"])
        .arg(&target)
        .env_remove("CARGO_TARGET_DIR");
    if !packages {
        cargo.env("PKG_CONFIG", "/nonexistent/pkg-config");
    }
    let output = cargo.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    target.join("debug/examples/first-calls")
}

/// The program's output, with libraries searched in `folder` first.
fn output(program: &Path, folder: &Path) -> String {
    let mut program = Command::new(program);
    let output = program.env("LD_LIBRARY_PATH", folder).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[cfg_attr(
    stub,
    ignore = "needs the libraries of libibverbs-dev and librdmacm-dev"
)]
#[test]
fn first_calls_without_libraries_fail_and_with_libraries_reach_them() {
    let folder = tempfile::tempdir().unwrap();
    let empty = tempfile::tempdir().unwrap();
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        // The loader takes the first file of the name, and fails. A linked program would not start.
        fs::write(folder.path().join(library), "").unwrap();
    }
    let error = "Can not access a needed shared library (os error 79)";
    let expected = format!(
        "device list: {error}\nfork: -79\ntext: (libibverbs or librdmacm is not installed)\n\
         event channel: {error}\nsocket: -1, {error}\n"
    );
    for packages in [true, false] {
        let program = first_calls(packages);
        assert_eq!(output(&program, folder.path()), expected);
        let installed = output(&program, empty.path());
        assert!(!installed.contains(error), "{installed}");
        assert!(installed.contains("text: success\n"), "{installed}");
    }
}
