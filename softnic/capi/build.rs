//! Links the program `softnic-verbs` as a shared library with rdma-core's symbol versions.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=symbols.map");
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
}
