//! Keeps the library loaded until the process ends: its threads run, and handlers of the C library refer to its functions.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
