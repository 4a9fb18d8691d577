//! Links the program `softnic-verbs` as a shared library with rdma-core's symbol versions, and `softnic-files` as one without
//! versions; looks for rdma-core's programs
//! and its suite of pyverbs, which the tests run.

use std::env;
use std::path::Path;

/// Folder of the distribution's programs.
const PROGRAMS: &str = "/usr/bin";

/// Folder of the suite in Debian's package python3-pyverbs.
const SUITE: &str = "/usr/share/doc/rdma-core/tests";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=files.map");
    println!("cargo:rerun-if-changed=symbols.map");
    println!("cargo:rerun-if-changed={PROGRAMS}");
    println!("cargo:rerun-if-changed={SUITE}");
    println!("cargo:rustc-check-cfg=cfg(without_programs, without_pyverbs, without_ucx)");
    if !Path::new(PROGRAMS).join("rping").exists() {
        println!("cargo:rustc-cfg=without_programs");
    }
    if !Path::new(PROGRAMS).join("ucx_info").exists() {
        println!("cargo:rustc-cfg=without_ucx");
    }
    if !Path::new(SUITE).exists() {
        println!("cargo:rustc-cfg=without_pyverbs");
    }
    let folder = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let arguments = [
        "-shared".to_owned(),
        "-Wl,-soname,libibverbs.so.1".to_owned(),
        // Threads of the library run until the process ends.
        "-Wl,-z,nodelete".to_owned(),
        format!("-Wl,--version-script={folder}/symbols.map"),
    ];
    for argument in arguments {
        println!("cargo:rustc-link-arg-bin=softnic-verbs={argument}");
    }
    let arguments = [
        "-shared".to_owned(),
        "-Wl,-soname,libsoftnic-files.so".to_owned(),
        // Threads of the program may be in its functions until the process ends.
        "-Wl,-z,nodelete".to_owned(),
        format!("-Wl,--version-script={folder}/files.map"),
    ];
    for argument in arguments {
        println!("cargo:rustc-link-arg-bin=softnic-files={argument}");
    }
}
