//! A C program with the header and the library, over a real device.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{env, fs, path::Path, process::Command};

/// The library, by the name that programs link.
fn install(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    // It is built beside this test program.
    let library = env::current_exe()
        .unwrap()
        .with_file_name("librsocket_capi.so");
    fs::copy(&library, folder.join("librsocket.so")).unwrap();
}

#[test]
fn a_c_program_works_as_with_the_original() {
    let address = env::var("A").expect("this test runs in the guest: `cargo xtask test`");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = env::temp_dir().join("rsocket-capi");
    install(&folder);
    let program = folder.join("program");
    let built = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(source.join("tests/device/program.c"))
        .arg("-I")
        .arg(source.join("include"))
        .arg("-L")
        .arg(&folder)
        .arg("-lrsocket")
        .status()
        .unwrap();
    assert!(built.success());
    let ran = Command::new(&program)
        .arg(address)
        .env("LD_LIBRARY_PATH", &folder)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{}: {errors}", ran.status);
    assert_eq!(ran.stdout, b"all is well\n");
}
