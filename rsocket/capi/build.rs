//! Links the program `librsocket` as a shared library with the functions of `symbols.map`, and the name by which C programs link
//! it. The library stays loaded until the process ends: its threads run, and handlers of the C library refer to its functions.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=symbols.map");
    let folder = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let script = format!("-Wl,--version-script={folder}/symbols.map");
    for argument in [
        "-shared",
        "-Wl,-soname,librsocket.so",
        "-Wl,-z,nodelete",
        &script,
    ] {
        println!("cargo:rustc-link-arg-bin=librsocket={argument}");
    }
}
